"""Whether a model's directory declares that its states are pooled, and how. Free of torch.

Read are sentence-transformers' `modules.json` and its pooling configuration
(https://sbert.net/docs/package_reference/sentence_transformer/models.html), and in config.json `architectures`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.engine.errors import EngineError

Pooling = Literal["cls", "mean", "lasttoken"]
ENCODERS = ("bert", "roberta", "xlm-roberta")
"""`model_type` of the encoders that the engine computes."""
_MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}
_CLASSIFIER = "ForSequenceClassification"


class UnsupportedPooling(EngineError):
    """A model that gives vectors or scores in a way that the engine doesn't compute."""


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """How a sequence's hidden states become its result."""

    scores: bool
    """The result is one number, a score of a pair of texts; else a vector."""
    pooling: Pooling
    normalize: bool
    encoder: bool
    """Attention goes both ways, as in BERT."""
    max_length: int | None
    """Tokens that sentence-transformers cuts at."""
    lower_case: bool
    sigmoid: bool
    """Scores are squashed to 0 … 1."""
    dimensions: tuple[int, ...] | None
    """Lengths that vectors may be cut to (Matryoshka); empty: any; None: none."""


def read_pooling(path: Path) -> PoolingSpec | None:
    """How the model at `path` pools; None: it doesn't say that it does, so it generates.

    Raises UnsupportedPooling for what the engine doesn't compute.
    """
    config = _json(path / "config.json") if path.is_dir() else None
    if not isinstance(config, dict):
        return None
    names = config.get("architectures") or [""]
    architecture, encoder = str(names[0]), config.get("model_type") in ENCODERS
    modules = _json(path / "modules.json")
    two_ways = config.get("use_bidirectional_attention") or config.get("is_causal") is False
    if not encoder and two_ways and (isinstance(modules, list) or architecture.endswith(_CLASSIFIER)):
        raise UnsupportedPooling(f"{path.name}: a decoder whose attention goes both ways is not computed")
    if architecture.endswith(_CLASSIFIER):
        _check_labels(path, config)
        return PoolingSpec(
            scores=True,
            pooling="cls" if encoder else "lasttoken",
            normalize=False,
            encoder=encoder,
            max_length=None,
            lower_case=False,
            sigmoid=_sigmoid(path, config),
            dimensions=None,
        )
    if not isinstance(modules, list) and not (encoder and architecture.endswith("Model")):
        return None
    pooling, normalize = _modules(path, modules) if isinstance(modules, list) else ("mean", True)
    settings = _json(path / "sentence_bert_config.json")
    settings = settings if isinstance(settings, dict) else {}
    return PoolingSpec(
        scores=False,
        pooling=pooling,
        normalize=normalize,
        encoder=encoder,
        max_length=settings.get("max_seq_length"),
        lower_case=settings.get("do_lower_case") is True,
        sigmoid=False,
        dimensions=_dimensions(config),
    )


def _modules(path: Path, modules: list[Any]) -> tuple[Pooling, bool]:
    pooling: Pooling | None = None
    normalize = False
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            pooling = _pooling(path / str(module.get("path", "")) / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UnsupportedPooling(
                f"{path.name}: modules.json has a {kind!r} module; Transformer, Pooling and Normalize are computed"
            )
    if pooling is None:
        raise UnsupportedPooling(f"{path.name}: modules.json has no Pooling module")
    return pooling, normalize


def _pooling(file: Path) -> Pooling:
    config = _json(file)
    on = [k for k, v in (config if isinstance(config, dict) else {}).items() if k.startswith("pooling_mode_") and v]
    if len(on) != 1 or on[0] not in _MODES:
        raise UnsupportedPooling(f"{file}: pooling by {on or 'nothing'}; exactly one of {', '.join(_MODES)} works")
    return _MODES[on[0]]


def _check_labels(path: Path, config: dict[str, Any]) -> None:
    labels = config.get("num_labels") or len(config.get("id2label") or (0, 0))
    if labels != 1:
        raise UnsupportedPooling(f"{path.name}: it classifies into {labels} labels; scoring needs a model with one")


def _sigmoid(path: Path, config: dict[str, Any]) -> bool:
    """As sentence-transformers' CrossEncoder: a sigmoid, unless the config names another activation."""
    section = config.get("sentence_transformers")
    named = (section.get("activation_fn") if isinstance(section, dict) else None) or config.get(
        "sbert_ce_default_activation_function"
    )
    kind = str(named or "Sigmoid").rpartition(".")[2]
    if kind not in ("Sigmoid", "Identity"):
        raise UnsupportedPooling(f"{path.name}: scores by {named}; Sigmoid and Identity are computed")
    return kind == "Sigmoid"


def _dimensions(config: dict[str, Any]) -> tuple[int, ...] | None:
    """`matryoshka_dimensions` and `is_matryoshka`, as vLLM reads them."""
    listed = config.get("matryoshka_dimensions")
    if isinstance(listed, list) and listed:
        return tuple(int(n) for n in listed)
    return () if config.get("is_matryoshka") else None


def _json(file: Path) -> Any:
    """The file's content; None where there is none. Raises UnsupportedPooling for what is no JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnsupportedPooling(f"{file}: not readable: {error}") from error
