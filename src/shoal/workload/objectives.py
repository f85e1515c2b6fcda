"""Latency objectives of a request, and which requests met them all."""

from dataclasses import dataclass

from shoal.specs.errors import SpecError
from shoal.specs.traffic import positive
from shoal.workload.records import Record

SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request has to meet, all of it, in seconds; None: not asked for."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    share: float = SHARE
    """The share of requests, 0 to 1, that has to meet every objective for a rate to count as served."""

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot", "e2e"):
            value = getattr(self, name)
            if value is not None:
                positive(f"objectives.{name}", value, 86_400)
        if not 0 < self.share <= 1:
            raise SpecError("objectives.share", self.share, "a share above 0 and at most 1")

    @property
    def any(self) -> bool:
        return self.ttft is not None or self.tpot is not None or self.e2e is not None

    def __str__(self) -> str:
        parts = [
            f"{name.upper()} ≤ {value * 1e3:g} ms"
            for name, value in (("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e))
            if value is not None
        ]
        return " and ".join(parts) if parts else "a whole answer"

    def missed(self, record: Record) -> tuple[str, ...]:
        """The objectives that a request failed; ("outcome",) if it has no whole answer."""
        if not record.ok or record.e2e is None:
            return ("outcome",)
        missed = []
        if self.ttft is not None and (record.ttft is None or record.ttft > self.ttft):
            missed.append("ttft")
        # A single token has no time per further token, so it can't miss this objective.
        if self.tpot is not None and record.tpot is not None and record.tpot > self.tpot:
            missed.append("tpot")
        if self.e2e is not None and record.e2e > self.e2e:
            missed.append("e2e")
        return tuple(missed)

    def met(self, record: Record) -> bool:
        return not self.missed(record)
