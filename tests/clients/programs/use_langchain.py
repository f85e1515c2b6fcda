"""langchain-openai: messages, streams, a bound tool with a nested model and its loop, structured output."""

import sys

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from nested import QUESTION, Person, check

url, model = sys.argv[1:3]
chat = ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=80, max_retries=0)


@tool
def store(person: Person) -> str:
    """Store a person."""
    return f"stored {person.name}"


assert chat.invoke("Say hello.").content
print("whole")
pieces = [piece.content for piece in chat.stream("Say hello.")]
assert len(pieces) > 1
assert "".join(str(p) for p in pieces)
print("stream")
bound = chat.bind_tools([store], tool_choice="required")
question = HumanMessage(QUESTION)
called = bound.invoke([question])
(call,) = called.tool_calls[:1]
check(Person.model_validate(call["args"]["person"]))
print("tool with a nested model")
result = ToolMessage(store.invoke(call["args"]), tool_call_id=call["id"])
called.tool_calls = called.tool_calls[:1]
assert chat.bind_tools([store], tool_choice="none").invoke([question, called, result]).content is not None
print("second turn")
for method in ("json_schema", "function_calling"):
    check(chat.with_structured_output(Person, method=method).invoke(QUESTION))
    print(f"structured output by {method}")
responses = ChatOpenAI(
    model=model, base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=80, use_responses_api=True
)
assert responses.invoke("Say hello.").text
assert len(list(responses.stream("Say hello."))) > 1
print("responses API")
