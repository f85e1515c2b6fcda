"""What `fleet.yaml` says: pools, router, admission, keys and limits. `config_file` reads and checks it."""

import dataclasses
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.engine.options import default_name
from shoal.fleet.gateway.config import GatewayConfig, KeyConfig
from shoal.policy.admission import AdmissionConfig
from shoal.policy.breaker import BreakerConfig
from shoal.policy.health import HealthConfig
from shoal.policy.restarts import RestartConfig
from shoal.policy.routing import RouterConfig
from shoal.specs.errors import SpecError
from shoal.specs.layout import Layout

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
EngineKind = Literal["shoal", "vllm", "llamacpp", "sglang", "openai"]


class ConfigError(SpecError):
    """`field` is the path in the file."""


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the replicas of a pool run on, for `shoal simulate`; `serve` doesn't look at it."""

    gpu: Annotated[str, Meta(min_length=1)]
    """A catalogued accelerator."""
    model: str | None = None
    """A catalogued model, where the pool's `model` is the name of something else."""
    weights: str | None = None
    """How weights are stored; default: as the checkpoint."""


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replicas of one model with one engine, layout and role; started here, or attached to by their URLs."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
    model: Annotated[str, Meta(min_length=1)]
    """What the engine loads; with `urls`, the name it is asked for by."""
    served_name: str | None = None
    """The name clients use; default: the last part of `model`."""
    aliases: tuple[str, ...] = ()
    """Further names of it."""
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters that replicas of another engine, or at `urls`, serve besides the model. Those of
    replicas started with the engine shoal are in `options.loras`."""
    weights: str | None = None
    """What its weights are: equal for pools that serve the same ones, however their `model` is written."""
    fallback: bool | Annotated[int, Meta(ge=0, le=100)] = 0
    """Serve its names only while no pool of the same name with a lower number is available; true: 1."""
    engine: EngineKind = "shoal"
    replicas: Annotated[int, Meta(ge=1, le=1024)] = 1
    urls: tuple[str, ...] = ()
    """Replicas that run already; `replicas` is not looked at then."""
    role: Literal["both", "prefill", "decode"] = "both"
    layout: Layout = Layout()
    """Degrees of the parallel axes of one replica."""
    options: dict[str, Any] = {}
    """The engine's own: fields of EngineOptions for `shoal`, command-line options for the others."""
    executable: str | None = None
    """Python of the engine's environment, or its server binary."""
    environment: dict[str, str] = {}
    api_key_env: str | None = None
    """Environment variable with the key that the replicas at `urls` demand."""
    max_inflight: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    """Requests sent to one replica at a time; more wait in the admission queue."""
    threads: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Compute threads of a rank; default: the cores of this machine, shared out among all ranks."""
    hardware: Hardware | None = None
    kv_events: bool = False
    """Started replicas publish what their KV cache holds, and the router reads it."""
    kv_events_urls: tuple[str, ...] = ()
    """Publishers (`tcp://host:port`) of the replicas at `urls`, in their order."""

    @property
    def models(self) -> tuple[str, ...]:
        return (self.served_name or default_name(self.model), *self.aliases)

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """Names of LoRA adapters; unlike aliases they reach the engine as they are."""
        loras = self.options.get("loras", ()) if self.engine == "shoal" else ()
        return (*self.adapters, *(lora["name"] for lora in loras))

    @property
    def served_names(self) -> tuple[str, ...]:
        """Everything that clients may ask its replicas for."""
        return (*self.models, *self.adapter_names)

    @property
    def fallback_order(self) -> int:
        return int(self.fallback)

    @property
    def ranks(self) -> int:
        """Ranks of one replica."""
        return self.layout.with_expert_lanes().world

    @property
    def count(self) -> int:
        return len(self.urls) or self.replicas

    def same_at(self, other: "Pool", url: str) -> bool:
        """Whether the replica that runs at `url` is to be known alike by both."""
        plain = {"replicas": 0, "urls": (), "kv_events_urls": (), "hardware": None}
        alike = msgspec.structs.replace(self, **plain) == msgspec.structs.replace(other, **plain)
        return alike and self._events_at(url) == other._events_at(url)

    def _events_at(self, url: str) -> str | None:
        return dict(zip((u.rstrip("/") for u in self.urls), self.kv_events_urls, strict=False)).get(url)

    def same_replicas(self, other: "Pool") -> bool:
        """Whether a replica of one would serve as one of the other: only their number differs."""
        plain = {"replicas": 0, "hardware": None}
        return msgspec.structs.replace(self, **plain) == msgspec.structs.replace(other, **plain)


class Listen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where clients come in."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """0: any free port."""
    tls_certificate: str | None = None
    """PEM file; with `tls_key`, the endpoint speaks HTTPS only."""
    tls_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call the endpoint; none by default."""


class SupervisorConfig(RestartConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How replicas are started, watched and ended. Times in seconds."""

    start_seconds: Seconds = 900.0
    """From its start, a replica must have generated a token within this."""
    stop_seconds: Seconds = 10.0
    """Between SIGTERM and SIGKILL."""
    drain_seconds: Seconds = 30.0
    """Requests in flight get this long to end when a replica or the fleet goes."""
    log_dir: str | None = None
    """Where replicas' output goes; default: `fleet/logs` in $SHOAL_HOME, $XDG_STATE_HOME/shoal or
    ~/.local/state/shoal."""
    log_bytes: Annotated[int, Meta(ge=4096)] = 8 * 2**20
    """A replica's log file becomes `.1` at this size, and so on up to `.2`."""


class SharedConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where several gateways before the same replicas tell each other of their decisions and their load."""

    redis: str
    """`redis://host:port/0`, `rediss://…` (TLS) or `unix:///path/to/socket`."""
    password_env: str | None = None
    """Environment variable with its password."""
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}$")] = "shoal"
    """Of every key; equal for the gateways of one fleet."""


class FleetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything `shoal serve --config` is told."""

    pools: Annotated[tuple[Pool, ...], Meta(min_length=1)]
    listen: Listen = Listen()
    router: RouterConfig = msgspec.field(default_factory=RouterConfig)
    admission: AdmissionConfig = msgspec.field(default_factory=AdmissionConfig)
    health: HealthConfig = msgspec.field(default_factory=HealthConfig)
    breaker: BreakerConfig = msgspec.field(default_factory=BreakerConfig)
    keys: tuple[KeyConfig, ...] = ()
    gateway: GatewayConfig = msgspec.field(default_factory=GatewayConfig)
    """Limits, deadlines, logs."""
    supervisor: SupervisorConfig = SupervisorConfig()
    shared: SharedConfig | None = None
    """None: this gateway is the only one, or goes by its own knowledge."""
    tracing: bool = False
    """OpenTelemetry spans of gateway and engines, exported as the standard variables say."""

    def gateway_config(self) -> GatewayConfig:
        return dataclasses.replace(self.gateway, keys=self.keys, router=self.router, admission=self.admission)

    @property
    def local_ranks(self) -> int:
        """Ranks that all replicas started here have together."""
        return sum(pool.replicas * pool.ranks for pool in self.pools if not pool.urls)

    @property
    def local_replicas(self) -> int:
        return sum(pool.replicas for pool in self.pools if not pool.urls)
