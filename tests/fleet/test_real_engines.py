"""Other people's engines in one fleet: two real vLLM servers with KV events, and a llama.cpp server.

Minutes each; `make test-peers` runs it.
"""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from e2ekit import eventually
from fleet_kit import Served, alive, fleet_process
from peers_kit import converted, llama_server, vllm_python

pytestmark = [pytest.mark.peers, pytest.mark.realmodel, pytest.mark.timeout(1800)]
START_SECONDS = 1500


@pytest.fixture(scope="module")
def vllm(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm")
    config = {
        "pools": [
            {
                "name": "vllm",
                "model": str(converted(smollm2_path)),
                "served_name": "tiny",
                "engine": "vllm",
                "replicas": 2,
                "executable": vllm_python(),
                "kv_events": True,
                "options": {"dtype": "float32", "enforce_eager": True, "max_model_len": 1024},
                "environment": {
                    "VLLM_CPU_KVCACHE_SPACE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "HF_HUB_OFFLINE": "1",
                },
            }
        ],
        # Exact knowledge alone: what it predicts comes from the engines' events.
        "router": {"policy": "kv"},
        "health": {"check_timeout": 10, "hang_seconds": 120},
        "gateway": {"first_byte_seconds": 600, "stall_seconds": 300},
        "supervisor": {"start_seconds": START_SECONDS},
    }
    yield from _serving(config, folder)


@pytest.fixture(scope="module")
def llamacpp(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("llamacpp")
    config = {
        "pools": [
            {
                "name": "llama",
                "model": str(smollm2_path),
                "served_name": "tiny",
                "engine": "llamacpp",
                "executable": llama_server(folder),
                "options": {"ctx_size": 2048, "parallel": 2},
            }
        ],
        "health": {"check_timeout": 10},
    }
    yield from _serving(config, folder)


def _serving(config: object, folder: Path) -> Iterator[Served]:
    path = folder / "fleet.yaml"
    path.write_text(json.dumps(config))
    with fleet_process("--config", str(path), home=folder, seconds=START_SECONDS) as served:
        yield served


def basics(served: Served) -> None:
    """What every engine behind the gateway must do."""
    whole = served.complete("The capital of France is", 8, ignore_eos=False)
    assert whole.status_code == 200, whole.text
    assert whole.json()["usage"]["completion_tokens"] > 0
    streamed = served.stream("The capital of France is", 8, ignore_eos=False)
    assert (streamed.status, streamed.done, streamed.error) == (200, True, None)
    assert streamed.text == whole.json()["choices"][0]["text"]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 6}
    chat = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=300, trust_env=False)
    assert chat.status_code == 200, chat.text
    assert chat.json()["choices"][0]["message"]["content"]
    # The client's mistakes are told by the engine, and cost no replica its good name.
    for _ in range(6):
        wrong = served.complete("far too long " * 3000, 4)
        assert 400 <= wrong.status_code < 500, wrong.text
    assert set(served.states()) == {"ready"}
    assert served.metric("shoal_fleet_leases") == 0


def leaves_early(served: Served) -> None:
    """A client that leaves ends the work in the engine."""
    body = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with (
        httpx.Client(base_url=served.url, timeout=300, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        next(response.iter_lines())
    eventually(lambda: served.metric("shoal_fleet_leases") == 0, "the lease is released", 30)
    eventually(lambda: sum(r["running"] for r in served.view()["replicas"]) == 0, "the engine stops", 60)


def test_vllm_basics(vllm: Served) -> None:
    basics(vllm)
    assert all(r["kv_capacity_tokens"] > 1000 for r in vllm.view()["replicas"])


def test_vllm_abort(vllm: Served) -> None:
    leaves_early(vllm)


def test_vllm_prefixes_are_routed_by_its_events(vllm: Served) -> None:
    """Whoever computed a prefix gets its next turn: predicted from events, confirmed by `cached_tokens`."""
    conversations = [[1000 + 500 * n + i for i in range(400)] for n in range(12)]
    # Many at once: few may rightly go to one replica alone, if the other looks slow after its first steps.
    with ThreadPoolExecutor(len(conversations)) as pool:
        answers = list(pool.map(lambda tokens: vllm.complete(tokens, 2), conversations))  # type: ignore[arg-type]
    homes = [answer.headers["x-shoal-replica"] for answer in answers]
    assert set(homes) == {"vllm-0", "vllm-1"}

    def hit(tokens: list[int], **fields: str) -> tuple[str, int, int]:
        answer = vllm.complete([*tokens, 77, 78, 79], 2, **fields)  # type: ignore[arg-type]
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer.headers["x-shoal-replica"], int(answer.headers["x-shoal-predicted-hit"]), cached

    for tokens, home in zip(conversations, homes, strict=True):
        replica, predicted, cached = hit(tokens)
        assert replica == home
        assert predicted == cached >= 256
    # Salted, the same tokens are other content, and its events say so.
    assert hit(conversations[0], cache_salt="salt")[1:] == (0, 0)
    _, predicted, cached = hit(conversations[0], cache_salt="salt")
    assert predicted == cached >= 256


def test_vllm_killed_under_a_stream(vllm: Served) -> None:
    """The stream is carried on by the other one; nothing of the dead one's processes is left; it comes back."""
    expected = vllm.complete("Count: one, two, three,", 40).json()["choices"][0]["text"]
    killed: list[psutil.Process] = []

    def kill_once(response: httpx.Response) -> None:
        if not killed:
            process = psutil.Process(vllm.replica(response.headers["x-shoal-replica"])["pid"])
            killed.extend([process, *process.children(recursive=True)])
            os.kill(process.pid, signal.SIGKILL)

    streamed = vllm.stream("Count: one, two, three,", 40, kill_once)
    assert (streamed.done, streamed.error) == (True, None)
    assert streamed.text == expected
    eventually(lambda: not any(alive(process) for process in killed), "its processes are gone", 60)
    eventually(lambda: vllm.whole(2), "it is back", START_SECONDS)


def test_llama_cpp_basics(llamacpp: Served) -> None:
    basics(llamacpp)
    (only,) = llamacpp.view()["replicas"]
    assert only["kv_capacity_tokens"] == 2048
    assert llamacpp.metric("shoal_fleet_hit_tokens_total") >= 0


def test_llama_cpp_abort(llamacpp: Served) -> None:
    leaves_early(llamacpp)


def test_llama_cpp_killed(llamacpp: Served) -> None:
    os.kill(llamacpp.pids()[0], signal.SIGKILL)
    # It is the only one: who comes meanwhile waits at the door, or is told to come back.
    assert llamacpp.complete("Hello", 4).status_code in (200, 503)
    eventually(lambda: llamacpp.whole(1), "it is back", 120)
    assert llamacpp.complete("Hello", 4).status_code == 200
