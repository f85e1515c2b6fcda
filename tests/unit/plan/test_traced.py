"""Issue 14, what planners miss 3: the workload of a trace or log."""

import json
from pathlib import Path

import pytest

from shoal.cli.entry import main
from shoal.plan.asked import Asked
from shoal.plan.readers.trace import TraceRequest, read_trace
from shoal.plan.traced import summarize, trace_lines, with_trace
from shoal.specs.errors import SpecError

DATA = Path(__file__).parents[4] / "shared" / "data" / "traces"


def test_lengths_peak_and_curve_are_those_of_the_requests() -> None:
    steady = [TraceRequest(float(at), 1000, 100) for at in range(0, 600, 10)]
    burst = [TraceRequest(300 + at / 10, 4000, 50) for at in range(100)]
    found = summarize(sorted([*steady, *burst], key=lambda r: r.at))
    assert found.requests == 160
    assert found.input.mean == pytest.approx((60 * 1000 + 100 * 4000) / 160)
    assert (found.input.longest, found.longest) == (4000, 4050)
    assert found.peak_rate == pytest.approx(106 / 60, rel=0.05)
    assert found.peak_to_mean == pytest.approx(found.peak_rate / (160 / 590))
    assert found.curve.index(max(found.curve)) == int(300 / 590 * 24)
    assert found.prefix_hit is None


def test_a_week_is_shown_by_the_hour() -> None:
    day = [TraceRequest(d * 86_400 + h * 3600.0, 10, 10) for d in range(7) for h in range(8, 18) for _ in range(h)]
    found = summarize(day)
    assert found.by_hour
    assert found.curve[3] == 0
    assert found.curve[17] == max(found.curve)


def test_reuse_is_of_leading_blocks_only() -> None:
    first = TraceRequest(0, 1024, 1, (1, 2))
    same_head = TraceRequest(1, 1536, 1, (1, 2, 3))
    other_head = TraceRequest(2, 1024, 1, (9, 2))
    again = TraceRequest(3, 1024, 1, (1, 2))
    found = summarize([first, same_head, other_head, again])
    assert found.prefix_hit == pytest.approx((1024 + 1023) / (1024 + 1536 + 1024 + 1024))


def test_a_servers_log_says_what_it_found_cached(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    details = {"prompt_tokens_details": {"cached_tokens": 60}}
    rows = [
        {"time": "2026-11-01T10:00:00Z", "usage": {"prompt_tokens": 100, "completion_tokens": 20, **details}},
        {"time": "2026-11-01T10:00:04Z", "usage": {"prompt_tokens": 100, "completion_tokens": 40}},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = summarize(read_trace(path))
    assert found.prefix_hit == pytest.approx(60 / 200)
    assert (found.seconds, found.output.mean) == (4, 30)
    path.write_text('{"time": 1}\n')
    with pytest.raises(SpecError, match="line 1"):
        read_trace(path)
    with pytest.raises(SpecError, match="different times"):
        summarize([TraceRequest(0, 1, 1)])


def test_what_was_typed_wins_over_the_trace() -> None:
    found = summarize([TraceRequest(float(at), 1000, 100, (1, 2)) for at in range(10)])
    asked = with_trace(Asked(model="m", users="20", output="7"), found)
    assert (asked.users, asked.rate, asked.input, asked.output, asked.context) == ("20", None, "1000", "7", "1100")
    assert with_trace(Asked(model="m"), found).rate == f"{found.peak_rate:.4g}/s"


@pytest.mark.skipif(not DATA.is_dir(), reason="the measured data is not beside this checkout")
def test_published_traces() -> None:
    azure = summarize(read_trace(DATA / "azure-llm-2023-conv.csv"))
    assert azure.input.mean == pytest.approx(1155, rel=0.01)
    assert azure.prefix_hit is None
    mooncake = summarize(read_trace(DATA / "mooncake-conversation.jsonl"))
    assert mooncake.prefix_hit is not None
    assert 0.3 < mooncake.prefix_hit < 0.5
    assert "of the input repeats a prefix" in trace_lines(mooncake, "mooncake")[1]


def test_a_plan_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"time": at / 4, "prompt_tokens": 1500, "completion_tokens": 200} for at in range(200)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit):
        main(["plan", "llama-3.1-8b", "--gpu", "l40s", "--log", str(path), "--split", "never", "--quick"])
    out = capsys.readouterr().out
    assert "log.jsonl: 200 requests" in out
    assert "1,500 tokens in, 200 out" in out
    assert "requests/s" in out
