"""The small ops against Transformers' modules; the choice of kernels; the batch and the KV memory."""

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as glm_rotary
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary

from shoal.engine import ops
from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.errors import InvalidOption
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops import reference, select_kernels

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_of_llama(dtype) -> None:
    norm = LlamaRMSNorm(24, eps=1e-5).to(dtype)
    norm.weight.data.normal_(1, 0.3)
    x = torch.randn(5, 24).to(dtype) * 3
    torch.testing.assert_close(reference.rms_norm(x, norm.weight, 1e-5), norm(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_of_gemma(dtype) -> None:
    norm = Gemma3RMSNorm(24, eps=1e-6).to(dtype)
    norm.weight.data.normal_(0, 0.3)
    x = torch.randn(5, 24).to(dtype) * 3
    weight = norm.weight.float() + 1.0
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-6), norm(x), rtol=1e-6, atol=1e-6)


def _angles(rows: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.randn(rows, dim // 2)
    return angles.cos(), angles.sin()


def test_rope_by_halves() -> None:
    cos, sin = _angles(7, 16)
    q, k = torch.randn(7, 6, 16), torch.randn(7, 2, 16)
    expected, _ = llama_rotary(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        torch.cat((cos, cos), -1)[None],
        torch.cat((sin, sin), -1)[None],
    )
    ours = reference.rope(q, torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])
    torch.testing.assert_close(ours, expected[0].transpose(0, 1))


def test_rope_interleaved_on_part_of_a_head() -> None:
    """GLM rotates neighbouring pairs of the first half of a head and leaves the rest."""
    cos, sin = _angles(7, 8)
    q, k = torch.randn(7, 6, 16), torch.randn(7, 2, 16)
    expected, _ = glm_rotary(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        torch.cat((cos, cos), -1)[None],
        torch.cat((sin, sin), -1)[None],
    )
    pairs = torch.stack((cos, cos), -1).flatten(-2)[:, None], torch.stack((-sin, sin), -1).flatten(-2)[:, None]
    ours = reference.rope(q, *pairs, interleaved=True)
    torch.testing.assert_close(ours, expected[0].transpose(0, 1))


def test_gated_activations() -> None:
    gate, up = torch.randn(4, 10), torch.randn(4, 10)
    both = torch.cat((gate, up), -1)
    torch.testing.assert_close(reference.silu_mul(both), torch.nn.SiLU()(gate) * up)
    torch.testing.assert_close(reference.gelu_mul(both), torch.nn.GELU("tanh")(gate) * up)
    torch.testing.assert_close(reference.gelu_mul(both, "none"), torch.nn.GELU()(gate) * up)
    torch.testing.assert_close(both, torch.cat((gate, up), -1))


def test_write_kv_touches_its_slots_only() -> None:
    kv = LayerKv(torch.zeros(3, 4, 2, 5), torch.zeros(3, 4, 2, 5))
    k, v = torch.randn(2, 2, 5), torch.randn(2, 2, 5)
    reference.write_kv(kv, k, v, torch.tensor([6, 9]))
    assert torch.equal(kv.k[1, 2], k[0])
    assert torch.equal(kv.v[2, 1], v[1])
    assert int(kv.k.flatten(2).any(-1).sum()) == 2


def test_kernels_are_chosen_by_name() -> None:
    assert select_kernels("reference") is ops.REFERENCE
    assert select_kernels().name == ops.KERNELS.name
    with pytest.raises(InvalidOption, match=r"'fast'.*reference"):
        select_kernels("fast")


@pytest.mark.parametrize("rows", [1, 2, 64, 65])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_whatever_the_rows(rows, biased) -> None:
    layer = torch.nn.Linear(40, 24, bias=biased)
    x = torch.randn(rows, 40)
    for linear in (ops.linear, reference.linear):
        out = linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(out, layer(x))
        assert out.is_contiguous()


def test_batch_lays_rows_one_after_another() -> None:
    batch = build_batch(
        [
            SequenceRows([5], 6, [3, 1]),
            SequenceRows([7, 8, 9], 0, [2], logits=0),
            SequenceRows([4, 4], 3, [5, 6], 2),
        ],
        4,
        CPU,
    )
    assert batch.tokens.tolist() == [5, 7, 8, 9, 4, 4]
    assert batch.positions.tolist() == [6, 0, 1, 2, 3, 4]
    assert batch.slots.tolist() == [1 * 4 + 2, 8, 9, 10, 5 * 4 + 3, 6 * 4]
    assert batch.query_starts.tolist() == [0, 1, 4, 6]
    assert batch.context_lengths.tolist() == [7, 3, 5]
    assert batch.block_tables.tolist() == [[3, 1], [2, 0], [5, 6]]
    assert batch.logit_rows.tolist() == [0, 4, 5]
    assert batch.lengths == ((1, 7), (3, 3), (2, 5))


@pytest.mark.parametrize("share", [SequenceRows([], 0, [1]), SequenceRows([1, 2], 3, [1])])
def test_batch_refuses_what_has_no_rows_or_no_room(share) -> None:
    with pytest.raises(ValueError, match="sequence 1"):
        build_batch([SequenceRows([1], 0, [1]), share], 4, CPU)
