"""Rotary frequencies against Transformers' own functions, over the parameters each kind has."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from shoal.engine.layers.rope import RotaryEmbedding, inverse_frequencies
from shoal.specs.fields import Fields
from shoal.specs.model import RopeSpec
from shoal.specs.rope import rope_spec

HEAD = 32
FACTORS = [1.0 + 0.1 * i for i in range(HEAD // 2)]
LONG = [1.0 + 1.5 * i for i in range(HEAD // 2)]


def _both(parameters: dict[str, object], length: int | None = None, max_position: int = 512):
    """(ours, theirs): frequencies and magnitude for a replica, or a sequence, of that length."""
    parameters = {"rope_theta": 10_000.0, **parameters}
    config = LlamaConfig(
        hidden_size=4 * HEAD,
        num_attention_heads=4,
        head_dim=HEAD,
        max_position_embeddings=max_position,
        rope_parameters=dict(parameters),
    )
    spec = rope_spec(Fields({"max_position_embeddings": max_position, "rope_parameters": parameters}, "test"), HEAD)
    theirs = ROPE_INIT_FUNCTIONS[str(parameters["rope_type"])](config, seq_len=length)
    return inverse_frequencies(spec, length or max_position), theirs


CASES = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "linear-partial": {"rope_type": "linear", "factor": 3.0, "partial_rotary_factor": 0.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn-partial": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "partial_rotary_factor": 0.5,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 128,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
    },
    "yarn-untruncated": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 16.0,
        "beta_slow": 1.5,
        "original_max_position_embeddings": 128,
        "truncate": False,
    },
    "yarn-stated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "attention_factor": 0.7,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": FACTORS,
        "long_factor": LONG,
        "original_max_position_embeddings": 128,
    },
    "longrope-stated": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": FACTORS,
        "long_factor": LONG,
        "original_max_position_embeddings": 128,
        "attention_factor": 1.25,
    },
}


@pytest.mark.parametrize("parameters", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("length", [100, 128, 129, 512, 700])
def test_frequencies(parameters, length) -> None:
    (ours, magnitude), (theirs, their_magnitude) = _both(parameters, length)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert magnitude == pytest.approx(their_magnitude, rel=1e-9)


def test_bug_26_longrope_switches_beyond_the_original_length() -> None:
    """transformers#33129, vllm#10293: 128 is short, 129 is long."""
    (at, _), _ = _both(CASES["longrope"], 128)
    (beyond, _), _ = _both(CASES["longrope"], 129)
    assert torch.allclose(at[1] / beyond[1], torch.tensor(LONG[1] / FACTORS[1]))


def test_plain_frequencies_are_the_paper_s() -> None:
    spec = RopeSpec("default", 100.0, 8, 64)
    frequencies, magnitude = inverse_frequencies(spec, 64)
    assert frequencies.tolist() == pytest.approx([1.0, 100 ** (-1 / 4), 100 ** (-1 / 2), 100 ** (-3 / 4)])
    assert magnitude == 1.0


@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_turn_pairs_by_their_angle(interleaved) -> None:
    """Rotating by p and then looking at one pair is multiplication by exp(i · p · f)."""
    from shoal.engine.ops.reference import rope

    spec = RopeSpec("default", 100.0, 8, 64, interleaved=interleaved)
    frequencies, _ = inverse_frequencies(spec, 64)
    positions = torch.tensor([0, 1, 50])
    cos, sin = RotaryEmbedding(spec, 64, torch.float32, torch.device("cpu"))(positions, 51)
    x = torch.randn(3, 2, 8)
    turned = rope(x, cos, sin, interleaved)

    def pairs(t):
        return torch.complex(t[..., 0::2], t[..., 1::2]) if interleaved else torch.complex(t[..., :4], t[..., 4:])

    angles = positions[:, None, None] * frequencies
    torch.testing.assert_close(pairs(turned), pairs(x) * torch.polar(torch.ones_like(angles), angles))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_angles_that_are_kept_are_those_worked_out_anew(dtype) -> None:
    rope = RotaryEmbedding(RopeSpec("default", 10000.0, 64, 2**20), 2**20, dtype, torch.device("cpu"))
    for positions in ([0], [3, 511, 512, 2], list(range(700)), [16383, 5]):
        rows = torch.tensor(positions)
        kept, anew = rope(rows, max(positions) + 1), rope(rows, 2**20)
        assert all(torch.equal(one, other) for one, other in zip(kept, anew, strict=True))
    cos, _ = rope(torch.tensor([10**6]), 10**6 + 1)
    assert cos.shape == (1, 1, 64)
