"""What a reader gets: a table on the terminal, JSON, CSV and a self-contained HTML page."""

from shoal.workload.report.document import Plot, Report, Section, Series, Table
from shoal.workload.report.files import write_csv, write_json
from shoal.workload.report.html import write_html
from shoal.workload.report.text import show

__all__ = ["Plot", "Report", "Section", "Series", "Table", "show", "write_csv", "write_html", "write_json"]
