"""What a model runs on: `Accelerator`, `Link` and `Cluster`, with the provenance of every figure.

Base units throughout: bytes, bytes a second (a link: in each direction), FLOP/s (dense), watts, US dollars an hour.
"""

from dataclasses import dataclass
from typing import Literal

from shoal.specs.errors import SpecError

FigureClass = Literal["published", "vendor", "calculated", "measured"]
"""published: in an open repository, paper or guide · vendor: the maker's data sheet · calculated: derived here from
other figures, by a rule the source states · measured: on the machine that the source names."""

FIGURE_CLASSES: tuple[FigureClass, ...] = ("published", "vendor", "calculated", "measured")
COMPUTE_DTYPES = ("fp32", "bf16", "fp8", "int8", "fp4")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the catalogue and where it comes from."""

    value: float
    """In base units."""
    text: str
    """As written in the catalogue, e.g. "3.35 TB/s"."""
    source: str
    date: str
    """When the source was read or measured: YYYY, YYYY-MM or YYYY-MM-DD."""
    kind: FigureClass


@dataclass(frozen=True, slots=True)
class Link:
    """What joins devices."""

    name: str
    bandwidth: float
    """Bytes a second in each direction, a device."""
    domain: int | None = None
    """How many devices it joins at this speed; None: as many as there are."""
    latency: float | None = None
    """Seconds for a message of no length, if known."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of device, with what surrounds it in a server."""

    name: str
    vendor: str
    architecture: str
    """The generation that kernels are written for: `hopper`, `blackwell`, `cdna3`, `ada`, `avx512`, …"""
    memory_bytes: float
    """Nominal memory: "80 GB" is 80e9 bytes, whatever the driver reports."""
    bandwidth: float
    """Memory bandwidth, bytes/s."""
    rates: tuple[tuple[str, float], ...]
    """Dense FLOP/s by dtype (`COMPUTE_DTYPES`), only those that the hardware has."""
    scale_up: Link
    """The fast link inside the domain: NVLink, Infinity Fabric, or PCIe where there is nothing better."""
    nic: Link | None
    """The device's own share of the network between domains; None: it has none that is known."""
    devices_per_node: int
    reported_bytes: float | None = None
    """Total memory as the driver reports it (what vLLM's utilization is a share of), if known."""
    watts: float | None = None
    price_owned: float | None = None
    """US dollars a device-hour when bought; None: unknown."""
    price_rented: float | None = None
    """US dollars a device-hour when rented; None: unknown."""
    aliases: tuple[str, ...] = ()
    figures: tuple[tuple[str, Figure], ...] = ()
    """Provenance by field name (`memory`, `bandwidth`, `rates.bf16`, `scale_up.bandwidth`, …)."""
    by_name_only: bool = False
    """A search considers it only where it is named."""

    @property
    def device_bytes(self) -> float:
        """The memory an engine sees: what the driver reports, or the nominal figure where that is unknown."""
        return self.memory_bytes if self.reported_bytes is None else self.reported_bytes

    def supports(self, dtype: str) -> bool:
        """Whether the hardware multiplies in this dtype (weights of another are converted on the fly)."""
        return any(known == dtype for known, _ in self.rates)

    def rate(self, dtype: str) -> float:
        """Dense FLOP/s with operands of `dtype`; where the hardware lacks it, that of the next wider one it has.

        Raises `SpecError` for a dtype that is not one of `COMPUTE_DTYPES`.
        """
        wider = {"fp4": ("fp8", "bf16", "fp32"), "fp8": ("bf16", "fp32"), "int8": ("bf16", "fp32")}
        for candidate in (dtype, *wider.get(dtype, ("fp32",))):
            for known, rate in self.rates:
                if known == candidate:
                    return rate
        raise SpecError("dtype", dtype, f"one of {', '.join(COMPUTE_DTYPES)} that {self.name} has a rate for")

    def price(self, basis: Literal["owned", "rented"] = "owned") -> float | None:
        """US dollars a device-hour on this basis; None: unknown."""
        return self.price_owned if basis == "owned" else self.price_rented

    @property
    def domain(self) -> int:
        """Devices that the scale-up link joins: a server's, or more where it leaves the server (NVL72)."""
        return self.scale_up.domain or self.devices_per_node


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices of one kind: `nodes` servers of `devices_per_node`, numbered node by node."""

    accelerator: Accelerator
    nodes: int
    devices_per_node: int
    name: str = ""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise SpecError("cluster.nodes", self.nodes, "1 or more")
        if self.devices_per_node < 1:
            raise SpecError("cluster.devices_per_node", self.devices_per_node, "1 or more")

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node
