"""`shoal dashboard`: hand out the Grafana dashboard of a fleet."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Hand out the Grafana dashboard of a fleet.")


class DashboardError(OSError):
    """The file can't be written."""


@app.callback()
def _commands() -> None:
    """Hand out the Grafana dashboard of a fleet."""


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="File to write; - for standard output.")] = Path("-"),
    force: Annotated[bool, typer.Option(help="Write over a file that exists.")] = False,
) -> None:
    """Write the dashboard as JSON, to import in Grafana (Dashboards, New, Import) or to provision.

    Its panels ask a Prometheus data source for the metrics that a fleet serves at /metrics.
    """
    from shoal.observe.dashboard import grafana

    if str(path) == "-":
        typer.echo(grafana().decode(), nl=False)
        return
    try:
        with path.open("wb" if force else "xb") as file:
            file.write(grafana())
    except FileExistsError:
        raise DashboardError(f"{path} exists; --force writes over it") from None
    except OSError as error:
        raise DashboardError(f"cannot write {path}: {error.strerror}") from None
