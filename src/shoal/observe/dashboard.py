"""The dashboard page: one file of plain HTML and JavaScript that loads nothing from elsewhere."""

from functools import lru_cache
from importlib.resources import files

HTML = "text/html; charset=utf-8"


@lru_cache(maxsize=1)
def page() -> bytes:
    """The page. It polls `/api/fleet` on the address that it came from."""
    return files("shoal.observe").joinpath("dashboard.html").read_bytes()
