"""Growth over months in sentences, as rows of a table and as plain data."""

import itertools
import math
from collections.abc import Iterator

from shoal.plan.growth import Grown, Month, room
from shoal.plan.paying import HOURS_PER_MONTH
from shoal.plan.report.data import design_data
from shoal.plan.words import plural, usd

Data = dict[str, object]


def month_rows(grown: Grown) -> list[tuple[str, ...]]:
    """(month, traffic, devices, servers, dollars per hour, dollars per month) of each month, as texts."""
    return [
        (
            str(month.number), traffic(month), f"{month.devices:,}", f"{month.servers:,}",
            "" if month.dollars is None else usd(month.dollars / HOURS_PER_MONTH).removeprefix("$"),
            "" if month.dollars is None else f"{month.dollars:,.0f}",
        )
        for month in grown.months
    ]  # fmt: skip


def traffic(month: Month) -> str:
    """ "175 users" or "3.2 requests/s"."""
    load = month.workload
    return f"{load.rate:,.3g} requests/s" if load.users is None else plural(math.ceil(load.users - 1e-9), "user")


def growth_lines(grown: Grown) -> list[str]:
    """The answer in sentences."""
    if not grown.months:
        return [_failure(grown)]
    return [*_design(grown), *_servers(grown), *_total(grown), *([_failure(grown)] if grown.failed else [])]


def _design(grown: Grown) -> Iterator[str]:
    first, last = grown.months[0].design, grown.months[-1].design
    span = f"over {plural(len(grown.months), 'month')}"
    yield f"Costs least {span}: {first.name} in month 1, {last.name} in month {len(grown.months)}."
    now = grown.cheapest_now
    if now is not None and (now.hardware, now.layout, now.weights) != (first.hardware, first.layout, first.weights):
        yield f"For month 1 alone it would be {now.name}."


def _servers(grown: Grown) -> Iterator[str]:
    months = grown.months
    grows = False
    for before, after in itertools.pairwise(months):
        if after.servers > before.servers:
            grows = True
            if after.servers - before.servers == 1:
                yield f"Server {after.servers} is needed in month {after.number} ({traffic(after)})."
            else:
                yield (
                    f"Servers {before.servers + 1} to {after.servers} are needed in month {after.number} "
                    f"({traffic(after)})."
                )
    if not grows:
        verb = "lasts" if months[0].servers == 1 else "last"
        span = plural(len(months), "month")
        yield f"The {plural(months[0].servers, 'server')} of month 1 {verb} for all {span}."
    most = room(grown)
    if most is None:
        return
    later = _month_of(grown, most)
    tail = f", which growth of {grown.growth.rate:.1%} a month passes in month {later}" if later else ""
    yield f"The servers of month {len(months)} hold up to {plural(most, 'user')}{tail}."


def _month_of(grown: Grown, users: float) -> int | None:
    """The month in which a rate of growth passes so many users; None where it does not grow."""
    start, rate = grown.months[0].workload.users, grown.growth.rate
    if grown.growth.listed or rate <= 0 or start is None:
        return None
    return max(len(grown.months) + 1, math.floor(math.log(users / start) / math.log1p(rate) + 1e-9) + 2)


def _total(grown: Grown) -> Iterator[str]:
    basis = grown.question.basis
    if grown.total is None:
        yield f"No {basis} price is known: chosen by devices."
        return
    last = grown.months[-1].dollars or 0.0
    span = plural(len(grown.months), "month")
    yield f"Total: {usd(grown.total)} {basis} over {span}, {usd(last)} in the last of them."


def _failure(grown: Grown) -> str:
    assert grown.failed is not None
    number = len(grown.months) + 1
    if grown.failed.best is not None:
        return f"From month {number} on the design above no longer serves, only others: {grown.failed.best.name}."
    reason = grown.failed.impossible.message if grown.failed.impossible else "Nothing serves it."
    return f"From month {number} on nothing serves: {reason}"


def growth_data(grown: Grown) -> Data:
    """The same as plain data for JSON: seconds, US dollars."""
    return {
        "feasible": bool(grown.months),
        "months_asked": grown.asked,
        "months": [
            {
                "month": month.number, "users": month.workload.users, "requests_per_second": month.workload.rate,
                "devices": month.devices, "servers": month.servers, "usd": month.dollars,
                "design": design_data(month.design),
            }
            for month in grown.months
        ],
        "usd_total": grown.total,
        "rows": [list(row) for row in month_rows(grown)],
        "sentences": growth_lines(grown),
    }  # fmt: skip
