"""`shoal pull`: bring a model into the cache."""

from pathlib import Path
from typing import Annotated

import typer


def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="Catalog name, Hugging Face id (org/name, org/name:Q4_K_M, org/name@revision), URL (s3://, "
            "file://), directory or GGUF file."
        ),
    ] = "smollm2-135m",
    cache_dir: Annotated[
        Path | None,
        typer.Option(help="Where models are kept; default $SHOAL_HOME/models or ~/.cache/shoal/models."),
    ] = None,
    list_models: Annotated[
        bool, typer.Option("--list", help="List catalog and cached models, fetch nothing.")
    ] = False,
    if_missing: Annotated[
        bool,
        typer.Option("--if-missing", help="Accept a complete cached copy without asking its source or hashing it."),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only verify what is cached; never use the network.")
    ] = False,
) -> None:
    """Fetch a model into the cache, or bring a cached copy up to date, and verify its checksums."""
    from shoal.engine.sources import progress_bars, resolve_model

    if list_models:
        _list(cache_dir)
        return
    with progress_bars() as progress:
        found = resolve_model(
            model, cache_dir, offline or None, progress, refresh=not if_missing, verify=not if_missing
        )
    typer.echo(str(found.path))
    checksum = f"sha256 {found.checksum}" if found.checksum else "used in place"
    typer.echo(f"{found.name}: {found.size_bytes / 1e6:,.1f} MB, {checksum}", err=True)


def _list(cache_dir: Path | None) -> None:
    from shoal.engine.sources import cached_models, catalog

    cached = {stored.manifest.reference: stored for stored in cached_models(cache_dir)}
    known = catalog()
    width = max(map(len, [*known, *cached]))
    for name, model in known.items():
        where = f"cached at {cached[name].path}" if name in cached else "not cached"
        typer.echo(f"{name:<{width}}  {model.size / 1e6:8,.0f} MB  {model.summary}; {model.licence}; {where}")
    for reference, stored in cached.items():
        if reference not in known:
            typer.echo(f"{reference:<{width}}  {stored.size_bytes / 1e6:8,.0f} MB  cached at {stored.path}")
