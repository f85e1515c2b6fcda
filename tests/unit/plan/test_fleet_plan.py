"""Planners' miss 6 of issue 14: several models in one fleet, on servers that they share."""

import json
import re
from functools import lru_cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cli.entry import main
from shoal.plan.api import ask
from shoal.plan.fleet_lines import fleet_data, fleet_lines
from shoal.plan.fleet_plan import FleetPlan, Member, Owned, more_replicas, plan_fleet
from shoal.plan.node_packing import Unit, pack, units_of
from shoal.plan.search import search
from shoal.specs.catalog import load_catalog

H100 = load_catalog().accelerator("h100")
L40S = load_catalog().accelerator("l40s")
NUMBER = r"([\d,]+)"


def members(*gpu: str, users: float = 40) -> list[Member]:
    common = {"gpu": gpu, "basis": "rented", "split": "never"}
    return [
        Member("big", ask("llama-3.1-70b", users=users, context=8192, **common)),  # type: ignore[arg-type]
        Member("quick", ask("qwen3-8b", users=100, input_tokens=2048, output_tokens=256, tpot=0.03, **common)),  # type: ignore[arg-type]
        Member("small", ask("llama-3.1-8b", rate=2, input_tokens=1024, output_tokens=200, **common)),  # type: ignore[arg-type]
    ]


@lru_cache(maxsize=4)
def fleet_on(*gpu: str, owned: Owned = ()) -> FleetPlan:
    return plan_fleet(members(*gpu), owned)


SIZES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([1, 2, 3, 4, 5, 8, 16, 32])), max_size=20
)


@settings(max_examples=200, deadline=None)
@given(SIZES)
def test_no_server_holds_more_than_it_has_and_nothing_is_lost(sizes: list[tuple[str, int]]) -> None:
    units = [Unit(owner, H100, devices) for owner, devices in sizes]
    servers = pack(units)
    assert servers is not None
    assert all(0 <= server.free < server.size == 8 for server in servers)
    for owner in "abc":
        placed = sum(devices for server in servers for name, devices in server.used if name == owner)
        assert placed == sum(devices for name, devices in sizes if name == owner)
    # First fit leaves at most one server half empty or more.
    assert sum(1 for server in servers if server.free >= 4) <= 1 + sum(1 for _, d in sizes if d in (3, 5))


@settings(max_examples=200, deadline=None)
@given(SIZES, st.integers(1, 100))
def test_what_is_owned_is_never_exceeded(sizes: list[tuple[str, int]], devices: int) -> None:
    units = [Unit(owner, H100, size) for owner, size in sizes]
    servers = pack(units, ((H100, devices),))
    total = sum(size for _, size in sizes)
    if total > devices:
        assert servers is None
    if servers is not None:
        assert sum(server.size for server in servers) == devices
        assert sum(server.free for server in servers) == devices - total


def test_hardware_that_is_not_owned_is_not_used() -> None:
    assert pack([Unit("a", L40S, 1)], ((H100, 8),)) is None


def test_models_share_servers_and_one_total_is_paid() -> None:
    fleet = fleet_on("h100")
    assert fleet.serves
    assert len(fleet.servers) == 1
    assert {name for name, _ in fleet.servers[0].used} == {"big", "quick", "small"}
    assert fleet.devices + fleet.free == 8
    assert fleet.per_hour == pytest.approx(8 * 2.00)
    assert fleet.alone == 3


def test_each_model_is_served_as_alone() -> None:
    fleet = fleet_on("h100")
    for entry in fleet.placed:
        assert entry.design in search(entry.member.question).designs
        slo = entry.member.question.slo
        assert entry.design is not None
        assert slo.tpot is not None
        assert entry.design.tpot.mean <= slo.tpot


def test_no_other_choice_of_first_designs_is_cheaper() -> None:
    """Whole servers are paid: not each model's cheapest hardware, but the cheapest together."""
    fleet = fleet_on("h100", "l40s", "b200")
    assert fleet.per_hour is not None
    for part in ("h100", "l40s", "b200"):
        single = plan_fleet(members(part))
        if single.serves and single.per_hour is not None:
            assert fleet.per_hour <= single.per_hour + 1e-9
    cheapest = [search(m.question).best for m in members("h100", "l40s", "b200")]
    apart = pack(
        [u for m, d in zip(members("h100"), cheapest, strict=True) if d for u in units_of(m.name, m.question, d)]
    )
    assert apart is not None
    assert fleet.per_hour <= sum(s.size * (s.accelerator.price_rented or 0) for s in apart) + 1e-9


def test_owned_devices_are_shared_by_part() -> None:
    fleet = fleet_on("h100", "l40s", owned=((H100, 8), (L40S, 8)))
    assert fleet.serves
    used = {
        name: sum(s.size - s.free for s in fleet.servers if s.accelerator.name == name)
        for name in ("h100_sxm", "l40s")
    }
    assert all(count <= 8 for count in used.values())
    assert sum(used.values()) == fleet.devices
    assert sum(server.size for server in fleet.servers) == 16


def test_what_is_owned_may_not_suffice_and_says_for_whom() -> None:
    fleet = fleet_on("h100", owned=((H100, 4),))
    assert not fleet.serves
    lines = fleet_lines(fleet)
    failed = [entry.member.name for entry in fleet.placed if entry.design is None]
    assert failed
    assert [line.partition(":")[0] for line in lines] == failed
    for entry, line in zip((e for e in fleet.placed if e.design is None), lines, strict=True):
        least = re.search(rf"alone it takes at least {NUMBER} device", line)
        assert least is not None
        assert int(least[1]) == min(d.devices for d in entry.plan.designs)


def test_more_of_what_is_owned_serves_no_fewer_models() -> None:
    counts = []
    for devices in (1, 2, 4, 5, 6, 8, 16):
        fleet = plan_fleet(members("h100"), ((H100, devices),))
        counts.append(sum(1 for entry in fleet.placed if entry.design is not None))
    assert counts == sorted(counts)
    assert counts[-1] == 3


def test_more_users_never_make_a_fleet_cheaper() -> None:
    prices = []
    for users in (20, 40, 80, 160):
        fleet = plan_fleet(members("h100", users=users))
        assert fleet.per_hour is not None
        prices.append(fleet.per_hour)
    assert prices == sorted(prices)


def test_an_impossible_model_says_why() -> None:
    hard = Member("hard", ask("llama-3.1-70b", gpu=["h100"], users=10, tpot=1e-4, split="never"))
    fleet = plan_fleet([*members("h100"), hard])
    assert not fleet.serves
    (line,) = fleet_lines(fleet)
    assert line.startswith("hard: TPOT 0.1 ms is impossible")


def test_sentences_agree_with_their_numbers() -> None:
    for fleet in (fleet_on("h100"), fleet_on("h100", "l40s", owned=((H100, 8), (L40S, 8)))):
        lines = fleet_lines(fleet)
        text = "\n".join(lines)
        total = re.search(rf"In all: {NUMBER} models on {NUMBER} devices of {NUMBER} in", text)
        assert total is not None
        assert [int(g) for g in total.groups()] == [3, fleet.devices, sum(s.size for s in fleet.servers)]
        hour = re.search(r"Cost: \$([\d.,]+) an hour rented for whole servers, \$([\d,]+) a month", text)
        assert hour is not None
        assert fleet.per_hour is not None
        assert float(hour[1]) == pytest.approx(fleet.per_hour, abs=0.01)
        assert float(hour[2].replace(",", "")) == pytest.approx(fleet.per_hour * 730, abs=1)
        sharing = re.search(rf"it would take {NUMBER}: sharing saves {NUMBER} server", text)
        assert sharing is not None
        assert int(sharing[1]) - int(sharing[2]) == sum(1 for s in fleet.servers if s.used)
        listed = [line for line in lines if line.startswith("Server")]
        free = sum(int(n) for line in listed for n in re.findall(r"(\d+) free", line))
        assert free == fleet.free
        left = re.search(rf"Left over: {NUMBER} device", text)
        assert left is not None
        assert int(left[1]) == fleet.free
        for entry in fleet.placed:
            replicas, users = more_replicas(fleet, entry)
            room = f"{replicas} replica{'s' if replicas > 1 else ''} more of {entry.member.name} ({users} users)"
            assert (room in text) == (replicas > 0)


def test_left_over_replicas_fit_into_what_is_free() -> None:
    fleet = fleet_on("h100")
    for entry in fleet.placed:
        replicas, users = more_replicas(fleet, entry)
        assert entry.design is not None
        assert replicas * entry.design.layout.world <= fleet.free
        assert users <= replicas * entry.design.capacity


FILE = """\
gpu: h100
prices: rented
split: never
models:
  - model: llama-3.1-70b
    users: 40
    context: 8k
  - {model: llama-3.1-8b, users: 30, input: 1k, output: 200}
  - {model: llama-3.1-8b, users: 5, input: 4k, output: 200, tpot: 20ms}
"""


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    captured = capsys.readouterr()
    return int(done.value.code or 0), captured.out, captured.err


def test_a_fleet_is_asked_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    status, out, _ = run(["plan", "--file", str(path), "--json"], capsys)
    assert status == 0
    found = json.loads(out)
    assert [m["model"] for m in found["models"]] == ["llama-3.1-70b", "llama-3.1-8b (1)", "llama-3.1-8b (2)"]
    assert "40 users at once" in found["models"][0]["question"]
    assert "TPOT ≤ 20 ms" in found["models"][2]["question"]
    assert all("rented prices" in m["question"] for m in found["models"])
    status, out, _ = run(["plan", "--file", str(path)], capsys)
    assert status == 0
    assert "Left over" in out
    # What is owned is counted; what is typed wins over the file.
    status, out, _ = run(["plan", "--file", str(path), "--gpu", "5xh100"], capsys)
    assert status == 1
    assert "no room beside the others on 5 × h100_sxm" in " ".join(out.split())


def test_a_fleet_is_emitted_model_by_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE.replace("split: never", "split: never\nweights: checkpoint"))
    _, out, _ = run(["plan", "--file", str(path), "--emit", "k8s"], capsys)
    documents = [d for d in yaml.safe_load_all(out) if d]
    assert sum(1 for d in documents if d["kind"] == "Deployment") == 3
    status, _, said = run(["plan", "--file", str(path), "--emit", "shoal"], capsys)
    assert status == 2
    assert "one model at a time" in said


@pytest.mark.parametrize(
    ("change", "place", "said"),
    [
        (("users: 40", "users: many"), "fleet.yaml:6: users", "many"),
        (("ttft", "ttft"), "", ""),
        (("tpot: 20ms", "tpot: 20"), "fleet.yaml:9: tpot", "20ms or 20s"),
        (("gpu: h100", "gpu: h999"), "fleet.yaml:1: gpu", "h999"),
        (("model: llama-3.1-70b", "model: lama-3.1-70b"), "fleet.yaml:5", "llama-3.1-70b"),
        (("split: never", "layout: tp=2"), "fleet.yaml:3: layout", "no layout"),
    ],
)
def test_errors_of_a_fleet_name_the_line(
    change: tuple[str, str], place: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE.replace(*change, 1))
    status, _, error = run(["plan", "--file", str(path)], capsys)
    assert status == (2 if place else 0)
    assert place in error
    assert said in error


def test_options_of_one_model_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FILE)
    for typed in (["llama-3.1-8b"], ["--layout", "tp=1"], ["--html", str(tmp_path / "x.html")]):
        status, _, error = run(["plan", *typed, "--file", str(path)], capsys)
        assert status == 2
        assert "Traceback" not in error


def test_data_is_complete() -> None:
    found = fleet_data(fleet_on("h100"))
    json.dumps(found)
    assert found["devices"] == fleet_on("h100").devices
