"""Rotary position embeddings: the angles of a step's rows, worked out in fp32.

Formulas are those of Transformers 5.24 (`modeling_rope_utils.py`), which cites the papers.

Two kinds depend on a sequence's length. Cached keys must not depend on the step they were computed in, nor on the
sequence that first used a shared prefix, so Shoal fixes the length once: it is the longest the replica serves
(`max_length`). Thus
- longrope: the long factors if `max_length` is beyond the original context, else the short ones (vLLM's rule);
- dynamic: the base that belongs to `max_length`, the plain one while that is within `max_position`.
Results equal Transformers' for a sequence on the same side of the boundary (longrope), or of that length (dynamic).
"""

import math

import torch
from torch import Tensor, nn

from shoal.specs.model import RopeSpec
from shoal.specs.rope import yarn_mscale

_MAX_CACHED_POSITIONS = 16384
"""Positions whose angles are kept: 8 MiB for 64 channels. Those of longer sequences are worked out every step."""


class RotaryEmbedding(nn.Module):
    """positions [T] below `end` -> cos and sin, each [T, 1, dim]; see `ops.rope` for the sign that sin carries."""

    def __init__(self, spec: RopeSpec, max_length: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.interleaved = spec.interleaved
        self.dtype = dtype
        frequencies, self.magnitude = inverse_frequencies(spec, max_length)
        self.frequencies = frequencies.to(device)
        self._kept = self._turns(torch.arange(0, device=device))

    def forward(self, positions: Tensor, end: int) -> tuple[Tensor, Tensor]:
        if end > _MAX_CACHED_POSITIONS:
            cos, sin = self._turns(positions)
        else:
            if end > len(self._kept[0]):
                grown = min(_MAX_CACHED_POSITIONS, max(end, 512, 2 * len(self._kept[0])))
                self._kept = self._turns(torch.arange(grown, device=positions.device))
            cos, sin = (kept.index_select(0, positions) for kept in self._kept)
        return cos[:, None], sin[:, None]

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[:, None].float() * self.frequencies
        cos, sin = angles.cos() * self.magnitude, angles.sin() * self.magnitude
        if self.interleaved:
            cos, sin = torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return cos.to(self.dtype), sin.to(self.dtype)


def inverse_frequencies(spec: RopeSpec, max_length: int) -> tuple[Tensor, float]:
    """Radians a position of each rotated pair, [dim / 2] fp32, and the multiplier of cos and sin."""
    pairs = torch.arange(0, spec.dim, 2, dtype=torch.float32) / spec.dim
    plain = 1.0 / spec.theta**pairs
    match spec.kind:
        case "default":
            return plain, 1.0
        case "linear":
            return plain / spec.factor, 1.0
        case "proportional":
            used = (spec.rotated_dim or spec.dim) // 2
            plain[used:] = 0.0
            return plain / spec.factor, 1.0
        case "dynamic":
            length = max(max_length, spec.max_position)
            stretch = spec.factor * length / spec.max_position - (spec.factor - 1)
            return 1.0 / (spec.theta * stretch ** (spec.dim / (spec.dim - 2))) ** pairs, 1.0
        case "llama3":
            return _llama3(spec, plain), 1.0
        case "yarn":
            return _yarn(spec, pairs)
        case "longrope":
            return _longrope(spec, pairs, max_length)


def _original(spec: RopeSpec) -> int:
    return spec.original_max_position or spec.max_position


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    low, high = spec.low_freq_factor, spec.high_freq_factor
    if low is None or high is None:
        raise ValueError(f"llama3 RoPE without low_freq_factor and high_freq_factor: {spec}")
    wavelength = 2 * math.pi / plain
    smooth = (_original(spec) / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / spec.factor + smooth * plain
    long, short = wavelength > _original(spec) / low, wavelength < _original(spec) / high
    return torch.where(long, plain / spec.factor, torch.where(short, plain, blended))


def _yarn(spec: RopeSpec, pairs: Tensor) -> tuple[Tensor, float]:
    """A ramp over the pairs from kept to stretched frequencies (arXiv:2309.00071, section 3.2)."""
    magnitude = spec.attention_factor
    if magnitude is None:
        magnitude = yarn_mscale(spec.factor)

    def pair_turning(rotations: float) -> float:
        log_ratio = math.log(_original(spec) / (rotations * 2 * math.pi))
        return spec.dim * log_ratio / (2 * math.log(spec.theta))

    low, high = pair_turning(spec.beta_fast or 32.0), pair_turning(spec.beta_slow or 1.0)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(spec.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    waves = spec.theta**pairs
    return 1.0 / (spec.factor * waves) * (1 - kept) + 1.0 / waves * kept, magnitude


def _longrope(spec: RopeSpec, pairs: Tensor, max_length: int) -> tuple[Tensor, float]:
    """A factor a pair, of two lists (arXiv:2402.13753)."""
    original = _original(spec)
    magnitude = spec.attention_factor
    if magnitude is None:
        magnitude = 1.0 if spec.factor <= 1 else math.sqrt(1 + math.log(spec.factor) / math.log(original))
    factors = spec.long_factor if max_length > original else spec.short_factor
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * spec.theta**pairs), magnitude
