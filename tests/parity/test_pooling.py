"""Vectors and scores of our engine beside Transformers' own, for encoders and decoders."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from parity.poolingkit import declare_pooling, save_model, text
from shoal.engine.errors import InvalidOption
from shoal.engine.options import EngineOptions
from shoal.engine.pooling.config import UnsupportedPooling, read_pooling
from shoal.engine.pooling.engine import PoolingEngine, open_pooling
from shoal.engine.pooling.model import TokenSequence

TEXTS = [(5, 6, 7), tuple(range(3, 40)), (9,), (5, 6, 7, 8), tuple(range(60, 110))]
PAIRS = [((5, 6, 7), (8, 9)), ((5, 6, 7), tuple(range(10, 40))), ((11,), (5,))]


def opened(path: Path, **options: Any) -> PoolingEngine:
    engine = open_pooling(EngineOptions(model=str(path), threads=1, **options))
    assert engine is not None
    return engine


def pool(engine: PoolingEngine, sequences: Sequence[TokenSequence]) -> torch.Tensor:
    async def run() -> torch.Tensor:
        try:
            return await engine.pool(sequences)
        finally:
            await engine.close()

    return asyncio.run(run())


def hidden(model: Any, ids: Sequence[int], types: Sequence[int] | None = None) -> torch.Tensor:
    more = {} if types is None else {"token_type_ids": torch.tensor([list(types)])}
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), **more).last_hidden_state[0]
    return found


@pytest.mark.parametrize("budget", [8, 512])
@pytest.mark.parametrize(
    ("kind", "mode"), [("BertModel", "mean_tokens"), ("BertModel", "cls_token"), ("XLMRobertaModel", "mean_tokens")]
)
def test_encoders_give_vectors(kind: str, mode: str, budget: int, tmp_path: Path) -> None:
    model = save_model(tmp_path, kind, **({"type_vocab_size": 1} if "Roberta" in kind else {}))
    declare_pooling(tmp_path, mode, normalize=True)
    engine = opened(tmp_path, max_num_batched_tokens=budget)
    sequences = [engine.text.encode(text(*ids)) for ids in TEXTS]
    assert sequences[0].ids == (1, 5, 6, 7, 2)
    found = pool(engine, sequences)
    for row, sequence in zip(found, sequences, strict=True):
        states = hidden(model, sequence.ids)
        right = states[0] if mode == "cls_token" else states.mean(0)
        torch.testing.assert_close(row, torch.nn.functional.normalize(right, dim=0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("budget", [16, 512])
@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens"])
def test_decoders_give_vectors(mode: str, budget: int, tmp_path: Path) -> None:
    """As Qwen3-Embedding: the causal model's states, prompts longer than a step in chunks."""
    model = save_model(tmp_path, "Qwen3Model")
    declare_pooling(tmp_path, mode, normalize=False)
    engine = opened(tmp_path, max_num_batched_tokens=budget, block_size=4)
    sequences = [engine.text.encode(text(*ids)) for ids in TEXTS]
    found = pool(engine, sequences)
    for row, sequence in zip(found, sequences, strict=True):
        states = hidden(model, sequence.ids)
        right = states[-1] if mode == "lasttoken" else states.mean(0)
        torch.testing.assert_close(row, right, atol=1e-4, rtol=1e-3)


def test_a_vector_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    save_model(tmp_path, "BertModel")
    sequences = [TokenSequence((1, *ids, 2)) for ids in TEXTS]
    together = pool(opened(tmp_path), sequences)
    for place, sequence in enumerate(sequences):
        assert torch.equal(pool(opened(tmp_path), [sequence])[0], together[place])


@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "XLMRobertaForSequenceClassification"])
def test_encoders_score_pairs(kind: str, tmp_path: Path) -> None:
    model = save_model(tmp_path, kind, num_labels=1, type_vocab_size=1 if "Roberta" in kind else 2)
    engine = opened(tmp_path)
    pairs = [engine.text.encode(text(*one), text(*two)) for one, two in PAIRS]
    assert pairs[0].ids == (1, 5, 6, 7, 2, 8, 9, 2)
    assert pairs[0].types == (0, 0, 0, 0, 0, 1, 1, 1)
    if "Roberta" in kind:  # its tokenizers give no types
        pairs = [TokenSequence(pair.ids) for pair in pairs]
    found = pool(engine, pairs)
    for score, pair in zip(found, pairs, strict=True):
        types = torch.tensor([list(pair.types or [0] * len(pair.ids))])
        with torch.inference_mode():
            right = model(input_ids=torch.tensor([list(pair.ids)]), token_type_ids=types).logits[0, 0].sigmoid()
        torch.testing.assert_close(score, right, atol=1e-5, rtol=1e-4)


def test_decoders_score_pairs(tmp_path: Path) -> None:
    model = save_model(tmp_path, "Qwen3ForSequenceClassification", num_labels=1, tie_word_embeddings=False)
    found = pool(opened(tmp_path), [TokenSequence(ids) for ids in TEXTS])
    for score, ids in zip(found, TEXTS, strict=True):
        with torch.inference_mode():
            right = model(input_ids=torch.tensor([list(ids)])).logits[0, 0].sigmoid()
        torch.testing.assert_close(score, right, atol=1e-4, rtol=1e-3)


def test_texts_are_cut_with_their_special_tokens_kept(tmp_path: Path) -> None:
    save_model(tmp_path, "BertModel")
    engine = opened(tmp_path)
    assert engine.text.encode(text(*range(5, 40)), limit=6).ids == (1, 5, 6, 7, 8, 2)
    assert engine.text.encode(text(5, 6, 7), text(8, 9, 10), limit=7).ids == (1, 5, 6, 7, 2, 8, 2)
    assert engine.text.encode(text(5, 6, 7), text(8, 9, 10), limit=5).ids == (1, 5, 6, 2, 2)
    asyncio.run(engine.close())


def test_what_is_not_declared_generates(tmp_path: Path) -> None:
    save_model(tmp_path, "LlamaForCausalLM")
    assert read_pooling(tmp_path) is None


def test_what_is_not_computed_is_said(tmp_path: Path) -> None:
    save_model(tmp_path, "BertModel")
    declare_pooling(tmp_path, "max_tokens", normalize=False)
    with pytest.raises(UnsupportedPooling, match="pooling_mode_max_tokens"):
        read_pooling(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]')
    with pytest.raises(UnsupportedPooling, match="'Dense'"):
        read_pooling(tmp_path)
    (tmp_path / "modules.json").unlink()
    with pytest.raises(InvalidOption, match="one rank"):
        opened(tmp_path, tp=2)
    with pytest.raises(InvalidOption, match="none for an encoder"):
        opened(tmp_path, quantize="int8")
    other = tmp_path / "labels"
    save_model(other, "BertForSequenceClassification", num_labels=3)
    with pytest.raises(UnsupportedPooling, match="3 labels"):
        read_pooling(other)
