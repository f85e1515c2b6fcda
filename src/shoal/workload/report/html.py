"""A report as one HTML page: no script, nothing fetched, readable on a phone, light or dark as its reader is."""

from html import escape
from pathlib import Path

from shoal.workload.report.document import Report, Section, Table
from shoal.workload.report.svg import svg

_STYLE = """
:root{color-scheme:light dark;--line:#8886;--dim:#777;--warn:#b0413e}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem;border-bottom:1px solid var(--line)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.2rem .7rem .2rem 0;text-align:right;vertical-align:top}
th:first-child,td:first-child,.plain td{text-align:left}th{color:var(--dim);font-weight:600}
td,th{white-space:nowrap}td small{display:block;color:var(--dim)}
th:first-child,td:first-child{position:sticky;left:0;background:Canvas}
.plain td:last-child{white-space:normal;overflow-wrap:anywhere}
.words td:last-child,.words th:last-child{white-space:normal;text-align:left;min-width:14rem}
figure{margin:1rem 0}figcaption{font-weight:600}svg{width:100%;height:auto;max-width:40rem}
svg text{fill:currentColor;font-size:12px}
.grid{stroke:var(--line);stroke-width:.5}.axis{stroke:currentColor;fill:none}
.mark{stroke:var(--warn);stroke-dasharray:5 4}
.warn{color:var(--warn)}.note,dt{color:var(--dim)}dd{margin:0 0 .4rem 1rem}
pre{overflow-x:auto;padding:.6rem;border:1px solid var(--line);border-radius:4px}
.partial{background:var(--warn);color:#fff;padding:.2rem .6rem;border-radius:4px}
"""


def html(report: Report) -> str:
    """The whole page."""
    title = escape(report.title)
    partial = '<p><span class="partial">Partial: stopped before its end</span></p>' if report.partial else ""
    facts = _table(Table(("", ""), (("date", report.created), *report.facts)))
    sections = "".join(_section(s) for s in report.sections)
    meanings = "".join(f"<dt>{escape(n)}</dt><dd>{escape(m)}</dd>" for n, m in report.definitions)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{partial}{facts}{sections}"
        f"<h2>What the figures mean</h2><dl>{meanings}</dl>"
        f"<h2>To run it again</h2><pre>{escape(report.command)}</pre></body></html>\n"
    )


def write_html(path: Path, report: Report) -> None:
    path.write_text(html(report), encoding="utf-8")


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
    parts += [f'<p class="warn">Warning: {escape(w)}</p>' for w in section.warnings]
    parts += [_table(t) for t in section.tables]
    parts += [
        f"<figure><figcaption>{escape(p.title)}</figcaption>{drawn}</figure>"
        for p in section.plots
        if (drawn := svg(p))
    ]
    parts += [f'<p class="note">Note: {escape(n)}</p>' for n in section.notes]
    return "".join(parts)


def _table(table: Table) -> str:
    headed = any(table.header)
    head = "<tr>" + "".join(f"<th>{escape(h)}</th>" for h in table.header) + "</tr>" if headed else ""
    text = _stacked if headed else escape
    rows = "".join("<tr>" + "".join(f"<td>{text(c)}</td>" for c in row) + "</tr>" for row in table.rows)
    kind = ' class="words"' if table.words else "" if headed else ' class="plain"'
    caption = f"<p><b>{escape(table.title)}</b></p>" if table.title else ""
    return f'{caption}<div class="scroll"><table{kind}>{head}{rows}</table></div>'


def _stacked(cell: str) -> str:
    """Return the cell with its interval on a line of its own: a table of eight columns then fits a page."""
    value, bracket, interval = cell.partition(" [")
    return f"{escape(value)}<small>[{escape(interval)}</small>" if bracket else escape(cell)
