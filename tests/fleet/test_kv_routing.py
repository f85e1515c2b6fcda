"""Two of our own replicas whose KV events alone say who holds what: predictions come true, salted or not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2ekit import eventually
from fleet_kit import Served, fleet_process


@pytest.fixture(scope="module")
def told(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("home")
    pool = {"name": "tiny", "model": str(tiny_folder), "served_name": "tiny", "replicas": 2, "kv_events": True}
    path = home / "fleet.yaml"
    pool |= {"options": {"num_blocks": 200}, "aliases": ["default"]}
    config = {"pools": [pool], "router": {"policy": "kv"}}
    path.write_text(json.dumps(config))
    with fleet_process("--config", str(path), home=home) as served:
        yield served


def ask(served: Served, tokens: list[int], **fields: str) -> tuple[str, int, int]:
    """(replica, tokens that it was predicted to hold, tokens that it reused)."""
    answer = served.complete(tokens, 2, **fields)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer.headers["x-shoal-replica"], int(answer.headers["x-shoal-predicted-hit"]), cached


@pytest.mark.parametrize("fields", [{}, {"cache_salt": "a tenant's"}], ids=["plain", "salted"])
def test_whoever_computed_a_prefix_gets_its_next_turn(told: Served, fields: dict[str, str]) -> None:
    offset = 20 if fields else 0
    conversations: list[list[int]] = []
    homes: list[str] = []
    # On a busy machine one replica may look slower for a while, and is asked less.
    while len(homes) < 4 or (len(set(homes)) < 2 and len(homes) < 24):
        conversations.append([5 + offset + 3 * len(homes) + i % 9 for i in range(160)])
        homes.append(ask(told, conversations[-1], **fields)[0])
    assert set(homes) == {"tiny-0", "tiny-1"}
    expected = [(home, held, held) for home in homes for held in (144, 160)]

    def next_turns() -> bool:
        return all(
            ask(told, [*tokens, 7, 8, 9], **fields) in expected[2 * n : 2 * n + 2]
            for n, tokens in enumerate(conversations)
        )

    # Events take their time, however short.
    eventually(next_turns, "the holders are predicted", 10)
    assert ask(told, conversations[0], cache_salt="another's")[1:] == (0, 0)


def test_an_alias_over_our_own_engine(told: Served) -> None:
    """As in examples/fleet.yaml: the replica knows one name, clients may use another."""
    by_name, by_alias = (told.complete("Hello", 5, model=name).json() for name in ("tiny", "default"))
    assert by_alias["model"] == "default"
    assert by_alias["choices"][0]["text"] == by_name["choices"][0]["text"]
    assert told.stream("Hello", 5, model="default").text == by_name["choices"][0]["text"]
