"""What owning, renting and buying tokens come to for one design, and where they break even."""

from dataclasses import dataclass

from shoal.plan.cost import total
from shoal.plan.designs import Design
from shoal.plan.question import Question
from shoal.plan.words import usd

HOURS_PER_MONTH = 730.0
FACILITY = 1.3
"""Facility power over that of devices (PUE). A judgement: efficient halls reach 1.1, old ones 1.6."""
HOST_SHARE = 0.35
"""Power of hosts, switches and fans over that of their accelerators. A judgement: an 8 × H100 server is rated at
10.2 kW, 5.6 kW of it accelerators; it seldom draws the rest in full."""


@dataclass(frozen=True, slots=True)
class Paying:
    """US dollars per hour for the devices of a design; None where no price is known."""

    owned: float | None
    rented: float | None
    kilowatts: float | None
    """With hosts and cooling, at rated power of the devices."""
    output_per_hour: float
    """Output tokens in an average hour of the question's demand."""
    input_per_output: float

    @property
    def share_of_hours(self) -> float | None:
        """Share of hours in use above which owning is cheaper than renting by the hour."""
        if self.owned is None or self.rented is None or self.rented <= 0:
            return None
        return self.owned / self.rented


def paying(question: Question, design: Design) -> Paying:
    """Both bases of price and the power of a design, spares included."""
    load = question.workload
    watts = total([(part.watts, count) for part, count in design.parts])
    return Paying(
        owned=total([(part.price_owned, count) for part, count in design.parts]),
        rented=total([(part.price_rented, count) for part, count in design.parts]),
        kilowatts=None if watts is None else watts * (1.0 + HOST_SHARE) * FACILITY / 1e3,
        output_per_hour=design.demand / load.peak_to_mean * 3600.0,
        input_per_output=load.input.mean / load.output.mean,
    )


def paying_lines(question: Question, design: Design) -> tuple[str, ...]:
    """The same in sentences."""
    found = paying(question, design)
    lines: list[str] = []
    if found.owned is not None and found.rented is not None and found.share_of_hours is not None:
        month_owned, month_rented = found.owned * HOURS_PER_MONTH, found.rented * HOURS_PER_MONTH
        share = found.share_of_hours
        verdict = (
            f"owning is cheaper from {share:.0%} of the hours on"
            if share < 1
            else "renting is cheaper whatever the hours"
        )
        lines.append(
            f"Owned, the devices come to {usd(month_owned)} a month, in use or not; rented, to "
            f"{usd(month_rented)} if kept all month: {verdict}."
        )
    per_hour = found.owned if question.basis == "owned" else found.rented
    if per_hour is not None:
        million = per_hour / found.output_per_hour * 1e6
        alike = usd(million / (1.0 + found.input_per_output))
        lines.append(
            f"An API breaks even at {alike} a million tokens, input and output alike, or {usd(million)} a million "
            "output tokens with input free; at that demand all day."
        )
    if found.kilowatts is not None:
        lines.append(
            f"Power with hosts ({HOST_SHARE:.0%} more) and cooling ({FACILITY:g} times all): "
            f"{found.kilowatts:,.1f} kW at most; both factors are judgements."
        )
    return tuple(lines)
