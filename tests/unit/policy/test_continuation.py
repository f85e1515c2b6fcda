"""Which streams can go on at which replica: the table in `policy.continuation`, row by row."""

import pytest

from shoal.policy.continuation import Mode, continuation_modes, is_at_limit, mode_at, tokens_left

BOTH: frozenset[Mode] = frozenset({"replay", "resume"})
RESUME: frozenset[Mode] = frozenset({"resume"})
NONE: frozenset[Mode] = frozenset()


@pytest.mark.parametrize(
    ("greedy", "seeded", "positional", "returns_token_ids", "resumes", "modes"),
    [
        (True, False, False, True, False, BOTH),
        (True, True, False, True, True, BOTH),
        (True, False, True, True, False, RESUME),
        (False, True, False, True, True, RESUME),
        (False, True, False, True, False, NONE),
        (False, False, False, True, True, NONE),
        (True, True, False, False, True, NONE),
    ],
)
def test_a_stream_goes_on_only_where_its_tokens_say_all(
    greedy: bool, seeded: bool, positional: bool, returns_token_ids: bool, resumes: bool, modes: frozenset[Mode]
) -> None:
    found = continuation_modes(
        greedy=greedy,
        seeded=seeded,
        positional=positional,
        returns_token_ids=returns_token_ids,
        resumes=resumes,
    )
    assert found == modes


@pytest.mark.parametrize(
    ("modes", "same_fallback", "returns_token_ids", "resumes", "in_reasoning", "mode"),
    [
        (BOTH, True, True, True, False, "resume"),
        (BOTH, True, True, False, False, "replay"),
        (BOTH, True, False, False, False, None),
        (BOTH, True, True, False, True, None),
        (BOTH, True, True, True, True, "resume"),
        (RESUME, True, True, False, False, None),
        (BOTH, False, True, True, False, None),
        (NONE, True, True, True, False, None),
    ],
)
def test_the_next_replica_decides_how(
    modes: frozenset[Mode],
    same_fallback: bool,
    returns_token_ids: bool,
    resumes: bool,
    in_reasoning: bool,
    mode: Mode | None,
) -> None:
    found = mode_at(
        modes,
        same_fallback=same_fallback,
        returns_token_ids=returns_token_ids,
        resumes=resumes,
        in_reasoning=in_reasoning,
    )
    assert found == mode


@pytest.mark.parametrize(
    ("limit", "context", "left"), [(16, 0, 6), (16, 100, 6), (10, 100, 0), (None, 100, 70), (None, 0, None)]
)
def test_a_continued_stream_gets_what_is_left_of_its_limit(
    limit: int | None, context: int, left: int | None
) -> None:
    assert tokens_left(limit, context, prompt=20, sent=10) == left


@pytest.mark.parametrize(
    ("limit", "output", "sent", "ended"),
    [(16, 16, 16, True), (16, 15, 15, False), (16, 16, 15, False), (None, 16, 16, False)],
)
def test_a_stream_at_its_limit_lacks_only_its_end(limit: int | None, output: int, sent: int, ended: bool) -> None:
    """Half a character is output that was not sent."""
    assert is_at_limit(limit, output, sent) is ended
