"""A fleet whose prompts are computed by one replica and decoded by another: real processes, from a fleet.yaml."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from e2ekit import eventually
from fleet_kit import Served, fleet_process

from shoal import LLM, SamplingParams

TEXT = "How the hand-off of keys and values between two replicas keeps every token as it was. " * 4


def config(model: Path, folder: Path, decoders: int = 1, **options: Any) -> Path:
    own = {"num_blocks": 200, "max_num_batched_tokens": 128} | options
    pools = [
        {"name": "prefill", "role": "prefill", "replicas": 1, "options": own},
        {"name": "decode", "role": "decode", "replicas": decoders, "options": own},
    ]
    shared = {"model": str(model), "served_name": "tiny", "threads": 1}
    path = folder / "fleet.yaml"
    gateway = {"split_threshold_tokens": 64, "prefill_seconds": 20}
    path.write_text(json.dumps({"pools": [pool | shared for pool in pools], "gateway": gateway}))
    return path


@pytest.fixture(scope="module")
def split(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("split")
    with fleet_process("--config", str(config(tiny_folder, home, decoders=2)), home=home) as served:
        yield served
        eventually(lambda: held(served) == 0, "no KV is held for nobody")


@pytest.fixture(scope="module")
def alone(tiny_folder: Path) -> Iterator[LLM]:
    with LLM(str(tiny_folder), num_blocks=200, threads=1) as llm:
        yield llm


def expected(alone: LLM, prompt: str, tokens: int, **sampling: Any) -> str:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, **sampling)
    return alone.generate(prompt, params, use_tqdm=False)[0].outputs[0].text


def figure(served: Served, name: str, of: str = "") -> float:
    """A metric summed over the replicas whose name begins with `of`, asked of themselves."""
    total = 0.0
    for replica in served.view()["replicas"]:
        if not replica["name"].startswith(of) or not replica["pid"]:
            continue
        listening = psutil.Process(replica["pid"]).net_connections(kind="tcp")
        for port in {c.laddr.port for c in listening if c.status == psutil.CONN_LISTEN}:
            # One of the two is for KV and answers nothing.
            with contextlib.suppress(httpx.HTTPError):
                text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10, trust_env=False).text
                lines = [line for line in text.splitlines() if line.startswith(name + "{")]
                total += sum(float(line.rsplit(" ", 1)[1]) for line in lines)
    return total


def held(served: Served) -> float:
    return figure(served, "shoal_kv_blocks_used")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 4}])
def test_it_is_token_exact(split: Served, alone: LLM, sampling: dict[str, Any]) -> None:
    taken, prompt = figure(split, "shoal_kv_offers_taken_total"), f"{len(sampling)} {TEXT}"
    whole = split.complete(prompt, 40, **sampling)
    assert whole.status_code == 200, whole.text
    assert whole.json()["choices"][0]["text"] == expected(alone, prompt, 40, **sampling)
    assert whole.headers["x-shoal-replica"].startswith("decode-")
    usage = whole.json()["usage"]
    assert usage["completion_tokens"] == 40
    assert usage["prompt_tokens_details"]["cached_tokens"] < 16, "the fleet had nothing of it before"
    streamed = split.stream("again " + prompt, 40, **sampling)
    assert (streamed.done, streamed.error) == (True, None)
    assert streamed.text == expected(alone, "again " + prompt, 40, **sampling)
    assert figure(split, "shoal_kv_offers_taken_total") == taken + 2
    assert figure(split, "shoal_kv_imported_blocks_total", "decode") >= 2 * (len(TEXT) // 16)
    eventually(lambda: held(split) == 0, "everything was released")


def test_short_prompts_stay_whole(split: Served) -> None:
    offers = figure(split, "shoal_kv_offers_total")
    assert split.complete("short", 4).status_code == 200
    assert figure(split, "shoal_kv_offers_total") == offers


def test_several_choices_and_prompts_are_answered(split: Served) -> None:
    offers = figure(split, "shoal_kv_offers_total")
    several = split.complete("choices " + TEXT, 3, n=2)
    assert several.status_code == 200, several.text
    assert len(several.json()["choices"]) == 2
    body = {"model": "tiny", "prompt": ["one " + TEXT, "two " + TEXT], "max_tokens": 3}
    prompts = httpx.post(f"{split.url}/v1/completions", json=body, timeout=300, trust_env=False)
    assert prompts.status_code == 200, prompts.text
    assert figure(split, "shoal_kv_offers_total") == offers


def test_the_fleets_metrics_have_hand_offs_by_pool(split: Served) -> None:
    taken = split.metric("shoal_fleet_handoffs_total", event="taken")
    legs = {pool: split.metric("shoal_fleet_legs_total", pool=pool, outcome="ok") for pool in ("prefill", "decode")}
    assert split.complete("counted " + TEXT, 3).status_code == 200
    eventually(lambda: split.metric("shoal_fleet_handoffs_total", event="taken") == taken + 1, "it is counted")
    for pool, before in legs.items():
        assert split.metric("shoal_fleet_legs_total", pool=pool, outcome="ok") == before + 1, pool
    assert split.metric("shoal_fleet_handoffs_live") == 0
    assert split.metric("shoal_fleet_prefill_seconds_count") >= 1


def test_a_client_may_not_say_where_kv_comes_from(split: Served) -> None:
    params = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1}
    answer = split.complete(TEXT, 4, kv_transfer_params=params)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "kv_transfer_params"


def test_a_client_that_leaves_strands_nothing(split: Served) -> None:
    body = {"model": "tiny", "max_tokens": 400, "stream": True, "ignore_eos": True}
    for place in range(4):
        request = {"json": body | {"prompt": f"{place} {TEXT}"}, "timeout": 60}
        with (
            httpx.Client(base_url=split.url, trust_env=False) as client,
            client.stream("POST", "/v1/completions", **request) as response,
        ):
            assert response.status_code == 200
            next(response.iter_lines())
    eventually(lambda: held(split) == 0, "nothing is held or running")


def test_without_the_prefill_replica_it_goes_on(split: Served, alone: LLM) -> None:
    victim = split.replica("prefill-0")
    prompt = "lost leg " + TEXT
    os.kill(victim["pid"], signal.SIGSTOP)
    found: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: found.append(split.complete(prompt, 20, temperature=0)))
    asking.start()
    os.kill(victim["pid"], signal.SIGKILL)
    asking.join(60)
    assert found[0].status_code == 200, found[0].text
    assert found[0].json()["choices"][0]["text"] == expected(alone, prompt, 20, temperature=0)
    eventually(lambda: split.whole(3), "the prefill replica is back", 90)
    offers = figure(split, "shoal_kv_offers_taken_total", "prefill")
    again = split.complete("back " + prompt, 20, temperature=0)
    assert again.json()["choices"][0]["text"] == expected(alone, "back " + prompt, 20, temperature=0)
    assert figure(split, "shoal_kv_offers_taken_total", "prefill") == offers + 1


def test_a_decode_replica_that_dies_is_gone_on_from_by_the_other(split: Served, alone: LLM) -> None:
    prompt, sampling = "dying decode " + TEXT, {"temperature": 1.0, "seed": 12}
    victims: list[str] = []

    def kill_once(response: httpx.Response) -> None:
        if not victims:
            victims.append(response.headers["x-shoal-replica"])
            os.kill(split.replica(victims[0])["pid"], signal.SIGKILL)

    streamed = split.stream(prompt, 600, kill_once, **sampling)
    assert (streamed.status, streamed.done, streamed.error) == (200, True, None)
    assert victims[0].startswith("decode-")
    assert streamed.text == expected(alone, prompt, 600, **sampling)
    assert split.metric("shoal_fleet_continuations_total") >= 1
    eventually(lambda: split.whole(3), "it is back", 90)


@pytest.mark.realmodel
@pytest.mark.slow
def test_smollm2_is_token_exact(smollm2_path: Path, tmp_path: Path) -> None:
    own = {"num_blocks": 300}
    with LLM(str(smollm2_path), num_blocks=300, threads=1) as whole:
        wanted = expected(whole, TEXT, 32, temperature=0)
    with fleet_process("--config", str(config(smollm2_path, tmp_path, **own)), home=tmp_path) as served:
        answer = served.complete(TEXT, 32, temperature=0)
        assert answer.json()["choices"][0]["text"] == wanted
        assert figure(served, "shoal_kv_offers_taken_total") == 1
        assert figure(served, "shoal_kv_imports_failed_total") == 0
        eventually(lambda: held(served) == 0, "everything was released")
