"""Reports of users on what a JSON schema lets through, from trackers of other servers; tests name the thread."""

import json
from typing import Any

from serverkit import Served

from shoal.engine.sampling.params import GuidedParams


def test_pattern_properties_with_properties(served: Served) -> None:
    """llguidance#265: `patternProperties` beside `properties` gave broken output."""
    tags = {"type": "array", "items": {"type": "string", "minLength": 10, "maxLength": 20}}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"score": {"type": "integer", "multipleOf": 5}, "tags": tags},
        "required": ["score", "tags"],
        "additionalProperties": False,
        "patternProperties": {"^score$": {"type": "integer"}, "^x-": {"type": "boolean"}},
    }
    guided = GuidedParams(kind="json_schema", value=json.dumps(schema))
    cases = [
        ('{"score": 5, "tags": ["aaaaaaaaaa"]}', True),
        ('{"score": 5, "tags": [], "x-a": true}', True),
        ('{"score": 7, "tags": []}', False),
        ('{"score": 5, "tags": ["short"]}', False),
        ('{"score": 5, "tags": [], "x-a": 1}', False),
        ('{"score": 5, "tags": [], "y": true}', False),
    ]
    assert [(text, served.engine.admits(guided, text)) for text, _ in cases] == cases


def test_a_pattern_and_a_length_both_hold(served: Served) -> None:
    """vllm#45592: `maxLength` was ignored beside `pattern`."""
    item = {"type": "string", "pattern": "^[\\x20-\\x7E]+$", "maxLength": 8}
    schema = {"type": "array", "minItems": 2, "maxItems": 2, "items": item}
    guided = GuidedParams(kind="json_schema", value=json.dumps(schema))
    assert served.engine.admits(guided, '["12345678", "a"]')
    for text in ('["123456789", "a"]', '["é", "a"]', '["a"]', '["", "a"]'):
        assert not served.engine.admits(guided, text), text


def test_properties_out_of_order_and_alternatives(served: Served) -> None:
    """guidance#1039: an optional property out of order was taken for an additional one; outlines#497:
    `nulltrue` was an answer.
    """
    ordered = {"type": "object", "properties": {"a": {"const": "foo"}, "b": {"const": "bar"}}, "required": ["b"]}
    guided = GuidedParams(kind="json_schema", value=json.dumps(ordered))
    assert served.engine.admits(guided, '{"a": "foo", "b": "bar"}')
    assert not served.engine.admits(guided, '{"b": "bar", "a": "BAD"}')
    foo = {"anyOf": [{"type": "null"}, {"type": "boolean"}]}
    guided = GuidedParams(
        kind="json_schema", value=json.dumps({"type": "object", "properties": {"foo": foo}, "required": ["foo"]})
    )
    answers = {value: served.engine.admits(guided, f'{{"foo": {value}}}') for value in ("null", "true", "nulltrue")}
    assert answers == {"null": True, "true": True, "nulltrue": False}
