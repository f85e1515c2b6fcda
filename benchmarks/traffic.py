"""What one decoded token sends on each axis: counted in the engine's collectives, beside `plan/`'s formulas.

    python benchmarks/traffic.py [--append benchmarks/results/traffic.md]

Each axis runs by itself on two ranks, SmolLM2-135M for tp, pp and cp and a small mixture of experts for ep. The
counters of a shorter answer are taken from those of a longer one to the same prompt, so that what is left is
decoding alone. No figure depends on the machine; a formula that doesn't hold makes the exit code 1.
"""

import argparse
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from expert_balance import write_model
from machine import append, describe
from shoal import LLM, SamplingParams
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.engine.sources import resolve_model
from shoal.plan.collectives import step_traffic
from shoal.specs import load_model_spec
from shoal.specs.model import ModelSpec

FP32 = 4
PROMPT, SHORT, LONG = tuple(range(30, 40)), 4, 12
Key = tuple[str, str]
"""(axis, operation)."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Of one token."""

    messages: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Line:
    """One operation of one axis."""

    axis: str
    what: str
    of: str
    """Whose figures these are."""
    counted: Amount
    formula: Amount

    @property
    def holds(self) -> bool:
        return self.counted == self.formula


def counted(path: Path, layout: Mapping[str, int]) -> list[dict[Key, Amount]]:
    """What each rank sends for one decoded token, by axis and operation."""
    with LLM(str(path), dtype="float32", threads=1, num_blocks=64, prefix_caching=False, **layout) as llm:
        executor = llm._core._executor
        assert isinstance(executor, ProcessExecutor)
        totals: list[list[Counter[tuple[Key, str]]]] = []
        for new in (SHORT, LONG):
            before = _counters(executor)
            llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=new, ignore_eos=True), use_tqdm=False)
            totals.append([_less(now, then) for now, then in zip(_counters(executor), before, strict=True)])
    tokens = LONG - SHORT
    found = []
    for short, long in zip(*totals, strict=True):
        more = _less(long, short)
        keys = dict.fromkeys(key for key, _ in more)
        found.append({k: Amount(more[k, "messages"] / tokens, more[k, "bytes"] / tokens) for k in keys})
    return found


def _counters(executor: ProcessExecutor) -> list[Counter[tuple[Key, str]]]:
    return [
        Counter({((v.axis, v.operation), unit): getattr(v, unit) for v in rank for unit in ("messages", "bytes")})
        for rank in executor.traffic()
    ]


def _less(one: Counter[tuple[Key, str]], other: Counter[tuple[Key, str]]) -> Counter[tuple[Key, str]]:
    return Counter({key: value - other[key] for key, value in one.items()})


def planned(model: ModelSpec, **degrees: int) -> dict[str, Amount]:
    """The formulas for one row, by kind."""
    attention = model.layers[0].attention
    moe = [layer.ffn for layer in model.layers if layer.ffn.kind == "moe"]
    router = moe[0].router if moe else None
    traffic = step_traffic(
        model.hidden, len(model.layers), 1, element_bytes=FP32, heads=attention.heads, vocab=model.vocab, sampled=1,
        value_dim=attention.v_head_dim, query_dim=attention.head_dim, moe_layers=len(moe),
        top_k=router.top_k if router else 0, **degrees,
    )  # fmt: skip
    return {t.kind: Amount(t.messages, t.bytes) for t in traffic}


def plus(*amounts: Amount) -> Amount:
    return Amount(sum(a.messages for a in amounts), sum(a.bytes for a in amounts))


def over(ranks: Sequence[Mapping[Key, Amount]], key: Key) -> Amount:
    """All ranks together."""
    return plus(*(rank.get(key, Amount(0, 0)) for rank in ranks))


def dense_lines(path: Path) -> list[Line]:
    model = load_model_spec(path)
    tensor, formula = counted(path, {"tp": 2}), planned(model, tp=2)
    reduced = plus(formula["all_reduce"], formula["embedding_reduce"])
    lines = [
        Line("tp", "all-reduces, 2 a layer and the embedding's", f"rank {i}", rank["tp", "all_reduce"], reduced)
        for i, rank in enumerate(tensor)
    ]
    lines.append(Line("tp", "logits to rank 0", "rank 1", tensor[1]["tp", "send"], formula["logits"]))
    stages, formula = counted(path, {"pp": 2}), planned(model, pp=2)
    lines.append(Line("pp", "hand-over", "both stages", over(stages, ("pp", "send")), formula["point_to_point"]))
    striped, formula = counted(path, {"cp": 2}), planned(model, cp=2)
    for index, rank in enumerate(striped):
        merged = rank["cp", "all_to_all"]
        lines.append(
            Line("cp", "partial outputs and their log-sum-exp", f"rank {index}", merged, formula["attention_merge"])
        )
    gathers = formula["query_gather"]
    # Every rank takes part, whoever has the row; the sampled row's hidden state is gathered once more at the end.
    both = Amount(2 * (gathers.messages + 1), 2 * gathers.bytes + model.hidden * FP32)
    lines.append(
        Line(
            "cp",
            "queries, and the hidden state of the sampled row",
            "both ranks",
            over(striped, ("cp", "all_gather")),
            both,
        )
    )
    return lines


def expert_lines() -> list[Line]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        write_model(path, 0.0)
        model = load_model_spec(path)
        ranks, formula = counted(path, {"ep": 2}), planned(model, ep=2)
    both = plus(formula["dispatch"], formula["combine"])
    sent = over(ranks, ("ep", "all_to_all"))
    # Bytes are those of the lane that has the token; the other one joins each exchange with nothing.
    return [
        Line("ep", "dispatch and combine, k·h each way", "both ranks", sent, Amount(2 * both.messages, both.bytes))
    ]


def markdown(lines: Sequence[Line]) -> str:
    out = [
        "| axis | what one token sends | of | messages, counted | formula | bytes, counted | formula | |",
        "|---" * 8 + "|",
    ]
    for line in lines:
        figures = (line.counted.messages, line.formula.messages, line.counted.bytes, line.formula.bytes)
        cells = " | ".join(f"{figure:,.10g}" for figure in figures)
        out.append(
            f"| `{line.axis}` | {line.what} | {line.of} | {cells} | {'equal' if line.holds else 'DIFFERENT'} |"
        )
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a dense model")
    parser.add_argument("--append", type=Path, help="Markdown file that gets a dated entry")
    asked = parser.parse_args()
    facts = describe()
    facts.append(("command", shlex.join(["python", *sys.argv])))
    lines = dense_lines(resolve_model(asked.model).path) + expert_lines()
    body = markdown(lines)
    print("\n".join(f"{n}: {v}" for n, v in facts) + "\n\n" + body)
    if asked.append:
        append(asked.append, f"Traffic of a token, {facts[0][1][:10]}", facts, body)
    sys.exit(0 if all(line.holds for line in lines) else 1)


if __name__ == "__main__":
    main()
