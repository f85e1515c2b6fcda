"""From a `config.json` (or a GGUF file's metadata) to `ModelSpec`.

The semantics are those of Transformers 5.24's modeling code, defaults included: a model built from the spec alone
computes the same logits. A multimodal config is read for its text model only; vision and audio towers are neither
built nor counted.
"""

from collections.abc import Mapping

from shoal.specs.errors import UnknownArchitecture, UnreadableModel
from shoal.specs.families import BY_ARCHITECTURE, BY_MODEL_TYPE, Parser
from shoal.specs.fields import Fields
from shoal.specs.model import ModelSpec


def parse_config(config: Mapping[str, object], name: str) -> ModelSpec:
    """The model a config.json describes.

    Args:
        config: the parsed JSON. A `text_config` inside is the model; the rest supplies what it leaves out.
        name: how to call the model, in the spec and in errors.

    Raises:
        UnknownArchitecture: no parser for its `model_type` or `architectures`.
        InvalidField: a field is missing or has a value that can't be right.
    """
    if not isinstance(config, Mapping):
        raise UnreadableModel(name, f"a config must be an object, got {type(config).__name__}")
    outer = Fields(config, name)
    text = outer.section("text_config")
    if text is None:
        return _parser(outer)(outer, None)
    if not text.values:
        raise outer.error("text_config", {}, "the text model's fields")
    return _parser(text, outer)(text, outer)


def _parser(fields: Fields, outer: Fields | None = None) -> Parser:
    model_type = fields.text("model_type")
    parser = BY_MODEL_TYPE.get(model_type)
    if parser is not None:
        return parser
    names = fields.words("architectures") or (outer.words("architectures") if outer is not None else None) or ()
    for name in names:
        if name in BY_ARCHITECTURE:
            return BY_ARCHITECTURE[name]
    found = names[0] if names else model_type
    if not found:
        raise fields.error("architectures", None, "a list with the model's class, or model_type")
    raise UnknownArchitecture(fields.model, found, BY_ARCHITECTURE if names else BY_MODEL_TYPE)
