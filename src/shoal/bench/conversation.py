"""The prompt of a session as it grows: what was said, what was answered, what comes next."""

import asyncio
from typing import Any

from shoal.bench.prompts import IdPrompts, TextPrompts
from shoal.bench.target import Reply, Target
from shoal.workload.load import Load, Segment, Turn

_AT_ONCE = 8


class Contents:
    """Makes the contents of prompts for one target and seed."""

    def __init__(self, target: Target, seed: int, salt: str = "") -> None:
        self.target = target
        self._name = f"{seed}:{salt}"
        self.ids: IdPrompts | None = target.id_prompts(f"{seed}:{salt}") if target.takes_ids else None
        self.texts: TextPrompts = target.text_prompts(f"{seed}:{salt}")

    def session(self, number: int, name: str = "") -> str:
        """A conversation's name: the same for every turn of it, and for all conversations of the agent `name`."""
        return f"{self._name}-{name or number}"

    async def prepare(self, load: Load) -> None:
        """Fit all texts before the clock starts, so that no tokenizing disturbs the run. Ids need none of it."""
        if self.ids is not None or not self.target.counts_tokens:
            return
        limit = asyncio.Semaphore(_AT_ONCE)

        async def fit(segment: Segment, reserve: int) -> None:
            async with limit:
                await self.texts.text(segment, reserve)

        wanted = {
            (segment, self._reserve(t, i))
            for session in load.sessions
            for t, turn in enumerate(session.turns)
            for i, segment in enumerate(turn.new)
        }
        await asyncio.gather(*(fit(segment, reserve) for segment, reserve in sorted(wanted, key=repr)))

    def _reserve(self, turn: int, place: int) -> int:
        return self.target.template_tokens if turn == 0 and place == 0 else 0

    async def text(self, segment: Segment, turn: int, place: int) -> str:
        return await self.texts.text(segment, self._reserve(turn, place))


class Conversation:
    """One session's state: ids, a text, or messages, as the target takes them."""

    def __init__(self, contents: Contents, session: int, name: str = "") -> None:
        self._contents = contents
        self._session = session
        self._name = name
        self._turn = 0
        self._ids: list[int] = []
        self._text = ""
        self._messages: list[dict[str, str]] = []

    async def body(self, turn: Turn) -> bytes:
        """The request of the next turn."""
        return self._contents.target.body(
            await self._prompt(turn), turn, self._contents.session(self._session, self._name)
        )

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt made last, where that is exact."""
        return len(self._ids) if self._contents.ids is not None else None

    async def _prompt(self, turn: Turn) -> Any:
        ids = self._contents.ids
        if ids is not None:
            for segment in turn.new:
                self._ids += ids.ids(segment)
            return self._ids
        texts = [await self._contents.text(s, self._turn, i) for i, s in enumerate(turn.new)]
        if self._contents.target.options.api == "completions":
            self._text = " ".join(filter(None, [self._text, *texts]))
            return self._text
        for segment, text in zip(turn.new, texts, strict=True):
            last = self._messages[-1] if self._messages else None
            if last is not None and last["role"] == segment.role:
                last["content"] += " " + text
            else:
                self._messages.append({"role": segment.role, "content": text})
        return self._messages

    def answered(self, turn: Turn, reply: Reply) -> None:
        """Take the answer into the conversation: its ids if the server gave them, else its text or a substitute."""
        ids = self._contents.ids
        text = "".join(reply.text)
        if ids is not None:
            substitute = Segment(f"answer/{self._session}/{self._turn}", turn.output)
            self._ids += reply.token_ids or ids.ids(substitute)
        elif self._contents.target.options.api == "completions":
            self._text += text
        else:
            self._messages.append({"role": "assistant", "content": text})
        self._turn += 1
