"""pydantic-ai: its default (tool) output of a nested model, native output, streams, and both vendors' dialects."""

import asyncio
import sys

from nested import QUESTION, Person, check
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

url, model = sys.argv[1:3]
provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
settings = {"temperature": 0.0, "max_tokens": 100}
chat = OpenAIChatModel(model, provider=provider, settings=settings)


async def main() -> None:
    assert (await Agent(chat).run("Say hello.")).output
    print("whole")
    async with Agent(chat).run_stream("Say hello.") as stream:
        assert [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    print("stream")
    check((await Agent(chat, output_type=Person).run(QUESTION)).output)
    print("tool output of a nested model")
    check((await Agent(chat, output_type=NativeOutput(Person)).run(QUESTION)).output)
    print("native output of a nested model")
    responses = OpenAIResponsesModel(model, provider=provider, settings=settings)
    check((await Agent(responses, output_type=Person).run(QUESTION)).output)
    print("responses API")
    messages = AnthropicModel(model, provider=AnthropicProvider(base_url=url, api_key="none"), settings=settings)
    check((await Agent(messages, output_type=Person).run(QUESTION)).output)
    print("messages API")


asyncio.run(main())
