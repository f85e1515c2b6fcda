"""LiteLLM: whole, streamed, a forced tool, and the loop's second turn with the fields it adds to messages."""

import sys

import litellm
from nested import QUESTION, Person, check

litellm.suppress_debug_info = True

url, model = sys.argv[1:3]
common = {
    "model": f"openai/{model}",
    "api_base": f"{url}/v1",
    "api_key": "none",
    "temperature": 0,
    "max_tokens": 80,
}
schema = {"type": "object", "properties": {"person": Person.model_json_schema()}, "required": ["person"]}
tools = [{"type": "function", "function": {"name": "store", "description": "Store.", "parameters": schema}}]
question = {"role": "user", "content": QUESTION}

assert litellm.completion(messages=[question], **common).choices[0].message.content
print("whole")
pieces = list(
    litellm.completion(messages=[question], stream=True, stream_options={"include_usage": True}, **common)
)
assert len(pieces) > 2
rebuilt = litellm.stream_chunk_builder(pieces, messages=[question])
assert rebuilt.usage.completion_tokens > 0
print("stream")
answer = litellm.completion(messages=[question], tools=tools, tool_choice="required", **common)
message = answer.choices[0].message
call = message.tool_calls[0]
print("forced tool")
message.tool_calls = [call]
# LiteLLM sends back what it has made of the answer: `provider_specific_fields` and all [litellm#25595].
turn = message.model_dump()
turn["provider_specific_fields"] = {"refusal": None}
turn["tool_calls"][0]["provider_specific_fields"] = {"thought_signature": "x"}
result = {"role": "tool", "tool_call_id": call.id, "name": "store", "content": "stored"}
cached = {"role": "user", "content": [{"type": "text", "text": "Thanks.", "cache_control": {"type": "ephemeral"}}]}
second = litellm.completion(messages=[question, turn, result, cached], tools=tools, tool_choice="none", **common)
assert second.choices[0].message is not None
print("second turn")
structured = litellm.completion(messages=[question], response_format=Person, **common)
check(Person.model_validate_json(structured.choices[0].message.content))
print("structured output")
answer = litellm.responses(model=f"openai/{model}", input="Say hello.", api_base=f"{url}/v1", api_key="none")
assert answer.output
print("responses API")
