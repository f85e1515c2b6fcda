"""What the routes share: the engine once it is loaded, the options of the server, and whether it is leaving."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shoal.engine.frontend import Frontend
from shoal.engine.outputs import EngineStats, RequestOutput
from shoal.engine.request import EngineRequest
from shoal.http.errors import ApiError, unavailable
from shoal.server.metrics import ServerMetrics
from shoal.server.options import ServerOptions
from shoal.server.responses.store import ResponseStore

if TYPE_CHECKING:
    from shoal.engine.pooling.engine import PoolingEngine


class Engine(Protocol):
    """What the server asks of an engine; `AsyncEngine` is the one, and a fleet's tests may bring another."""

    @property
    def frontend(self) -> Frontend:
        """Makes the requests that `stream` takes."""

    @property
    def healthy(self) -> bool: ...
    def stats(self) -> EngineStats: ...
    def stream(self, request: EngineRequest) -> AsyncGenerator[RequestOutput, None]:
        """Its outputs as they come; closing the generator aborts it."""


class ServerState:
    """Owned by the event loop; only the engine's own thread-safe methods are called from elsewhere."""

    def __init__(self, options: ServerOptions, model_name: str, created: int, adapters: Sequence[str] = ()) -> None:
        self.options = options
        self.model_name = model_name
        self.names = tuple(dict.fromkeys((model_name, *options.aliases)))
        """All of the model itself."""
        self.adapters = tuple(adapters)
        """Further names, each the model with a LoRA adapter."""
        self.created = created
        self.metrics = ServerMetrics(model_name)
        self.responses = ResponseStore()
        self.draining = False
        self.live: set[asyncio.Task[Any]] = set()
        """Requests being answered."""
        self._engine: Engine | None = None
        self._pooling: PoolingEngine | None = None

    def attach(self, engine: Engine) -> None:
        """The model is loaded: from now on requests are served."""
        self._engine = engine
        self.metrics.watch(engine.stats)

    def attach_pooling(self, engine: "PoolingEngine") -> None:
        """As `attach`, of a model that gives vectors or scores."""
        self._pooling = engine
        self.metrics.watch(engine.stats)

    def cancel_requests(self) -> None:
        """End every request that is still being answered, with an error that says the server goes away."""
        for task in tuple(self.live):
            task.cancel()

    @property
    def not_ready(self) -> str | None:
        """Why requests can't be served now; None: they can."""
        if self.draining:
            return "the server is shutting down"
        engine = self._engine or self._pooling
        if engine is None:
            return "the model is still loading"
        if not engine.healthy:
            return "the engine has stopped"
        return None

    def _check_ready(self) -> None:
        if (reason := self.not_ready) is not None:
            loading = self._engine is None and self._pooling is None
            raise unavailable(reason, "shutting_down" if self.draining else "loading" if loading else "engine_dead")

    def engine(self) -> Engine:
        """The engine, or `ApiError`: 503 that says why there is none, 400 for a model that doesn't generate."""
        self._check_ready()
        if self._engine is None:
            raise self._unsupported(
                "gives vectors or scores and generates no text; use /v1/embeddings or /v1/score"
            )
        return self._engine

    def pooling(self) -> "PoolingEngine":
        """As `engine`, of a model that gives vectors or scores."""
        self._check_ready()
        if self._pooling is None:
            raise self._unsupported(
                "generates text and gives no vectors or scores: its files don't declare how states are pooled "
                "(sentence-transformers' modules.json, or a ...ForSequenceClassification architecture)"
            )
        return self._pooling

    def _unsupported(self, why: str) -> ApiError:
        return ApiError(400, f"model {self.model_name!r} {why}", param="model", code="unsupported_model")

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence in tokens; None: not known yet."""
        limits = self._engine.frontend if self._engine is not None else self._pooling
        return limits.max_model_len if limits is not None and self.not_ready is None else None

    @property
    def max_prompt_bytes(self) -> int | None:
        """Bytes of text that can fit a context at the most; None: not known."""
        return (
            self._engine.frontend.max_prompt_bytes if self._engine is not None and self.not_ready is None else None
        )

    def check_model(self, name: str | None) -> None:
        if name is not None and name not in self.names and name not in self.adapters:
            served = ", ".join(repr(n) for n in (*self.names, *self.adapters))
            raise ApiError(
                404,
                f"model {name[:200]!r} is not served here; this server has {served}",
                param="model",
                code="model_not_found",
            )
