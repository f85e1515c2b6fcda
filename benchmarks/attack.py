"""What a stream of one client feels while others attack: p99 of its inter-token gaps, quiet and attacked.

    python benchmarks/attack.py [--model smollm2-135m] [--rounds 3] [--replicas 1,2]
                                [--append benchmarks/results/attack.md]

Attackers are a process of their own with a few requests at a time: prompts of 4, 8 and 16 MB (text and token ids),
bodies of nothing but brackets, schemas of 5,000 properties that are new each time, answers forced into a tool call
that never ends, and 1,000 connections that say nothing. Quiet and attacked rounds take turns.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import multiprocessing
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from machine import append, describe
from peers.engines import shoal_server

MB = 10**6
IDLE_CONNECTIONS = 1000
ATTACK_SECONDS = 60.0
"""Of one request; what takes longer is given up."""


@dataclass(frozen=True)
class Request:
    path: str
    body: bytes


def _chat(model: str, content: str, **fields: Any) -> Request:
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, **fields}
    return Request("/v1/chat/completions", json.dumps(body).encode())


def _prompts(model: str) -> Iterator[Request]:
    words = "The quick brown fox jumps over the lazy dog. "
    # A MiB below 16, the largest body that is read.
    texts = [(words * (size // len(words) + 1))[:size] for size in (4 * MB, 8 * MB, 16 * MB - 10_000)]
    ids = json.dumps({"model": model, "prompt": [1, 2] * 500_000}).encode()
    yield from itertools.cycle([*(_chat(model, text) for text in texts), Request("/v1/completions", ids)])


def _brackets(model: str) -> Iterator[Request]:
    head = f'{{"model":"{model}","messages":[{{"role":"user","content":"a"}}],"metadata":{{"a":['.encode()
    lists = Request("/v1/chat/completions", head + b"[]," * (15 * MB // 3) + b"[]]}}")
    ids = f'{{"model":"{model}","prompt":['.encode() + b"1," * (15 * MB // 2) + b"1]}"
    yield from itertools.cycle([lists, Request("/v1/completions", ids)])


def _schemas(model: str) -> Iterator[Request]:
    for turn in itertools.count():
        properties = {f"p{turn}_{i}": {"type": "integer"} for i in range(5000)}
        yield _chat(model, "Hello", guided_json={"type": "object", "properties": properties})


def _tool_text(model: str) -> Iterator[Request]:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for turn in itertools.count():
        text = f"<tool_call>{' ' * 6400}{turn}"
        yield _chat(model, "Call it", tools=[tool], guided_choice=[text], max_tokens=200, stream=True)


ATTACKS: dict[str, Callable[[str], Iterator[Request]]] = {
    "prompts of 4 to 16 MB": _prompts,
    "dense JSON of 15 MB": _brackets,
    "schemas of 5,000 properties": _schemas,
    "endless tool calls": _tool_text,
}


def _send_for_ever(port: int, requests: Iterator[Request], statuses: Any) -> None:
    for request in requests:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ATTACK_SECONDS)
        try:
            connection.request("POST", request.path, request.body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            statuses.put(answer.status)
        except (OSError, http.client.HTTPException) as error:
            statuses.put(type(error).__name__)
        finally:
            connection.close()


def _attack(port: int, model: str, names: list[str], idle: bool, statuses: Any) -> None:
    """The attackers' process: one request of each kind at a time, until it is ended."""
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(IDLE_CONNECTIONS if idle else 0)]
    threads = [
        threading.Thread(target=_send_for_ever, args=(port, ATTACKS[name](model), statuses)) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in held:
        connection.close()
    if not names:
        time.sleep(3600)


def gaps_of_stream(port: int, model: str, tokens: int) -> list[float]:
    """Seconds between the events of one greedy stream."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = {"model": model, "prompt": "The sea is", "max_tokens": tokens, "temperature": 0, "stream": True}
    connection.request(
        "POST", "/v1/completions", json.dumps(body | {"ignore_eos": True}), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"the victim was refused: {answer.status} {answer.read(500)!r}")
    gaps, last = [], None
    while line := answer.readline():
        if line.startswith(b"data: {"):
            now = time.perf_counter()
            if last is not None:
                gaps.append(now - last)
            last = now
    connection.close()
    return gaps


@dataclass
class Measured:
    quiet: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    statuses: dict[str, int] = field(default_factory=dict)

    def row(self, target: str, attack: str) -> str:
        quiet, attacked = (np.percentile(g, 99) * 1000 for g in (self.quiet, self.attacked))
        answers = ", ".join(f"{n} × {s}" for s, n in sorted(self.statuses.items())) or "–"
        return (
            f"| {target} | {attack} | {np.median(self.quiet) * 1000:.0f} | {quiet:.0f} | {attacked:.0f} "
            f"| {max(self.attacked) * 1000:.0f} | {attacked / quiet:.2f} | {answers} |"
        )


def measure(port: int, model: str, names: list[str], idle: bool, rounds: int, tokens: int) -> Measured:
    found = Measured()
    spawn = multiprocessing.get_context("spawn")
    for _ in range(rounds):
        found.quiet += gaps_of_stream(port, model, tokens)
        statuses = spawn.Queue()
        attacker = spawn.Process(target=_attack, args=(port, model, names, idle, statuses), daemon=True)
        attacker.start()
        time.sleep(3.0)
        found.attacked += gaps_of_stream(port, model, tokens)
        while not statuses.empty():
            status = str(statuses.get())
            found.statuses[status] = found.statuses.get(status, 0) + 1
        attacker.kill()
        attacker.join()
        time.sleep(8.0)  # what is under way ends
    return found


@contextlib.contextmanager
def serving(model: str, replicas: int, log: Path) -> Iterator[int]:
    with shoal_server(model, "--threads", "1", "--replicas", str(replicas), log=log, seconds=180) as port:
        gaps_of_stream(port, model, 50)
        yield port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--replicas", default="1,2")
    parser.add_argument("--only", choices=["each", "together"], help="one attack at a time, or all; default: both")
    parser.add_argument("--logs", type=Path, default=Path("/tmp/shoal-bench"))
    parser.add_argument("--append", type=Path)
    asked = parser.parse_args()
    asked.logs.mkdir(parents=True, exist_ok=True)
    facts = [*describe(), ("command", shlex.join(["python", *sys.argv]))]
    cases: list[tuple[str, list[str], bool]] = [(name, [name], False) for name in ATTACKS]
    cases.append((f"{IDLE_CONNECTIONS} idle connections", [], True))
    if asked.only == "together":
        cases = []
    if asked.only != "each":
        cases.append(("all at once", list(ATTACKS), True))
    lines = [
        "| served by | attack | quiet p50, ms | quiet p99, ms | attacked p99, ms | attacked max, ms | p99 ratio "
        "| answers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for count in (int(n) for n in asked.replicas.split(",")):
        target = "one replica" if count == 1 else f"a fleet of {count}"
        with serving(asked.model, count, asked.logs / f"attack-{count}.log") as port:
            for name, names, idle in cases:
                found = measure(port, asked.model, names, idle, asked.rounds, asked.tokens)
                lines.append(found.row(target, name))
                print(lines[-1], flush=True)
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + "\n".join(lines))
    if asked.append:
        append(asked.append, f"A stream under attack, {facts[0][1][:10]}", facts, "\n".join(lines))


if __name__ == "__main__":
    main()
