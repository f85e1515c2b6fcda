"""A server on a real socket over an engine that speaks a script: what is tested here is HTTP, not inference.

The script engine keeps the engine's contract (deltas, abort when closed) and counts who is alive, so that a
request the server forgets to close shows.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from threading import Thread
from typing import Any

import httpx
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from sampling_kit import accepts
from shoal.engine.errors import InvalidParameter, InvalidRequest
from shoal.engine.outputs import EngineStats, RequestOutput
from shoal.engine.request import EngineRequest
from shoal.engine.sampling.defaults import SamplingDefaults
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.params import GuidedParams, SamplingParams
from shoal.engine.text.convert import ConvertedTokenizer, TokenizerMeta
from shoal.engine.text.tokenizer import Tokenizer
from shoal.policy.batching.plan import TokenLogprobs
from shoal.server.state import ServerState
from shoal.specs.model import ModelSpec, NormSpec

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' and not m.tool_call_id %}{{ raise_exception('no id') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte, ids 0 … 255 in byte order, and 256 as end of sequence."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<eos>"])
    meta = TokenizerMeta({"default": TEMPLATE}, {"eos_token": "<eos>"}, None, (256,))
    return Tokenizer(ConvertedTokenizer(inner.to_str(), meta))


class ScriptEngine:
    """Answers every request with `answer`, one byte a token; waits for `gate` before the first one."""

    model_name = "script"
    reasoning = "auto"
    max_model_len = 1000
    vocab_size = 257
    adapters = ()
    spec = ModelSpec(
        name="script",
        architecture="Script",
        model_type="script",
        vocab=257,
        hidden=1,
        layers=(),
        norm=NormSpec(1e-5),
        tied_embeddings=True,
        max_position=1000,
        dtype="float32",
        bos_token_id=None,
        eos_token_ids=(256,),
    )

    def __init__(self) -> None:
        self.tokenizer = byte_tokenizer()
        self.compiler = GuidedCompiler(self.tokenizer.json, self.vocab_size, (256,))
        self.live: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """The script as a test expects it."""
        self.healthy = True
        longest = self.tokenizer.max_token_bytes
        self.max_prompt_bytes = self.max_model_len * longest if longest is not None else None
        self.sampling_defaults = SamplingDefaults()
        self.reasoning = "auto"
        self.answer = "Hello, wörld!"
        self.finish_reason = "stop"
        self.stop_reason: str | None = None
        self.error: str | None = None
        self.constraint_failed = False
        self.pause = 0.0
        self.hold_first = False
        self.repeat = 1
        """How often each piece of text is said: makes few tokens fill a socket."""
        self.seen: list[tuple[tuple[int, ...], SamplingParams]] = []
        self.raises: Exception | None = None
        self.refuses: InvalidRequest | None = None

    def stats(self) -> EngineStats:
        return EngineStats(
            waiting=0,
            running=len(self.live),
            kv_total_blocks=100,
            kv_used_blocks=25,
            kv_cached_blocks=5,
            preemptions=3,
            prefix_queried_tokens=70,
            prefix_hit_tokens=30,
            prompt_tokens=80,
            generated_tokens=90,
            steps=11,
        )

    @property
    def frontend(self) -> "ScriptEngine":
        """It checks its requests itself."""
        return self

    def prepare(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        output: Sequence[int] = (),
        **unused: object,
    ) -> EngineRequest:
        assert unused.get("kv_transfer") is None
        assert unused.get("lora") is None
        if self.refuses is not None:
            raise self.refuses
        if params.guided is not None:
            try:
                self.compiler.validate(params.guided)
            except InvalidParameter as error:
                raise InvalidRequest(error.field, error.value, error.accepted) from None
        return EngineRequest(
            request_id=request_id, prompt=tuple(prompt), params=params, priority=priority, output=tuple(output)
        )

    def admits(self, guided: GuidedParams, text: str) -> bool:
        """Whether a constraint admits `text` as a whole answer."""
        return accepts(self.compiler, guided, self.tokenizer, text)

    async def stream(self, request: EngineRequest) -> AsyncGenerator[RequestOutput, None]:
        prompt, params, request_id = request.prompt, request.params, request.request_id
        assert request_id not in self.live
        self.seen.append((prompt, params))
        self.live.add(request_id)
        try:
            if self.raises is not None:
                raise self.raises
            while self.hold_first:  # noqa: ASYNC110 (set by another thread, which an asyncio.Event is not for)
                await asyncio.sleep(0.005)
            for index in range(params.n):
                async for output in self._answer(tuple(prompt), params, request_id, index):
                    yield output
        finally:
            self.live.discard(request_id)

    async def _answer(
        self, prompt: tuple[int, ...], params: SamplingParams, request_id: str, index: int
    ) -> AsyncGenerator[RequestOutput, None]:
        tokens = self.tokenizer.encode(self.answer)
        limit = params.max_tokens if params.max_tokens is not None else len(tokens)
        cut = tokens[:limit]
        asked = ()
        if params.prompt_logprobs is not None:
            asked = tuple(TokenLogprobs((t, 1), (-0.5, -1.5), 1) for t in prompt[1:])
        shown = ""
        for place, token in enumerate(cut):
            await asyncio.sleep(self.pause)
            text = self.tokenizer.decode(cut[: place + 1])
            fresh = "" if text.endswith("\ufffd") else text[len(shown) :]
            shown += fresh
            last = place == len(cut) - 1
            yield RequestOutput(
                request_id=request_id,
                index=index,
                text=fresh * self.repeat,
                token_ids=(token,),
                logprobs=(TokenLogprobs((token, 65, 66), (-0.25, -1.0, float("-inf")), 1),)
                if params.logprobs is not None
                else (),
                finish_reason=("length" if limit < len(tokens) else self.finish_reason) if last else None,
                stop_reason=self.stop_reason if last else None,
                prompt_tokens=len(prompt),
                cached_tokens=2,
                prompt_logprobs=asked if place == 0 else (),
                error=self.error if last else None,
                constraint_failed=last and self.constraint_failed,
            )


class Served:
    """A running server: its URL, its state, and the engine behind it."""

    def __init__(
        self, url: str, state: ServerState, engine: ScriptEngine, loop: asyncio.AbstractEventLoop, thread: Thread
    ) -> None:
        self.url = url
        self.state = state
        self.engine = engine
        self.loop = loop
        self.thread = thread
        """The loop's."""

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, trust_env=False, verify=False)


def eventually(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def prompt_of(served: Served, place: int = -1) -> str:
    """The text of a prompt that the engine saw: of the last one, or the one at `place`."""
    return str(served.engine.tokenizer.decode(served.engine.seen[place][0]))


def named_events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each checked to have an `event:` line that repeats its type."""
    found = []
    for block in response.text.split("\n\n")[:-1]:
        named, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert named == f"event: {event['type']}"
        found.append(event)
    return found
