"""LlamaIndex: OpenAILike with whole and streamed chat, structured prediction of a nested model, a tool's loop."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from nested import QUESTION, Person, check

url, model = sys.argv[1:3]
llm = OpenAILike(
    model=model,
    api_base=f"{url}/v1",
    api_key="none",
    temperature=0,
    max_tokens=80,
    max_retries=0,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=2048,
)


def store(person: Person) -> str:
    """Store a person."""
    return f"stored {person.name}"


assert llm.chat([ChatMessage(role="user", content="Say hello.")]).message.content
print("whole")
assert len(list(llm.stream_chat([ChatMessage(role="user", content="Say hello.")]))) > 1
print("stream")
check(llm.structured_predict(Person, PromptTemplate("{text}"), text=QUESTION))
print("structured prediction")
tool = FunctionTool.from_defaults(store)
answer = llm.chat_with_tools([tool], user_msg=QUESTION, tool_required=True)
call = llm.get_tool_calls_from_response(answer)[0]
check(Person.model_validate(call.tool_kwargs["person"]))
print("tool with a nested model")
history = [
    ChatMessage(role="user", content=QUESTION),
    answer.message,
    ChatMessage(role="tool", content="stored Jean", additional_kwargs={"tool_call_id": call.tool_id}),
]
assert llm.chat(history).message is not None
print("second turn")
