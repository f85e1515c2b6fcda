"""The engine of a model that pools: sequences of all requests in batches, in a thread of its own.

event loop                                    pooling thread
pool() ── one job per sequence ──► queue ──►  as many as a step's token budget takes ──► rows
   ▲                                                                                      │
   └──────────────────────────────── futures ◄────────────────────────────────────────────┘
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoal.engine.errors import EngineDead, InvalidOption
from shoal.engine.machine import usable_cores
from shoal.engine.options import EngineOptions
from shoal.engine.outputs import EngineStats
from shoal.engine.pooling.config import PoolingSpec, read_pooling
from shoal.engine.pooling.decoder import Decoder
from shoal.engine.pooling.encoder import Encoder
from shoal.engine.pooling.model import PoolingModel, TokenSequence, pooled
from shoal.engine.pooling.text import TextEncoder
from shoal.engine.sources import model_of

log = logging.getLogger("shoal.engine")


@dataclass(frozen=True, slots=True)
class _Job:
    sequence: TokenSequence
    result: "Future[Tensor]"


class PoolingEngine:
    """One replica of a model that pools, for asyncio callers."""

    def __init__(
        self, model: PoolingModel, spec: PoolingSpec, text: TextEncoder, max_tokens: int, max_sequences: int
    ) -> None:
        """`max_tokens` and `max_sequences` bound a step; a longer sequence has one of its own."""
        self._model, self.spec, self.text = model, spec, text
        self._max_tokens, self._max_sequences = max_tokens, max_sequences
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._held: _Job | None = None
        """Taken from the queue, and too long for the step before."""
        self._running = self._tokens = self._steps = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="shoal-pooling", daemon=True)
        self._thread.start()

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self._model.width

    @property
    def vocab(self) -> int:
        return self._model.vocab

    @property
    def max_model_len(self) -> int:
        return self._model.max_length

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and not self._closed

    async def pool(self, sequences: Sequence[TokenSequence]) -> Tensor:
        """One row per sequence, in order. Cancelled, what hasn't begun isn't computed."""
        if not self.healthy:
            raise EngineDead("the engine has stopped")
        jobs = [_Job(sequence, Future()) for sequence in sequences]
        for job in jobs:
            self._jobs.put(job)
        try:
            return torch.stack(await asyncio.gather(*(asyncio.wrap_future(job.result) for job in jobs)))
        finally:
            for job in jobs:
                job.result.cancel()

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            if not batch:
                continue
            self._running = len(batch)
            try:
                rows = pooled(self._model, self.spec, [job.sequence for job in batch])
            except Exception as error:
                log.exception("a batch of %d sequences failed", len(batch))
                for job in batch:
                    job.result.set_exception(EngineDead(f"the batch failed: {type(error).__name__}"))
            else:
                self._steps += 1
                self._tokens += sum(len(job.sequence.ids) for job in batch)
                for job, row in zip(batch, rows, strict=True):
                    job.result.set_result(row)
            self._running = 0
        while not self._jobs.empty():
            if (left := self._jobs.get()) is not None and left.result.set_running_or_notify_cancel():
                left.result.set_exception(EngineDead("the engine has stopped"))

    def _take(self) -> list[_Job] | None:
        """Wait for a job, and take those that wait with it; None: closed."""
        batch: list[_Job] = []
        tokens = 0
        while len(batch) < self._max_sequences:
            job, self._held = self._held, None
            if job is None:
                try:
                    job = self._jobs.get(block=not batch)
                except queue.Empty:
                    break
            if job is None:
                self._jobs.put(None)  # found again once this batch is done
                return batch or None
            if batch and tokens + len(job.sequence.ids) > self._max_tokens:
                self._held = job
                break
            if job.result.set_running_or_notify_cancel():
                batch.append(job)
                tokens += len(job.sequence.ids)
        return batch

    @property
    def _waiting(self) -> int:
        return self._jobs.qsize() + (self._held is not None)

    def stats(self) -> EngineStats:
        """Safe in any thread."""
        return EngineStats(
            waiting=self._waiting, running=self._running, prompt_tokens=self._tokens, steps=self._steps
        )

    async def drain(self, timeout: float) -> bool:
        """Wait until nothing is computed or waits, at most `timeout` seconds; whether that came about."""
        deadline = asyncio.get_running_loop().time() + timeout
        while self._waiting or self._running:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    async def close(self, timeout: float = 10.0) -> None:
        """Stop the thread after the step under way."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join, timeout)


def open_pooling(options: EngineOptions) -> PoolingEngine | None:
    """The engine of a model that declares that it pools; None: it generates. Raises EngineError or SourceError."""
    options.validate()
    if options.rendezvous != "local":
        return None
    path = model_of(options).path
    spec = read_pooling(path)
    return None if spec is None else load_pooling(options, path, spec)


def load_pooling(options: EngineOptions, path: Path, spec: PoolingSpec) -> PoolingEngine:
    """Read the weights and start. Raises EngineError saying what is wrong."""
    if options.layout.world > 1 or options.rendezvous != "local":
        raise InvalidOption("tp, pp, dp, cp, ep", options.layout.world, "one rank for a model that gives vectors")
    if options.kv_dtype != "auto":
        raise InvalidOption("kv_dtype", options.kv_dtype, "auto for a model that gives vectors")
    for field in ("loras", "kv_transfer", "kv_events"):
        if getattr(options, field):
            raise InvalidOption(field, getattr(options, field), "none for a model that gives vectors")
    device = torch.device(options.device)
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
    torch.set_num_threads(options.threads or usable_cores())
    model: PoolingModel
    if spec.encoder:
        if options.quantize is not None:
            raise InvalidOption("quantize", options.quantize, "none for an encoder")
        model = Encoder(path, spec, dtype, device)
    else:
        model = Decoder(options, path, spec, dtype, device)
    if options.max_model_len is not None:
        model.max_length = min(model.max_length, options.max_model_len)
    text = TextEncoder(path, lower_case=spec.lower_case)
    return PoolingEngine(model, spec, text, options.max_num_batched_tokens, options.max_num_seqs)
