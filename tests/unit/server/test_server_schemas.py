"""Schemas of tools and of structured output, as client stacks send them."""

import json
from typing import Any

import pytest
from serverkit import Served

ASK: dict[str, Any] = {"model": "script", "messages": [{"role": "user", "content": "Hi"}]}

SONG = {
    "properties": {
        "title": {"title": "Title", "type": "string"},
        "seconds": {"title": "Seconds", "type": "integer"},
    },
    "required": ["title", "seconds"],
    "title": "Song",
    "type": "object",
}
# Pydantic's `class Album(BaseModel): name: str; songs: list[Song]`.
ALBUM = {
    "$defs": {"Song": SONG},
    "properties": {
        "name": {"title": "Name", "type": "string"},
        "songs": {"items": {"$ref": "#/$defs/Song"}, "title": "Songs", "type": "array"},
    },
    "required": ["name", "songs"],
    "title": "Album",
    "type": "object",
}
GOOD = {"name": "A", "songs": [{"title": "T", "seconds": 3}]}
BAD = {"name": "A", "songs": [{"title": "T", "seconds": "long"}]}


def tool(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def closed(schema: Any) -> Any:
    """As openai-agents and `client.beta.parse` send it: every object closed and every property required."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if out.get("type") == "object":
        out |= {"additionalProperties": False, "required": list(out.get("properties", {}))}
    return out


LLAMA_INDEX = {
    "messages": [{"role": "user", "content": "Generate an album."}],
    "tools": [tool("Album", ALBUM, description="An album.")],
    "tool_choice": {"type": "function", "function": {"name": "Album"}},
    "parallel_tool_calls": False,
    "stream": False,
    "temperature": 0.1,
}
PYDANTIC_AI = {
    "messages": [{"content": "Generate an album.", "role": "user"}],
    "tools": [
        tool("lookup", {"additionalProperties": False, "properties": {}, "type": "object"}, description=""),
        tool("final_result", closed(ALBUM), description="The final response", strict=True),
    ],
    "tool_choice": "required",
    "stream": False,
}
OPENAI_AGENTS = {
    "messages": [{"role": "system", "content": "You make albums."}, {"role": "user", "content": "Go."}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "final_output", "strict": True, "schema": closed(ALBUM)},
    },
    "tools": [tool("lookup", closed(ALBUM), strict=True, description="")],
    "tool_choice": "auto",
    "store": False,
}


@pytest.mark.parametrize(
    ("body", "wrap"),
    [
        (LLAMA_INDEX, lambda value: value),
        (PYDANTIC_AI, lambda value: [{"name": "final_result", "arguments": value}]),
        (OPENAI_AGENTS, lambda value: value),
    ],
    ids=["llama-index", "pydantic-ai", "openai-agents"],
)
def test_nested_models_of_client_stacks(served: Served, body: dict[str, Any], wrap: Any) -> None:
    """vllm#20470, llama.cpp#16790: `$defs` were looked for at the root of the schema that wraps the tools'."""
    with served.client() as client:
        response = client.post("/v1/chat/completions", json={"model": "script", **body})
    assert response.status_code == 200, response.text
    guided = served.engine.seen[0][1].guided
    assert guided is not None
    assert served.engine.admits(guided, json.dumps(wrap(GOOD)))
    assert not served.engine.admits(guided, json.dumps(wrap(BAD)))


def test_two_tools_may_define_one_name_differently(served: Served) -> None:
    def pointing(kind: str) -> dict[str, Any]:
        item = {"type": kind}
        return {"type": "object", "properties": {"x": {"$ref": "#/$defs/Item"}}, "$defs": {"Item": item}}

    first, second = pointing("integer"), pointing("boolean")
    third = {"type": "object", "properties": {"y": {"type": "null"}, "z": {"$ref": "#/properties/y"}}}
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False}
    tools = [tool(n, s) for n, s in (("a", first), ("b", second), ("c", third), ("d", tree))]
    for choice in ("required", "any"):
        served.engine.seen.clear()
        body = {**ASK, "tools": tools, "tool_choice": choice}
        with served.client() as client:
            response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        guided = served.engine.seen[0][1].guided
        assert guided is not None
        cases = [
            ("a", {"x": 1}, True),
            ("a", {"x": True}, False),
            ("b", {"x": True}, True),
            ("b", {"x": 1}, False),
            ("c", {"z": None}, True),
            ("c", {"z": 1}, False),
            ("d", {"child": {"child": {}}}, True),
            ("d", {"child": {"x": {}}}, False),
        ]
        for name, arguments, fits in cases:
            text = json.dumps([{"name": name, "arguments": arguments}])
            assert served.engine.admits(guided, text) is fits, text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "bad"}}])
@pytest.mark.parametrize(
    ("schema", "path", "says"),
    [
        ({"properties": {"a": {"$ref": "#/$defs/Nowhere"}}}, ".properties.a.$ref", "points to nothing"),
        ({"$ref": "https://a.example/x"}, ".$ref", "outside"),
        ({"properties": {"a": {"type": "any"}}}, ".properties.a.type", "expected one of array"),
        ({"allOf": [{"type": "string", "pattern": "a", "minLength": "x"}]}, "", "minLength"),
    ],
)
def test_a_bad_schema_of_a_tool_is_blamed_on_the_tool(
    served: Served, choice: Any, schema: dict[str, Any], path: str, says: str
) -> None:
    body = {**ASK, "tools": [tool("good", {"type": "object"}), tool("bad", schema)], "tool_choice": choice}
    with served.client() as client:
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == f"tools[1].function.parameters{path}"
    assert says in error["message"]
    assert "response_format" not in response.text


def test_strict_decides_whether_a_keyword_may_go_unenforced(served: Served) -> None:
    """LibreChat#9242: MCP tools say `uniqueItems`, and every request was refused."""
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    asks: list[tuple[str, Any]] = [
        (
            "response_format.json_schema.schema",
            lambda strict: {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": schema, "strict": strict},
                }
            },
        ),
        (
            "tools[0].function.parameters",
            lambda strict: {"tools": [tool("t", schema, strict=strict)], "tool_choice": "required"},
        ),
    ]
    with served.client() as client:
        for field, ask in asks:
            for relaxed in (False, None):
                response = client.post("/v1/chat/completions", json={**ASK, **ask(relaxed)})
                assert response.status_code == 200, response.text
            response = client.post("/v1/chat/completions", json={**ASK, **ask(True)})
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["param"] == f"{field}.properties.tags.uniqueItems"
            assert "strict" in error["message"]
        assert client.post("/v1/chat/completions", json={**ASK, "guided_json": schema}).status_code == 200


def test_one_strict_tool_beside_a_lax_one(served: Served) -> None:
    lax = tool("lax", {"type": "object", "properties": {"a": {"oneOf": [{"minLength": 1}, {"type": "string"}]}}})
    strict = tool("strict", {"type": "object", "properties": {}, "additionalProperties": False}, strict=True)
    with served.client() as client:
        body = {**ASK, "tools": [lax, strict], "tool_choice": "required"}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        lax["function"]["strict"] = True
        error = client.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "tools[0].function.parameters"
    assert "oneOf" in error["message"]
