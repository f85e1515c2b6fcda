"""The engine behind a server: the core runs in a thread of its own, requests and answers cross by queues.

event loop                              engine thread
stream() ──── add / abort ──► commands ──► core.add / core.abort
    ▲                                      core.step()
    └── asyncio.Queue ◄── call_soon_threadsafe ── outputs of the step
"""

import asyncio
import logging
import queue
import secrets
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor

from shoal.engine.core import EngineCore
from shoal.engine.errors import EngineDead, EngineError, InvalidRequest
from shoal.engine.frontend import Frontend
from shoal.engine.handoff.transfers import KvTransfers
from shoal.engine.kv.blocks import KvBlocks
from shoal.engine.load import load_engine
from shoal.engine.options import EngineOptions
from shoal.engine.outputs import EngineStats, Observer, RequestOutput
from shoal.engine.request import EngineRequest
from shoal.policy.batching import RequestRefused

log = logging.getLogger("shoal.engine")

Command = Callable[[EngineCore], None]


class AsyncEngine:
    """One replica for asyncio callers. Every method is safe from the event loop that started it."""

    def __init__(self, core: EngineCore, frontend: Frontend, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self.frontend = frontend
        """Makes the requests that `stream` takes; callable from any thread."""
        self._loop = loop
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._streams: dict[str, asyncio.Queue[RequestOutput]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._dead: str | None = None
        self._transfers: KvTransfers | None = None
        self._thread = threading.Thread(target=self._run, name="shoal-engine", daemon=True)
        self._thread.start()

    @classmethod
    async def start(
        cls, options: EngineOptions, observer: Observer | None = None, kv_key: str | None = None
    ) -> "AsyncEngine":
        """Load the model in a thread and begin serving. Raises EngineError or SourceError saying what is wrong.

        `kv_key` is shared by replicas that hand KV to each other; None: nobody else's is taken.
        """
        loop = asyncio.get_running_loop()
        # Not the loop's own executor: threads of the kernels would inherit the priority of its workers.
        loader = ThreadPoolExecutor(1, "shoal-load")
        try:
            core, frontend = await loop.run_in_executor(loader, load_engine, options, observer)
        finally:
            loader.shutdown(wait=False)
        engine = cls(core, frontend, loop)
        if options.kv_transfer is not None:
            await engine._share_kv(options.kv_transfer, kv_key or secrets.token_hex(32))
        return engine

    async def _share_kv(self, address: str, key: str) -> None:
        blocks = self._core.kv_store
        assert isinstance(blocks, KvBlocks)
        self._transfers = KvTransfers(
            blocks, self._core.stats().kv_block_tokens, key.encode(), lambda work: self._commands.put(work)
        )
        try:
            await self._transfers.start(address)
        except EngineError:
            await self.close()
            raise

    @property
    def healthy(self) -> bool:
        return self._dead is None and self._thread.is_alive()

    def stats(self) -> EngineStats:
        stats = self._core.stats()
        return stats if self._transfers is None else self._transfers.counted(stats)

    async def stream(self, request: EngineRequest) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of a prepared request. Closing the generator aborts it."""
        request_id = request.request_id
        if not self.healthy:
            raise EngineDead(self._dead or "the engine has stopped")
        if request_id in self._streams:
            raise InvalidRequest("request_id", request_id, "an id that no live request has")
        stream: asyncio.Queue[RequestOutput] = asyncio.Queue()
        self._streams[request_id] = stream
        self._idle.clear()
        remaining = request.params.n
        try:
            if self._transfers is not None:
                await self._transfers.take_over(request)
            await self._added(request)
            while remaining:
                output = await stream.get()
                remaining -= output.finished
                yield output
        finally:
            del self._streams[request_id]
            if not self._streams:
                self._idle.set()
            while not stream.empty():
                self._withdraw(stream.get_nowait())
            if remaining:
                self._commands.put(lambda core: core.abort(request_id))

    async def _added(self, request: EngineRequest) -> None:
        """Hand the request over; what the core refuses is raised here."""
        answer: Future[None] = Future()

        def add(core: EngineCore) -> None:
            if not answer.set_running_or_notify_cancel():
                return  # the caller left before its turn came
            try:
                core.add(request)
            except Exception as error:
                answer.set_exception(error)
            else:
                answer.set_result(None)

        self._commands.put(add)
        if not self.healthy:  # it may have died just before the command was put
            raise EngineDead(self._dead or "the engine has stopped")
        try:
            await asyncio.wrap_future(answer)
        except RequestRefused as error:
            raise InvalidRequest("prompt", f"{len(request.prompt)} tokens", str(error)) from error

    def _run(self) -> None:
        """The engine thread: commands first, then a step, for as long as there is either."""
        core = self._core
        try:
            while self._run_commands(block=not core.has_work()):
                if core.has_work():
                    self._publish(core.step())
        except Exception as error:
            if not isinstance(error, EngineDead):
                log.exception("the engine loop failed")
            self._fail(f"{error}" if isinstance(error, EngineDead) else "the engine loop failed")
        finally:
            core.close()

    def _run_commands(self, block: bool) -> bool:
        """Run the commands that are waiting; False when told to stop."""
        while True:
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return True
            if command is None:
                return False
            command(self._core)
            block = False

    def _fail(self, reason: str) -> None:
        self._dead = reason
        self._publish(self._core.fail_all(reason))
        # Requests that come in while it dies are refused by the core, which now knows why.
        while not self._commands.empty():
            if (command := self._commands.get()) is not None:
                command(self._core)

    def _publish(self, outputs: list[RequestOutput]) -> None:
        if outputs and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, outputs)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if self._transfers is not None:
                output = self._transfers.announce(output)
            if stream is not None:
                stream.put_nowait(output)
            else:
                self._withdraw(output)

    def _withdraw(self, output: RequestOutput) -> None:
        """Nobody hears of this output: what is held for its sake is held in vain."""
        if self._transfers is not None:
            self._transfers.withdraw(output)

    async def drain(self, timeout: float) -> bool:
        """Wait until no request is live, at most `timeout` seconds; whether that came about."""
        deadline = self._loop.time() + timeout
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        if self._transfers is not None:
            await self._transfers.drain(max(0.0, deadline - self._loop.time()))
        return True

    async def close(self, timeout: float = 10.0) -> None:
        """Stop the engine thread after the step under way. Live requests get nothing more."""
        if self._transfers is not None:
            await self._transfers.close()
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, timeout)
        if self._thread.is_alive():
            raise EngineDead(f"the engine thread did not stop within {timeout:g} s")

    def check(self) -> None:
        """Prove that nothing leaked. For tests, when idle."""
        self._core.check()
