"""Names to works and accelerators: the catalogue first, then a stated guess, so that every question is answered."""

import re

from shoal.plan.rows import AcceleratorLookup, ModelLookup, plain_lookup
from shoal.plan.work import ModelWork, model_work
from shoal.specs import SpecError, UnknownModel, catalog_model
from shoal.specs.catalog import load_catalog
from shoal.specs.hardware import Accelerator

_SUFFIX = re.compile(
    r"[-_](nvfp4|mxfp4|fp4|fp8|int4|int8|awq|gptq|w4a16|w8a8|bf16|instruct|chat|base|it|hf|v\d|dynamic|block|\d{4})+$",
    re.IGNORECASE,
)


def _catalogued(name: str) -> ModelWork | None:
    """The catalogue's model of this name, also under another publisher or without a checkpoint's suffixes."""
    short = name.rsplit("/", 1)[-1]
    tried: list[str] = [name, short]
    while _SUFFIX.search(short):
        short = _SUFFIX.sub("", short)
        tried.append(short)
    tried += [f"{short}-Instruct"]
    for candidate in tried:
        try:
            return model_work(catalog_model(candidate))
        except (UnknownModel, SpecError):
            continue
    return None


def catalog_models() -> ModelLookup:
    """A lookup that answers for every name."""
    return plain_lookup(_catalogued)


def catalog_accelerators() -> AcceleratorLookup:
    """A lookup in the shipped catalogue; None for hardware it does not have."""
    catalog = load_catalog()

    def lookup(name: str) -> Accelerator | None:
        try:
            return catalog.accelerator(name)
        except SpecError:
            return None

    return lookup
