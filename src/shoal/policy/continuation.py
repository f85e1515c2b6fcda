"""Whether a stream that broke off can go on at another replica, and how.

Going on is exact where the rest depends on nothing but the tokens before it:

| next engine                 | greedy                                              | seeded               |
|-----------------------------|-----------------------------------------------------|----------------------|
| takes `resume_token_ids`    | yes                                                 | yes, if both take it |
| takes token ids as a prompt | without penalties, stop strings: replayed as prompt | no: indices differ   |
| neither                     | no                                                  | no                   |

That is so on the same weights and the same engine: two engines round differently, and greedy text of theirs differs
sooner or later.
"""

from typing import Literal

Mode = Literal["replay", "resume"]
"""`resume`: the output so far is sent in `resume_token_ids`; `replay`: as the end of the prompt."""

NO_MODES: frozenset[Mode] = frozenset()
_RESUME = frozenset[Mode]({"resume"})
_REPLAY_OR_RESUME = frozenset[Mode]({"replay", "resume"})


def continuation_modes(
    *, greedy: bool, seeded: bool, positional: bool, returns_token_ids: bool, resumes: bool
) -> frozenset[Mode]:
    """Return how a stream whose whole state is in its tokens could go on elsewhere; empty: not exactly.

    `greedy` and `seeded` say how it is sampled. `positional`: its sampling depends on where the output begins
    (penalties, stop strings, minimum lengths). `returns_token_ids` and `resumes` are abilities of the replica where
    it starts: without token ids nothing is known to go on from.
    """
    if not returns_token_ids or not (greedy or seeded):
        return NO_MODES
    if greedy:
        return _RESUME if positional else _REPLAY_OR_RESUME
    return _RESUME if resumes else NO_MODES


def mode_at(
    modes: frozenset[Mode], *, same_fallback: bool, returns_token_ids: bool, resumes: bool, in_reasoning: bool
) -> Mode | None:
    """Return how a stream can go on at a replica with these abilities; None: it can't.

    `same_fallback`: the replica has the fallback number of the one that began; with another it may serve another
    model. `in_reasoning`: the client's last token is reasoning, which in a replay, raw text, nobody could tell the
    end of.
    """
    if not same_fallback:
        return None
    if resumes and "resume" in modes:
        return "resume"
    if in_reasoning or "replay" not in modes:
        return None
    return "replay" if returns_token_ids else None


def tokens_left(limit: int | None, context: int, prompt: int, sent: int) -> int | None:
    """Return how many output tokens a continued stream still gets; None: nobody can say.

    `limit`: output tokens that the request allows; None: as many as fit into `context`, the longest sequence of the
    next replica in tokens (0: unknown). `prompt` and `sent` are tokens before the stream and of it so far.
    """
    if limit is None:
        if not context:
            return None
        limit = context - prompt
    return limit - sent


def is_at_limit(limit: int | None, output: int, sent: int) -> bool:
    """Whether a stream lacks nothing but its end: `output` tokens reach its limit, and all of them were sent."""
    return limit is not None and output >= limit and sent >= output
