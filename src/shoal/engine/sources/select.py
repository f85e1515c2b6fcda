"""Which files of a repository or a remote directory the engine needs, by name alone."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from shoal.engine.errors import SourceError, did_you_mean
from shoal.specs.gguf_header import SHARD

# Everything beside the weights is small; taking all of it keeps tokenizers of every family working.
COMPANIONS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "LICENSE*", "NOTICE*", "USE_POLICY*")
# Second copies of the weights in a vendor's own format, and files that are no language model.
EXCLUDED_WEIGHTS = ("consolidated*", "adapter_*", "mmproj*", "*imatrix*")
_MODULE = re.compile(r"\d+_\w+/config\.json")
"""Of sentence-transformers: how states are pooled (`1_Pooling/config.json`)."""
QUANTIZATION = re.compile(r"[.-]((?:I?Q\d\w*)|BF16|F16|F32|MXFP4\w*)(?=\.gguf$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Selection:
    """`main` is the GGUF file, or "." for a directory with a config.json; `names` is everything to fetch."""

    main: str
    names: tuple[str, ...]


def select_files(reference: str, names: Iterable[str], quantization: str | None = None) -> Selection:
    """Choose among the top-level file names of a model. Raises SourceError where the choice is not clear."""
    every = tuple(names)
    top = sorted(n for n in every if "/" not in n)
    safetensors = weight_files(top)
    ggufs = gguf_files(top)
    if quantization is None and safetensors and "config.json" in top:
        companions = [n for n in top if any(fnmatch(n, pattern) for pattern in COMPANIONS)]
        companions += sorted(n for n in every if _MODULE.fullmatch(n))
        return Selection(".", tuple(companions + safetensors))
    if ggufs:
        return _select_gguf(reference, ggufs, quantization)
    if quantization is not None:
        raise SourceError(reference, "holds no GGUF file to choose a quantization from")
    found = ", ".join(top[:6]) or "nothing"
    raise SourceError(
        reference,
        f"holds neither safetensors with a config.json nor a GGUF file (it holds {found})",
        hint="accepted: weights as *.safetensors or *.gguf",
    )


def weight_files(names: Iterable[str]) -> list[str]:
    """The safetensors files that hold a model's weights once, where no index says which.

    `model*.safetensors` is what an index would name; where there is none, any other name must be the weights.
    """
    found = sorted(n for n in names if n.endswith(".safetensors") and not _is_excluded(n))
    return [n for n in found if n.startswith("model")] or found


def gguf_files(names: Iterable[str]) -> list[str]:
    """The GGUF files that hold a language model's weights."""
    return sorted(n for n in names if n.endswith(".gguf") and not _is_excluded(n))


def _is_excluded(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in EXCLUDED_WEIGHTS)


def _select_gguf(reference: str, ggufs: Sequence[str], quantization: str | None) -> Selection:
    groups: dict[str, list[str]] = {}
    for name in ggufs:
        groups.setdefault(SHARD.sub("", name), []).append(name)
    labels = {
        whole: (m[1] if (m := QUANTIZATION.search(whole)) else whole.removesuffix(".gguf")) for whole in groups
    }
    if quantization is not None:
        chosen = [w for w, label in labels.items() if label.lower() == quantization.lower()]
    else:
        chosen = list(groups)
    if len(chosen) == 1:
        return Selection(groups[chosen[0]][0], tuple(groups[chosen[0]]))
    offered = sorted(set(labels.values()))
    if quantization is None:
        raise SourceError(reference, f"holds {len(groups)} GGUF models", hint=f"choose one: {', '.join(offered)}")
    problem = f"holds no single GGUF model of quantization {quantization!r}"
    hint = "; ".join(filter(None, [did_you_mean(quantization, offered), f"it holds {', '.join(offered)}"]))
    raise SourceError(reference, problem, hint=hint)
