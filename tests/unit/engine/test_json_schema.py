"""Schemas as clients send them: references, keywords that no grammar enforces, and errors that say where."""

import contextlib
import json
from typing import Any

import jsonschema_rs
import llguidance
import numpy as np
import pytest

from sampling_kit import accepts, byte_level_tokenizer
from shoal.engine.errors import InvalidParameter
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.json_schema import SchemaError, prepare, show_path
from shoal.engine.sampling.params import GuidedParams

INTEGER = {"type": "integer"}


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GuidedCompiler(tokenizer.json, tokenizer.vocab_size, tokenizer.eos_token_ids)


@pytest.fixture
def admits(tokenizer, compiler):
    """Whether the compiled schema admits a text, as a whole."""

    def check(schema: Any, text: str, *, strict: bool = False) -> bool:
        return accepts(compiler, GuidedParams("json_schema", json.dumps(schema), strict), tokenizer, text)

    return check


def test_references_are_hoisted_and_unused_definitions_left_out():
    schema = {
        "$defs": {"A": INTEGER, "Unused": {"$ref": "#/nowhere"}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A", "description": "kept"}},
    }
    prepared = prepare(schema, strict=False)
    assert prepared.schema == {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A", "description": "kept"}},
        "additionalProperties": False,
    }
    assert prepared.definitions == {"A": INTEGER}
    assert prepare(schema, strict=False, taken={"A"}).definitions == {"A-2": INTEGER}


@pytest.mark.parametrize(
    ("definitions", "reference"),
    [
        ({"$defs": {"a/b~c%": INTEGER}}, "#/$defs/a~1b~0c%25"),
        ({"$defs": {"Page[Item]": INTEGER}}, "#/$defs/Page[Item]"),
        ({"$defs": {"Page[Item]": INTEGER}}, "#/$defs/Page%5BItem%5D"),
        ({"$defs": {"a b": INTEGER}}, "#/$defs/a b"),
        ({"$defs": {"Größe": INTEGER}}, "#/$defs/Gr%C3%B6%C3%9Fe"),
        ({"$defs": {"100%": INTEGER}}, "#/$defs/100%"),
        ({"definitions": {"A": INTEGER}}, "#/definitions/A"),
        ({"components": {"schemas": {"A": INTEGER}}}, "#/components/schemas/A"),
        ({"properties": {"other": {"items": INTEGER}}}, "#/properties/other/items"),
        ({"$defs": {"A": {"anyOf": [{"type": "null"}, INTEGER]}}}, "#/$defs/A/anyOf/1"),
        ({"$defs": {"A": {"$anchor": "number", **INTEGER}}}, "#number"),
        ({"$defs": {"A": {"$id": "#number", **INTEGER}}}, "#number"),
        ({"$id": "https://a.example/root.json", "$defs": {"A": {"$id": "number", **INTEGER}}}, "number"),
        ({"$id": "https://a.example/r", "$defs": {"A": INTEGER}}, "https://a.example/r#/$defs/A"),
        ({"$schema": "http://unknown.example/schema", "$defs": {"A": INTEGER}}, "#/$defs/A"),
    ],
)
def test_every_way_to_refer(admits, definitions, reference):
    schema = {"type": "object", **definitions}
    schema["properties"] = {**schema.get("properties", {}), "x": {"$ref": reference}}
    schema |= {"required": ["x"], "additionalProperties": False}
    assert admits(schema, '{"x": 7}')
    assert not admits(schema, '{"x": "7"}')


def test_a_nested_id_is_the_base_of_its_references(admits):
    inner = {"$id": "inner", "$defs": {"A": INTEGER}, "type": "array", "items": {"$ref": "#/$defs/A"}}
    schema = {"$id": "https://a.example/", "$defs": {"A": {"type": "string"}}, "allOf": [{"$ref": "inner"}]}
    schema["$defs"]["inner"] = inner
    assert admits(schema, "[1,2]")
    assert not admits(schema, '["a"]')


def test_recursion(admits):
    tree = {
        "type": "object",
        "properties": {"value": INTEGER, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["value"],
        "additionalProperties": False,
    }
    assert admits(tree, '{"value":1,"children":[{"value":2,"children":[]}]}')
    assert not admits(tree, '{"value":1,"children":[{}]}')
    linked = {"$ref": "#/$defs/Node", "$defs": {"Node": {**tree, "properties": {"value": INTEGER}}}}
    linked["$defs"]["Node"]["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}
    assert admits(linked, '{"value":1,"next":{"value":2,"next":null}}')


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"$ref": "#/$defs/A"}}}, ".properties.a.$ref"),
        ({"anyOf": [{}, {"$ref": "https://elsewhere.example/x"}]}, ".anyOf[1].$ref"),
        ({"oneOf": [{}, {"$ref": 3}]}, ".oneOf[1].$ref"),
        ({"$ref": "#"}, ".$ref"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}, ".$defs.A.$ref"),
        ({"properties": {"a b": {"type": "strnig"}}}, ".properties['a b'].type"),
        ({"properties": {"a": {"type": ["string", "nil"]}}}, ".properties.a.type[1]"),
        ({"items": {"enum": []}}, ".items.enum"),
        ({"properties": []}, ".properties"),
        ({"properties": {"a": 5}}, ".properties.a"),
        ({"allOf": [7]}, ".allOf[0]"),
        ([], ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_what_is_wrong_is_refused_with_its_path(schema, path, strict):
    with pytest.raises(SchemaError) as caught:
        prepare(schema, strict=strict)
    assert show_path(caught.value.path) == path


def open_object(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string"}, "b": INTEGER}, **keywords}


UNENFORCED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, "uniqueItems", "[1,2]"),
    ({"type": "string", "not": {"const": "x"}}, "not", '"y"'),
    ({"type": "string", "format": "color"}, "format", '"red"'),
    ({"type": "array", "contains": INTEGER, "maxContains": 2}, "contains", "[1]"),
    (open_object(**{"if": {"required": ["a"]}, "then": {"required": ["b"]}}), "if", '{"b": 1}'),
    (open_object(propertyNames={"maxLength": 3}), "propertyNames", '{"a": "x"}'),
    (open_object(dependentRequired={"a": ["b"]}), "dependentRequired", '{"a": "x", "b": 1}'),
    (open_object(dependentSchemas={"a": {"required": ["b"]}}), "dependentSchemas", "{}"),
    (open_object(dependencies={"a": ["b"]}), "dependencies", "{}"),
    (open_object(allOf=[{}], unevaluatedProperties=False), "unevaluatedProperties", "{}"),
    ({"type": "array", "allOf": [{}], "unevaluatedItems": False}, "unevaluatedItems", "[]"),
    ({"type": "string", "pattern": "^(?=a).*$"}, "pattern", '"ab"'),
    ({"type": "string", "pattern": "^(a)\\1$"}, "pattern", '"aa"'),
    (
        {
            "type": "object",
            "patternProperties": {"^a": INTEGER, "b$": {"type": "string"}},
            "additionalProperties": False,
        },
        "patternProperties",
        '{"a1": 1, "1b": "x"}',
    ),
]


@pytest.mark.parametrize(("schema", "keyword", "value"), UNENFORCED)
def test_keywords_that_cannot_be_enforced_need_strict(admits, schema, keyword, value):
    """LibreChat#9242: a client's `uniqueItems` was an error."""
    assert jsonschema_rs.is_valid(schema, json.loads(value))
    nested = {"type": "object", "properties": {"x": {"type": "array", "items": schema}}, "required": ["x"]}
    assert admits(nested, f'{{"x": [{value}]}}')
    with pytest.raises(SchemaError, match="strict: true") as caught:
        prepare(nested, strict=True)
    assert show_path(caught.value.path) == f".properties.x.items.{keyword}"


def test_overlapping_alternatives(admits, compiler):
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    assert admits(schema, "7")
    assert admits(schema, "7.5")
    with pytest.raises(InvalidParameter, match="oneOf"):
        compiler.validate(GuidedParams("json_schema", json.dumps(schema), strict=True))
    both = {"oneOf": [{"minLength": 2}, {"maxLength": 3}], "anyOf": [{"type": "string"}, {"type": "null"}]}
    assert admits(both, '"abc"')
    assert not admits(both, "7")


def test_a_tagged_union_is_enforced_even_where_strict(admits):
    def variant(tag: str) -> dict[str, Any]:
        properties = {"kind": {"const": tag, "type": "string"}}
        return {"type": "object", "properties": properties, "required": ["kind"], "additionalProperties": False}

    schema = {
        "$defs": {"Cat": variant("cat"), "Dog": variant("dog")},
        "type": "object",
        "properties": {
            "pet": {
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
                "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat"}},
            }
        },
        "required": ["pet"],
        "additionalProperties": False,
    }
    for strict in (False, True):
        assert admits(schema, '{"pet": {"kind": "dog"}}', strict=strict)
        assert not admits(schema, '{"pet": {"kind": "cow"}}', strict=strict)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER},
            '{"a": 1}',
            '{"c": 1}',
        ),
        ({"type": "object", "propertyNames": {"pattern": "^x-"}}, '{"x-a": 1}', '{"a": 1}'),
        (
            {"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": False},
            '{"a": 1}',
            '{"b": 1}',
        ),
        ({"type": "array", "maxItems": 1, "uniqueItems": True}, "[1]", "[1,2]"),
        ({"type": "array", "uniqueItems": False, "items": INTEGER}, "[1,1]", '["a"]'),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True}, "1", "0"),
        ({"type": "integer", "format": "int32"}, "5", '"5"'),
        ({"type": "object", "properties": None, "required": None, "additionalProperties": False}, "{}", '{"a": 1}'),
        ({"$dynamicRef": "#x", "$defs": {"A": {"$dynamicAnchor": "x", **INTEGER}}}, "1", '"a"'),
        ({"const": None}, "null", "1"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_what_has_an_equal_form_is_enforced(admits, schema, good, bad, strict):
    assert admits(schema, good, strict=strict)
    assert not admits(schema, bad, strict=strict)


def test_contains_without_strict_still_asks_for_an_item(admits):
    assert not admits({"type": "array", "contains": INTEGER}, "[]")
    assert admits({"type": "array", "contains": INTEGER, "minContains": 0}, "[]")


def test_every_keyword_is_known_to_the_compiler_or_given_up():
    """Each keyword of the JSON Schema vocabularies: accepted without `strict`, never "Unimplemented keys"."""
    keywords = json.loads(
        """{
        "$comment": "c", "title": "t", "description": "d", "default": 1, "examples": [1], "deprecated": true,
        "readOnly": true, "writeOnly": true, "nullable": true, "example": 1, "x-order": 3, "id": "x",
        "contentEncoding": "base64", "contentMediaType": "a/b", "contentSchema": {}, "discriminator": {},
        "$recursiveAnchor": true, "$vocabulary": {}, "minContains": 1, "then": {}, "else": {}, "if": {},
        "not": {}, "dependencies": {}, "dependentRequired": {}, "dependentSchemas": {}, "unevaluatedItems": {},
        "unevaluatedProperties": true, "propertyNames": true, "contains": true, "additionalItems": false,
        "x-guidance": {"lenient": true}
        }"""
    )
    for keyword, value in keywords.items():
        schema = prepare({"type": ["object", "array"], keyword: value}, strict=False).document()
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        assert llguidance.LLMatcher.validate_grammar(grammar, None) == "", keyword


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_white_space_is_a_line_break_and_indentation_at_most(tokenizer, compiler, kind):
    """vllm#38696: 80 tokens were spent on blanks."""

    blanks = {b" ", b"\n", b"\r", b"\t"}
    ids = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) in blanks]
    for after in ("{", '{"a"', '{"a":', '{"a": 1', '{"a": 1,'):
        state = compiler(GuidedParams(kind, '{"type": "object"}' if kind == "json_schema" else ""))
        for token in tokenizer.encode(after, add_special_tokens=False):
            state.advance(token)
        spent = 0
        while True:
            logits = np.zeros(tokenizer.vocab_size, np.float32)
            assert state.mask(logits) is None
            allowed = [i for i in ids if np.isfinite(logits[i])]
            if not allowed:
                break
            # The longest way: a line break, then blanks.
            state.advance(max(allowed, key=lambda i: tokenizer.token_bytes(i) in (b"\r", b"\n")))
            spent += 1
        assert spent <= 22, after


def test_usual_layouts_of_json_are_admitted(admits):
    value = {"a": [1, {"b": {}}], "c": None}
    for text in (json.dumps(value), json.dumps(value, separators=(",", ":")), json.dumps(value, indent=4)):
        assert admits({"type": "object"}, text)


def test_nesting_and_size_are_bounded(compiler):
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    text = '{"items":' * 5000 + "{}" + "}" * 5000
    with pytest.raises(InvalidParameter):
        compiler.validate(GuidedParams("json_schema", text))
    with pytest.raises((SchemaError, RecursionError)):
        prepare(deep, strict=False)
    # Every definition is used twice by the one before: small to write, 2^40 alternatives if they were copied.
    chain = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d40": INTEGER}}
    assert len(prepare(schema, strict=False).definitions) == 41


def test_alternatives_of_itself_end_in_an_error_not_in_a_crash(compiler):
    for keyword in ("allOf", "anyOf", "oneOf"):
        schema = {keyword: [{"$ref": "#"}]}
        with contextlib.suppress(InvalidParameter):
            compiler.validate(GuidedParams("json_schema", json.dumps(schema)))


def test_objects_that_say_nothing_of_further_properties_get_none(admits):
    """A small model goes on inventing properties until its tokens are spent; llama.cpp and XGrammar stop it too."""
    person = {"type": "object", "properties": {"name": {"type": "string"}, "at": {"$ref": "#/$defs/At"}}}
    schema = {**person, "$defs": {"At": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    assert admits(schema, '{"name": "a", "at": {"city": "b"}}')
    assert not admits(schema, '{"name": "a", "more": 1}')
    assert not admits(schema, '{"at": {"city": "b", "zip": 1}}')
    assert admits({**schema, "additionalProperties": True}, '{"name": "a", "more": 1}')
    assert admits({"type": "object"}, '{"more": 1}')
    assert admits({"type": "object", "properties": {"a": INTEGER}, "required": ["b"]}, '{"a": 1, "b": 2}')
    assert admits({"anyOf": [person, {"type": "null"}], "$defs": schema["$defs"]}, '{"name": "a"}')


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "object", "properties": {"a": INTEGER}}, {"$ref": "#/$defs/B"}]},
        {"type": "object", "properties": {"a": INTEGER}, "allOf": [{"$ref": "#/$defs/B"}]},
        {"type": "object", "properties": {"a": INTEGER}, "$ref": "#/$defs/B"},
    ],
)
def test_combined_objects_do_not_exclude_each_others_properties(admits, schema):
    schema["$defs"] = {"B": {"type": "object", "properties": {"b": INTEGER}}}
    assert admits(schema, '{"a": 1, "b": 2}') or admits(schema, '{"b": 2, "a": 1}')


def test_a_single_reference_in_allof_is_no_combination(admits):
    """Pydantic 1 wraps every reference so."""
    schema = {"allOf": [{"$ref": "#/$defs/B"}], "$defs": {"B": {"type": "object", "properties": {"b": INTEGER}}}}
    assert admits(schema, '{"b": 1}')
    assert not admits(schema, '{"b": 1, "c": 2}')


def test_a_schema_put_below_another_keeps_its_own_definitions(admits):
    """Clients that nest a model's schema leave `$defs` inside it; its references still name it from their root."""
    inner = {
        "$defs": {"B": INTEGER},
        "type": "object",
        "properties": {"b": {"$ref": "#/$defs/B"}},
        "required": ["b"],
    }
    assert admits({"type": "object", "properties": {"inner": inner}}, '{"inner": {"b": 1}}')
    assert not admits({"type": "object", "properties": {"inner": inner}}, '{"inner": {"b": "x"}}')
