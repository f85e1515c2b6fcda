"""A plan as one HTML file: no script, no other file, readable on a phone and on paper."""

from collections.abc import Iterable, Sequence
from html import escape

from shoal.plan.breakdown import NAMES
from shoal.plan.cost import distinct
from shoal.plan.designs import Plan, Ranked
from shoal.plan.explain import Explanation
from shoal.plan.report.svg import Bar, Series, bars, lines, stacked
from shoal.plan.restate import restate
from shoal.plan.words import milliseconds, seconds, usd

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid var(--line)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;width:100%}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}
svg{width:100%;height:auto;font:13px system-ui,sans-serif}
svg text{fill:currentColor}.grid{stroke:#8884}.whisker{stroke:currentColor;stroke-width:2}
.mid{text-anchor:middle}.end{text-anchor:end}svg .inside{fill:#fff}
.legend{font-size:.85rem;display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.3rem 0}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
.chosen td{background:var(--soft);font-weight:600}.k{font-size:.8rem;opacity:.75}
footer{margin-top:2rem;font-size:.85rem;opacity:.75}
"""


def html_report(plan: Plan, explanation: Explanation, top: int = 12) -> str:
    """The whole report as HTML text."""
    name = escape(plan.question.model.name)
    body = [
        f"<h1>Serving {name}</h1>",
        f"<p class=k>{escape(restate(plan.question))}</p>",
        *(f"<p>{escape(line)}</p>" for line in explanation.summary),
    ]
    if plan.best is not None:
        shown = distinct(plan.ranked, top)
        body += [
            _section("Designs", _designs(shown) + _cost_bars(shown)),
            _section("Speed for a user against throughput of a device", _fronts(plan, shown)),
            _section("What a token's time is made of", _terms(explanation)),
        ]
    body += [
        _section("The ladder", _ladder(explanation)),
        _section("What binds", _list(explanation.binding)),
        _section("Prefix reuse", _list(explanation.prefix)),
        _section("What would change this answer most", _list(e.sentence for e in explanation.levers)),
        _section("What would change it", _list(flip.sentence for flip in explanation.flips)),
        _section("Traffic and links", _list(use.sentence for use in explanation.links)),
        _section("Splitting prefill from decode", _list(explanation.splitting)),
        _section("Owning, renting, buying tokens", _list(explanation.paying)),
        _section("The other accelerators", _list(explanation.parts)),
        _section("Rejected", _list(explanation.rejected)),
        _section("Mind", _list(f"{c.topic}: {c.text}" for c in explanation.cautions)),
        _section("Figures and where they come from", _figures(explanation)),
    ]
    footer = (
        f"<footer>{plan.considered:,} layouts considered, {len(plan.ranked):,} designs serve, splits included. "
        "Designs with the "
        "same # "
        "are too close to call. Intervals should hold nine times in ten. Classes: published, vendor (a maker's "
        "data "
        "sheet), calculated, measured.</footer>"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Serving {name}</title><style>{_STYLE}</style></head><body>{''.join(body)}{footer}</body></html>"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}" if content else ""


def _list(lines_: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines_)
    return f"<ul>{items}</ul>" if items else ""


def _designs(shown: Sequence[Ranked]) -> str:
    head = "".join(
        f'<th class="{kind}">{name}</th>'
        for name, kind in (
            ("#", "n"), ("Devices", "n"), ("Design", ""), ("TTFT", ""), ("TPOT", ""), ("$/Mtok out", "n"),
            ("$/hour", "n"), ("tok/s/user", "n"), ("tok/s/device", "n"), ("kW", "n"),
        )
    )  # fmt: skip
    rows = []
    for place, entry in enumerate(shown):
        d = entry.design
        cost = d.cost
        money = "no price" if cost is None else (
            f"{usd(cost.per_million_output.mean)}<br><span class=k>{cost.per_million_output.low:.2g}–"
            f"{cost.per_million_output.high:.2g}</span>"
        )  # fmt: skip
        cells = [
            ("n", str(entry.group)), ("n", f"{d.devices:,}"), ("", escape(d.name)), ("", seconds(d.ttft)),
            ("", milliseconds(d.tpot) + ("" if d.sure else " ?")), ("n", money),
            ("n", "" if cost is None else f"{cost.per_hour:,.2f}"), ("n", f"{d.per_user:,.0f}"),
            ("n", f"{d.per_device:,.0f}"), ("n", f"{d.energy.kilowatts:,.1f}" if d.energy else ""),
        ]  # fmt: skip
        row = "".join(f'<td class="{kind}">{text}</td>' for kind, text in cells)
        rows.append(f'<tr class="{"chosen" if place == 0 else ""}">{row}</tr>')
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _cost_bars(shown: Sequence[Ranked]) -> str:
    items = []
    for entry in shown:
        cost = entry.design.cost
        if cost is not None:
            each = cost.per_million_output
            items.append(Bar(entry.design.name, each.mean, each.low, each.high, usd(each.mean)))
    return bars(items, "US dollars a million output tokens, with intervals")


def _fronts(plan: Plan, shown: Sequence[Ranked]) -> str:
    best = tuple((point.per_user, point.per_device) for point in plan.front)
    series = [Series("best of all designs", best)]
    for entry in shown[:5]:
        if not entry.design.split:
            series.append(Series(entry.design.name, entry.design.front))
    return lines(series, "tokens a second for a user", "tokens a second of a device", "Throughput against speed")


def _terms(explanation: Explanation) -> str:
    if explanation.terms is None:
        return ""
    shares = [(NAMES[t.name], t.share, f"{t.seconds * 1e3:.3g} ms") for t in explanation.terms.tpot]
    return stacked(shares, "Shares of the time of one output token")


def _ladder(explanation: Explanation) -> str:
    rows = "".join(
        f'<tr class="{"chosen" if r.verdict == "chosen" else ""}"><td>{r.number}</td><td>{escape(r.name)}</td>'
        f"<td>{escape(r.verdict)}</td><td>{escape(r.reason)}</td></tr>"
        for r in explanation.ladder
    )
    return f'<div class="scroll"><table>{rows}</table></div>' if rows else ""


def _figures(explanation: Explanation) -> str:
    rows = "".join(
        f"<tr><td>{escape(f.name)}</td><td>{escape(f.text)}</td><td>{f.kind}</td><td "
        f"class=k>{escape(f.source)}</td></tr>"
        for f in explanation.figures
    )
    return f'<div class="scroll"><table>{rows}</table></div>' if rows else ""
