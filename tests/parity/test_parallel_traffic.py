"""What ranks send is what plan/ says they send: messages and bytes, by axis, as the collectives count them."""

from pathlib import Path

import pytest

from parity.enginekit import greedy, save_engine_checkpoint
from parity.tiny import VOCAB, TinyModel
from shoal import LLM
from shoal.engine.ranks.executor import ProcessExecutor
from shoal.plan.collectives import Traffic, step_traffic
from shoal.specs import load_model_spec
from shoal.specs.stages import stage_layers

TINY = TinyModel("llama", "LlamaConfig", {"num_hidden_layers": 5, "vocab_size": VOCAB + 1})
PROMPT, NEW = list(range(5, 35)), 7
FP32 = 4.0
ROWS = [len(PROMPT)] + [1] * (NEW - 1)
"""Rows of each step: the prompt, then a token at a time."""
Counted = dict[tuple[str, str], tuple[int, float]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traffic")
    save_engine_checkpoint(TINY, directory)
    return directory


def counted(path: Path, layout: dict[str, int]) -> list[Counted]:
    """(axis, operation) -> messages and bytes of one request, by rank."""
    with LLM(str(path), threads=1, num_blocks=40, block_size=4, prefix_caching=False, **layout) as llm:
        greedy(llm, [PROMPT], NEW)
        executor = llm._core._executor
        assert isinstance(executor, ProcessExecutor)
        return [
            {(volume.axis, volume.operation): (volume.messages, volume.bytes) for volume in rank}
            for rank in executor.traffic()
        ]


def predicted(layers: int, tp: int = 1, pp: int = 1, cp: int = 1) -> dict[tuple[str, str], tuple[int, float]]:
    """plan's formulas over all steps: messages and bytes of one rank, by kind."""
    total: dict[tuple[str, str], tuple[int, float]] = {}
    for rows in ROWS:
        step: tuple[Traffic, ...] = step_traffic(
            48, layers, rows, tp=tp, pp=pp, cp=cp, element_bytes=FP32, heads=6 // tp, value_dim=16, query_dim=16,
            vocab=VOCAB + 1, sampled=1,
        )  # fmt: skip
        for traffic in step:
            messages, size = total.get((traffic.axis, traffic.kind), (0, 0.0))
            total[traffic.axis, traffic.kind] = (messages + traffic.messages, size + traffic.bytes)
    return total


def plus(*parts: tuple[int, float]) -> tuple[int, float]:
    return sum(p[0] for p in parts), sum(p[1] for p in parts)


def test_tensor_parallel(checkpoint: Path) -> None:
    """Two all-reduces a layer and one of the embeddings; the logits go to the rank that samples."""
    formula = predicted(5, tp=2)
    first, second = counted(checkpoint, {"tp": 2})
    reduced = plus(formula["tp", "all_reduce"], formula["tp", "embedding_reduce"])
    assert first == {("tp", "all_reduce"): reduced}
    assert second == {("tp", "all_reduce"): reduced, ("tp", "send"): formula["tp", "logits"]}


def test_pipeline_parallel(checkpoint: Path) -> None:
    """One hand-over at each stage boundary."""
    stages = counted(checkpoint, {"pp": 3})
    messages, size = predicted(5, pp=3)["pp", "point_to_point"]
    sent = [stage.get(("pp", "send"), (0, 0)) for stage in stages]
    assert sent[-1] == (0, 0)
    assert plus(*sent) == (messages, size)
    assert all(set(stage) <= {("pp", "send")} for stage in stages)


def test_tensor_by_pipeline_parallel(checkpoint: Path) -> None:
    ranks = counted(checkpoint, {"tp": 2, "pp": 2})
    stages = stage_layers(load_model_spec(checkpoint), 2)
    for stage, layers in enumerate(stages):
        formula = predicted(len(layers), tp=2, pp=2)
        for tp in range(2):
            expected: Counted = {("tp", "all_reduce"): formula["tp", "all_reduce"]}
            if stage == 0:
                expected["tp", "all_reduce"] = plus(expected["tp", "all_reduce"], formula["tp", "embedding_reduce"])
                expected["pp", "send"] = formula["pp", "point_to_point"]
            elif tp == 1:
                expected["tp", "send"] = formula["tp", "logits"]
            assert ranks[stage * 2 + tp] == expected


def test_context_parallel(checkpoint: Path) -> None:
    """A gather of queries and a merge of partial outputs a layer; then the sampled row's hidden state."""
    formula = predicted(5, cp=2)
    ranks = counted(checkpoint, {"cp": 2})
    for rank in ranks:
        assert set(rank) == {("cp", "all_gather"), ("cp", "all_to_all")}
        assert rank["cp", "all_to_all"] == formula["cp", "attention_merge"]
        assert rank["cp", "all_gather"][0] == formula["cp", "query_gather"][0] + len(ROWS)
    hidden = len(ROWS) * 48 * FP32
    gathered = sum(rank["cp", "all_gather"][1] for rank in ranks)
    assert gathered == 2 * formula["cp", "query_gather"][1] + hidden
