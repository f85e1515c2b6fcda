"""From a request's fields to `SamplingParams`: defaults, aliases, one constraint at most, ranges of this model."""

from collections.abc import Mapping

import msgspec

from shoal.engine.sampling.defaults import SamplingDefaults
from shoal.engine.sampling.params import GuidedParams, SamplingParams
from shoal.http.errors import ApiError, bad_value
from shoal.server.fields import (
    GenerationRequest,
    JsonObject,
    JsonObjectFormat,
    JsonSchemaFormat,
    JsonSchemaResponseFormat,
    StructuredOutputs,
)

_PASSED_ON = (
    "n",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


def sampling_params(
    body: GenerationRequest,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    guided: GuidedParams | None,
    prompt_logprobs: int | None = None,
    defaults: SamplingDefaults,
) -> SamplingParams:
    """What the engine is asked for. Fields left null take the model's `defaults`, else `SamplingParams`' own.

    `max_tokens`, `logprobs` and `prompt_logprobs` mean different things at different endpoints, so the caller says.
    """
    given: dict[str, object] = {
        **defaults.fields(),
        "max_tokens": max_tokens,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
        "guided": guided,
        "logit_bias": _logit_bias(body.logit_bias),
        "stop": _stop(body.stop),
        "stop_token_ids": tuple(body.stop_token_ids or ()),
        "allowed_token_ids": body.allowed_token_ids,
        "bad_words": tuple(body.bad_words or ()),
        "seed": body.seed,
    }
    for name in _PASSED_ON:
        value = getattr(body, name)
        if value is not None:
            given[name] = value
    return msgspec.convert(given, SamplingParams)


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if any(not s for s in strings):
        raise bad_value("stop", "", "expected non-empty strings")
    return strings


def _logit_bias(bias: Mapping[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise bad_value("logit_bias", key, "expected token ids as keys")
    return {int(key): float(value) for key, value in bias.items()}


def guided_params(body: GenerationRequest) -> GuidedParams | None:
    """The constraint the body asks for; 400 if it asks for two."""
    found = [(field, guided) for field, guided in _constraints(body) if guided is not None]
    if body.structured_outputs is not None and not any(f.startswith("structured_outputs") for f, _ in found):
        names = ", ".join(StructuredOutputs.__struct_fields__)
        raise ApiError(
            400,
            f"structured_outputs holds no constraint; expected one of {names}",
            param="structured_outputs",
            code="missing_required_parameter",
        )
    if len(found) > 1:
        names = ", ".join(field for field, _ in found)
        raise ApiError(
            400,
            f"only one constraint on the output is possible, given: {names}",
            param=found[1][0],
            code="invalid_value",
        )
    return found[0][1] if found else None


def guided_field(body: GenerationRequest, schema_path: str = "") -> str:
    """Return the name under which the body gave its constraint, for error messages.

    `schema_path` leads on from the root of a schema, as in `.properties.x.type`.
    """
    field = next((field for field, guided in _constraints(body) if guided is not None), "response_format")
    if schema_path and field == "response_format":
        nested = getattr(body.response_format, "json_schema", None) is not None
        field = "response_format.json_schema.schema" if nested else "response_format.schema"
    return field + schema_path


def _constraints(body: GenerationRequest) -> list[tuple[str, GuidedParams | None]]:
    structured = body.structured_outputs
    found = [
        ("response_format", _from_format(body)),
        ("guided_json", _json(body.guided_json)),
        ("guided_regex", _text("regex", body.guided_regex)),
        ("guided_choice", _choice("guided_choice", body.guided_choice)),
        ("guided_grammar", _text("grammar", body.guided_grammar)),
        ("grammar", _text("grammar", body.grammar)),
    ]
    if structured is not None:
        found += [
            ("structured_outputs.json", _json(structured.json)),
            ("structured_outputs.json_object", GuidedParams("json_object") if structured.json_object else None),
            ("structured_outputs.regex", _text("regex", structured.regex)),
            ("structured_outputs.choice", _choice("structured_outputs.choice", structured.choice)),
            ("structured_outputs.grammar", _text("grammar", structured.grammar)),
        ]
    return found


def _from_format(body: GenerationRequest) -> GuidedParams | None:
    match body.response_format:
        case JsonObjectFormat(schema=schema):
            return _json(schema) or GuidedParams("json_object")
        case JsonSchemaResponseFormat(json_schema=None, schema=None):
            field = "response_format.json_schema"
            raise ApiError(400, f"{field} is required", param=field, code="missing_required_parameter")
        case JsonSchemaResponseFormat(json_schema=None, schema=schema):
            return _json(schema)
        case JsonSchemaResponseFormat(json_schema=JsonSchemaFormat(schema=schema, strict=strict)):
            return _json(schema, strict=strict is True) or GuidedParams("json_object")
        case _:
            return None


def _json(schema: JsonObject | str | None, *, strict: bool = False) -> GuidedParams | None:
    if schema is None:
        return None
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    return GuidedParams("json_schema", text, strict)


def _text(kind: str, value: str | None) -> GuidedParams | None:
    return None if value is None else msgspec.convert({"kind": kind, "value": value}, GuidedParams)


def _choice(field: str, choices: list[str] | None) -> GuidedParams | None:
    if choices is None:
        return None
    if not choices or any(not choice for choice in choices):
        raise bad_value(field, choices, "expected one or more non-empty strings")
    return GuidedParams("choice", msgspec.json.encode(choices).decode())
