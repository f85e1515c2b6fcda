"""The dashboards: a page of plain HTML and JavaScript that loads nothing from elsewhere, and Grafana's JSON."""

from functools import lru_cache
from importlib.resources import files

HTML = "text/html; charset=utf-8"


@lru_cache(maxsize=1)
def page() -> bytes:
    """The page. It polls `/api/fleet` on the address that it came from."""
    return files("shoal.observe").joinpath("dashboard.html").read_bytes()


def grafana() -> bytes:
    """Return the Grafana dashboard, JSON: its data source is a variable, Prometheus."""
    return files("shoal.observe").joinpath("grafana.json").read_bytes()
