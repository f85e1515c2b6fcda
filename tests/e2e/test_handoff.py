"""Prefill on one real replica, decode on another: same tokens as on one, whatever goes wrong on the way."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2ekit import Running, eventually, running

from shoal.engine.handoff.exporter import Exporter
from shoal.engine.handoff.wire import HEADER_LIMIT, Fetch, Taken, Wanted, encode
from shoal.engine.kv_transfer import KvTransferParams, genuine, signed
from shoal.engine.options import EngineOptions
from shoal.server.options import ServerOptions

KEY = "shared by both"
PROMPT = "The hand-off of keys and values from one replica to another. " * 5
ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


def replica(model: Path, key: str = KEY, **changes: Any) -> Any:
    options: dict[str, Any] = {"num_blocks": 200, "max_num_batched_tokens": 128, "threads": 1}
    options |= {"kv_transfer": "tcp://127.0.0.1:0"} | changes
    server = ServerOptions(port=0, drain_seconds=0, kv_key=key)
    return running(EngineOptions(model=str(model), served_name="tiny", **options), server)


@pytest.fixture(scope="module")
def legs(tiny_model: Path) -> Iterator[tuple[Running, Running]]:
    with replica(tiny_model) as prefill, replica(tiny_model) as decode:
        yield prefill, decode


@pytest.fixture
def both(legs: tuple[Running, Running]) -> Iterator[tuple[Running, Running]]:
    yield legs
    for leg in legs:
        leg.check()


def complete(at: Running, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    with at.client() as client:
        answer = client.post("/v1/completions", json=body | {"return_token_ids": True} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def prefilled(at: Running, prompt: str) -> dict[str, Any]:
    return complete(at, prompt, max_tokens=1, kv_transfer_params=ASK)["kv_transfer_params"]


def figure(at: Running, name: str) -> int:
    assert at.replica.engine is not None
    return int(getattr(at.replica.engine.stats(), name))


def hits(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_both_legs_together_are_one_whole(both: tuple[Running, Running], tiny: Running) -> None:
    prefill, decode = both
    imported = figure(decode, "kv_imported_blocks")
    params = prefilled(prefill, "1" + PROMPT)
    assert figure(prefill, "kv_used_blocks") > 0, "held for the other"
    split = complete(decode, "1" + PROMPT, kv_transfer_params=params)
    whole = complete(tiny, "1" + PROMPT)
    assert split["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]
    blocks = (len(PROMPT) + 1) // 16
    assert figure(decode, "kv_imported_blocks") - imported == blocks
    assert hits(split) == blocks * 16
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert split["usage"][count] == whole["usage"][count]
    eventually(lambda: figure(prefill, "kv_used_blocks") == 0, "the holder was told to let go")


def test_the_numbers_that_arrive_are_those_that_left(both: tuple[Running, Running]) -> None:
    prefill, decode = both
    complete(decode, "2" + PROMPT, kv_transfer_params=prefilled(prefill, "2" + PROMPT))
    stored = []
    for leg in both:
        core = leg.replica.engine._core
        prompt = core._tokenizer.encode("2" + PROMPT)
        pool, hasher = core._scheduler._tables.pool, core._scheduler._tables._hasher
        blocks = [pool.lookup(h) for h in hasher.hashes(prompt)]
        assert None not in blocks
        stored.append(core.kv_store.read(blocks))
    assert any(stored[0])
    assert stored[0] == stored[1]


def test_what_is_there_already_is_not_sent_again(both: tuple[Running, Running]) -> None:
    prefill, decode = both
    complete(decode, "3" + PROMPT)
    imported, taken = figure(decode, "kv_imported_blocks"), figure(prefill, "kv_offers_taken")
    complete(decode, "3" + PROMPT, kv_transfer_params=prefilled(prefill, "3" + PROMPT))
    assert figure(decode, "kv_imported_blocks") == imported
    eventually(lambda: figure(prefill, "kv_offers_taken") == taken + 1, "it was released all the same")


def _forged(params: dict[str, Any]) -> dict[str, Any]:
    return params | {"remote_port": 1}


def _of_nobody(params: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in params.items() if k != "signature"}


def _gone(params: dict[str, Any]) -> dict[str, Any]:
    found = KvTransferParams(**params | {"signature": None, "remote_request_id": "0" * 32})
    return _built(signed(found, KEY.encode()))


def _refusing(params: dict[str, Any]) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return _built(signed(KvTransferParams(**params | {"signature": None, "remote_port": port}), KEY.encode()))


def _built(params: KvTransferParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


@pytest.mark.parametrize("spoil", [_forged, _of_nobody, _gone, _refusing])
def test_without_the_prefill_the_prompt_is_computed_here(
    spoil: Any, both: tuple[Running, Running], tiny: Running
) -> None:
    prefill, decode = both
    prompt = spoil.__name__ + PROMPT
    failed = figure(decode, "kv_imports_failed")
    params = prefilled(prefill, prompt)
    split = complete(decode, prompt, kv_transfer_params=spoil(params))
    assert split["choices"][0]["token_ids"] == complete(tiny, prompt)["choices"][0]["token_ids"]
    assert hits(split) < 16, "nothing was taken over"
    assert figure(decode, "kv_imports_failed") == failed + 1
    complete(decode, prompt, kv_transfer_params=params)
    eventually(lambda: figure(prefill, "kv_used_blocks") == 0, "the true one releases")


def test_another_prompts_blocks_are_not_taken(both: tuple[Running, Running], tiny: Running) -> None:
    prefill, decode = both
    params = prefilled(prefill, "4" + PROMPT)
    split = complete(decode, "5" + PROMPT, kv_transfer_params=params)
    assert split["choices"][0]["token_ids"] == complete(tiny, "5" + PROMPT)["choices"][0]["token_ids"]
    eventually(lambda: figure(prefill, "kv_used_blocks") == 0, "and the holder need not keep them")


def test_another_salt_is_another_prompt(both: tuple[Running, Running]) -> None:
    prefill, decode = both
    split = complete(decode, "6" + PROMPT, cache_salt="mine", kv_transfer_params=prefilled(prefill, "6" + PROMPT))
    assert hits(split) == 0
    eventually(lambda: figure(prefill, "kv_used_blocks") == 0, "it was let go")


def test_too_little_memory_takes_what_fits(tiny_model: Path, both: tuple[Running, Running], tiny: Running) -> None:
    prefill, _ = both
    with replica(tiny_model, num_blocks=30) as small:
        split = complete(small, "7" + PROMPT, kv_transfer_params=prefilled(prefill, "7" + PROMPT))
        assert split["choices"][0]["token_ids"] == complete(tiny, "7" + PROMPT)["choices"][0]["token_ids"]
        small.check()
    eventually(lambda: figure(prefill, "kv_used_blocks") == 0, "it was let go")


def test_another_block_size_or_key_is_no_partner(tiny_model: Path, both: tuple[Running, Running]) -> None:
    prefill, _ = both
    for changes in ({"block_size": 32}, {"key": "another"}):
        prompt = f"{changes}{PROMPT}"
        params = prefilled(prefill, prompt)
        with replica(tiny_model, **changes) as other:
            assert hits(complete(other, prompt, kv_transfer_params=params)) == 0
            assert figure(other, "kv_imports_failed") == 1
            other.check()
        complete(both[1], prompt, kv_transfer_params=params)
    eventually(lambda: figure(prefill, "kv_used_blocks") == 0, "everything was let go")


def test_a_short_prompt_and_a_replica_without_it_offer_nothing(
    both: tuple[Running, Running], tiny: Running
) -> None:
    assert "kv_transfer_params" not in complete(both[0], "short", max_tokens=1, kv_transfer_params=ASK)
    assert "kv_transfer_params" not in complete(tiny, PROMPT, max_tokens=1, kv_transfer_params=ASK)


def test_the_layout_is_the_same_in_every_process(tiny_model: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import torch; from shoal.specs import load_model_spec;"
        "from shoal.engine.kv.cache import KvCache; from shoal.engine.kv.blocks import KvBlocks;"
        "spec = load_model_spec(Path(sys.argv[1]));"
        "kv = KvCache(spec, 2, 16, torch.float32, torch.device('cpu')); print(KvBlocks(kv, spec, '').layout.hex())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script, str(tiny_model)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


class Memory:
    """Blocks of four bytes."""

    layout = b"layout"
    block_bytes = 4

    def read(self, blocks: Any) -> bytes:
        return b"".join(block.to_bytes(4, "big") for block in blocks)

    def write(self, blocks: Any, data: bytes) -> None: ...


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def exporter(lease_seconds: float = 30.0) -> Any:
    released: list[int] = []
    made = Exporter(Memory(), released.append, b"key", lease_seconds)
    await made.start("127.0.0.1", 0)
    try:
        yield made, released
    finally:
        await made.close()


def _held(place: int = 7) -> Any:
    from shoal.policy.batching import HeldPrefix

    return HeldPrefix(place, (1, 2, 3), (b"a", b"b", b"c"))


async def test_a_lease_that_nobody_takes_ends_by_itself() -> None:
    async with exporter(0.05) as (made, released):
        params = made.offer(_held())
        assert genuine(params, b"key")
        assert not genuine(params, b"kez")
        await _until(lambda: released == [7])
        assert (made.offered, made.expired, made.taken) == (1, 1, 0)
        assert made.idle.is_set()


async def test_a_taker_that_breaks_off_may_come_again() -> None:
    async with exporter() as (made, released):
        params = made.offer(_held())
        for ends_well in (False, False, True):
            reader, writer = await asyncio.open_connection(*made.address)
            writer.write(encode(Fetch(params.remote_request_id or "", b"layout", 0)))
            writer.write(encode(Wanted()))
            await reader.readuntil(Memory().read((1, 2, 3)))
            assert not released
            if ends_well:
                writer.write(encode(Taken()))
                await writer.drain()
            writer.close()
        await _until(lambda: released == [7])
        assert (made.taken, made.expired) == (1, 0)


async def test_the_clock_frees_no_blocks_that_are_being_sent() -> None:
    async with exporter(0.1) as (made, released):
        params = made.offer(_held())
        reader, writer = await asyncio.open_connection(*made.address)
        writer.write(encode(Fetch(params.remote_request_id or "", b"layout", 0)))
        writer.write(encode(Wanted()))
        await reader.readuntil(Memory().read((1, 2, 3)))
        await _until(lambda: made._offers[params.remote_request_id].overdue)
        assert not released
        writer.close()
        await _until(lambda: released == [7])
        assert made.expired == 1


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\5junk!", (HEADER_LIMIT + 1).to_bytes(4, "big"), b"\0", encode(Taken())],
)
async def test_garbage_ends_a_connection_and_nothing_else(garbage: bytes) -> None:
    async with exporter() as (made, released):
        made.offer(_held())
        reader, writer = await asyncio.open_connection(*made.address)
        writer.write(garbage)
        writer.write_eof()
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        assert not released
    assert released == [7], "closing releases"
