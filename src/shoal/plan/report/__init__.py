"""A plan as JSON and as one self-contained HTML page."""

from shoal.plan.report.data import plan_data
from shoal.plan.report.page import html_report

__all__ = ["html_report", "plan_data"]
