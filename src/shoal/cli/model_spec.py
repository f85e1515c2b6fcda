"""The model that a name on the command line or the page means: catalogue, file, or a Hugging Face id's config.json.

Only config.json (and ModelOpt's hf_quant_config.json beside it) is read, from the hub's local cache or over the
network with a deadline; weights never are.
"""

import functools
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.plan.api import find_model
from shoal.specs.catalog.models import catalog_model
from shoal.specs.errors import SpecError, UnknownModel
from shoal.specs.load import parse_config_text
from shoal.specs.model import ModelSpec

HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
CONFIG, SIDECAR = "config.json", "hf_quant_config.json"
FETCH_SECONDS = 10.0
MAX_CONFIG_BYTES = 4 << 20
_OFFLINE = ("SHOAL_OFFLINE", "HF_HUB_OFFLINE")
FetchText = Callable[[str, str, str], str | None]
"""(repository, revision, file name) to the file's text; None where the repository has no such file."""


def model_spec(name: str, catalogs: Sequence[Path | str] = (), fetch: FetchText | None = None) -> ModelSpec:
    """The model at a path, of this name in the catalogue, or of this Hugging Face id (`org/name`, `@revision`).

    Args:
        fetch: gets a file of a repository; default: from the hub, within `FETCH_SECONDS`.

    Raises `SpecError` saying what to give instead where nothing is found.
    """
    try:
        return find_model(name, catalogs)
    except UnknownModel as unknown:
        return _from_hub(name, unknown, fetch or _fetch_text)


def page_model(name: str, catalogs: Sequence[Path | str] = (), fetch: FetchText | None = None) -> ModelSpec:
    """As `model_spec`, by name only: a page has no business reading this machine's files."""
    try:
        return catalog_model(name, catalogs)
    except UnknownModel as unknown:
        return _from_hub(name, unknown, fetch or _fetch_text)


def _from_hub(name: str, unknown: UnknownModel, fetch: FetchText) -> ModelSpec:
    match = HUB_ID.fullmatch(name.strip())
    if match is None:
        raise unknown
    try:
        return _hub_spec(match["repo"], match["revision"] or "main", fetch)
    except SpecError as error:
        if not unknown.suggestions or error.field != "model":
            raise
        hint = f"{error.accepted}; or did you mean {' or '.join(unknown.suggestions)}?"
        raise SpecError("model", error.value, hint) from None


@functools.lru_cache(maxsize=64)
def _hub_spec(repo: str, revision: str, fetch: FetchText) -> ModelSpec:
    config, sidecar = _cached(repo, revision, CONFIG), _cached(repo, revision, SIDECAR)
    if config is None:
        config, sidecar = _within_deadline(repo, revision, fetch)
    return replace(parse_config_text(config, repo, sidecar), name=repo)


def _cached(repo: str, revision: str, name: str) -> str | None:
    """The file's text in huggingface_hub's cache; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, name, revision=revision)
    return Path(found).read_text(encoding="utf-8") if isinstance(found, str) else None


def _within_deadline(repo: str, revision: str, fetch: FetchText) -> tuple[str, str | None]:
    if any(os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in _OFFLINE):
        raise _not_fetched(repo, "the network is switched off (SHOAL_OFFLINE or HF_HUB_OFFLINE)")
    outcome: list[tuple[str, str | None] | SpecError] = []

    def get() -> None:
        try:
            config = fetch(repo, revision, CONFIG)
            if config is None:
                outcome.append(_not_fetched(repo, f"the hub has no {CONFIG} of that name and revision"))
            else:
                outcome.append((config, fetch(repo, revision, SIDECAR)))
        except SpecError as error:
            outcome.append(error)
        except Exception as error:  # a thread's exception would be printed and lost
            outcome.append(_not_fetched(repo, f"the hub cannot be reached ({type(error).__name__})"))

    # In a thread: resolving a name has no limit of its own, and a slow answer may trickle past a socket's.
    thread = threading.Thread(target=get, daemon=True, name="shoal-config-fetch")
    thread.start()
    thread.join(FETCH_SECONDS)
    result = outcome[0] if outcome else _not_fetched(repo, f"the hub did not answer within {FETCH_SECONDS:g} s")
    if isinstance(result, SpecError):
        raise result
    return result


def _fetch_text(repo: str, revision: str, name: str) -> str | None:
    """One small file of a repository, by its public address."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    address = hf_hub_url(repo, name, revision=revision)
    request = urllib.request.Request(address, headers=build_hf_headers())
    try:
        with urllib.request.urlopen(request, timeout=FETCH_SECONDS) as response:
            content: bytes = response.read(MAX_CONFIG_BYTES)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        gated = "it is gated or private: accept its terms there and set HF_TOKEN"
        raise _not_fetched(repo, gated if error.code in (401, 403) else f"the hub answered {error.code}") from None
    except OSError:
        raise _not_fetched(repo, "the hub cannot be reached") from None
    return content.decode("utf-8", errors="replace")


def _not_fetched(repo: str, reason: str) -> SpecError:
    accepted = (
        f"a model whose config.json can be read: {reason}. Not in the catalogue either; give the path of its "
        "config.json instead"
    )
    return SpecError("model", repo, accepted)
