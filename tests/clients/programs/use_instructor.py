"""Instructor: nested models by tools, JSON schema and streamed partial objects."""

import sys

import instructor
from nested import QUESTION, Person, check
from openai import OpenAI

url, model = sys.argv[1:3]
openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
question = [{"role": "user", "content": QUESTION}]
common = {"model": model, "messages": question, "max_retries": 0, "temperature": 0, "max_tokens": 100}
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    check(instructor.from_openai(openai, mode=mode).chat.completions.create(response_model=Person, **common))
    print(f"mode {mode.name}")
partial = instructor.from_openai(openai, mode=instructor.Mode.TOOLS)
pieces = list(partial.chat.completions.create_partial(response_model=Person, **common))
assert len(pieces) > 1, "the arguments of a required call come as they are generated"
print("partial objects")
