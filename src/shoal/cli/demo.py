"""The demo of `shoal serve --demo-prompt`: one question over the real HTTP endpoint, its answer as it comes."""

import time
from typing import Any

import httpx
import msgspec
from rich.console import Console

_DEADLINE = httpx.Timeout(30.0, read=300.0)


async def ask(console: Console, url: str, model: str, prompt: str, api_key: str | None) -> bool:
    """Print prompt, streamed answer, time to first token and tokens/s. False if the endpoint did not answer."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 128,
    }
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    console.print(f"\n[bold]> {prompt}[/bold]")
    started = time.perf_counter()
    first: float | None = None
    usage: dict[str, Any] = {}
    try:
        async with (
            httpx.AsyncClient(timeout=_DEADLINE, trust_env=False) as client,
            client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                await response.aread()
                console.print(f"[red]the endpoint answered {response.status_code}: {response.text}[/red]")
                return False
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk: dict[str, Any] = msgspec.json.decode(line[6:])
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices", ()):
                    text = choice["delta"].get("content")
                    if text:
                        first = first if first is not None else time.perf_counter()
                        console.print(text, end="", markup=False, soft_wrap=True)
    except httpx.HTTPError as error:
        console.print(f"[red]the endpoint did not answer: {type(error).__name__} {error}[/red]")
        return False
    ended = time.perf_counter()
    console.print()
    if first is not None and usage:
        tokens = int(usage["completion_tokens"])
        rate = f", {(tokens - 1) / (ended - first):.1f} tokens/s" if tokens > 1 and ended > first else ""
        console.print(f"[dim]{tokens} tokens, first after {1000 * (first - started):.0f} ms{rate}[/dim]\n")
    return first is not None
