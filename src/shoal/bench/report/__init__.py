"""What a reader gets: a table on the terminal, JSON, CSV and a self-contained HTML page."""

from shoal.bench.report.document import Plot, Report, Section, Series, Table
from shoal.bench.report.files import write_csv, write_json
from shoal.bench.report.html import write_html
from shoal.bench.report.text import show

__all__ = ["Plot", "Report", "Section", "Series", "Table", "show", "write_csv", "write_html", "write_json"]
