"""openai-agents: a tool of a nested model in a loop, structured output, streams; by both of OpenAI's APIs."""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from nested import QUESTION, Person, check
from openai import AsyncOpenAI

url, model = sys.argv[1:3]
set_tracing_disabled(True)
stored: list[Person] = []


@function_tool
def store(person: Person) -> str:
    """Store a person."""
    stored.append(person)
    return f"stored {person.name}"


async def main() -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        dialect = kind(model=model, openai_client=client)
        settings = ModelSettings(temperature=0, max_tokens=100)
        plain = Agent(name="plain", model=dialect, model_settings=settings)
        assert (await Runner.run(plain, "Say hello.")).final_output
        streamed = Runner.run_streamed(plain, "Say hello.")
        assert [event async for event in streamed.stream_events()]
        # The first turn must call; the library sets the choice back to auto for the second. There this small model
        # repeats the template's mark for ever, and the library takes a response without an end for an error.
        forced = ModelSettings(
            temperature=0, max_tokens=100, tool_choice="required", extra_body={"stop": ["<tool_response>"]}
        )
        before = len(stored)
        await Runner.run(
            Agent(name="store", model=dialect, model_settings=forced, tools=[store]), QUESTION, max_turns=8
        )
        assert len(stored) > before
        check(stored[-1])
        typed = Agent(name="typed", model=dialect, model_settings=settings, output_type=Person)
        check((await Runner.run(typed, QUESTION)).final_output)
        print(f"whole, stream, tool loop and structured output by {kind.__name__}")


asyncio.run(main())
