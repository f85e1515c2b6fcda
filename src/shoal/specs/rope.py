"""Rotary embeddings as configs describe them: the old `rope_theta` + `rope_scaling` and the new `rope_parameters`.

Defaults follow Transformers 5.24 (`modeling_rope_utils.py`). Two things are settled here so that no reader has to
know the rules: `attention_factor` of yarn and longrope is always filled in, and so is `original_max_position`.
"""

import math
from collections.abc import Mapping

from shoal.specs.fields import Fields
from shoal.specs.model import RopeKind, RopeSpec

_KINDS: Mapping[str, RopeKind] = {
    "default": "default",
    # Text tokens have the same position on all three axes, and then multimodal RoPE is the default one.
    "mrope": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "proportional": "proportional",
}


def rope_spec(
    fields: Fields,
    head_dim: int,
    *,
    layer_type: str | None = None,
    default_theta: float = 10_000.0,
    interleaved: bool = False,
    partial: float | None = None,
) -> RopeSpec:
    """The rotary embedding of the layers of one type.

    `head_dim` is the width of the head (or of its rotary part, for MLA); `layer_type` picks the entry where
    `rope_parameters` has one per layer type; `partial` is the family's default for `partial_rotary_factor`.
    """
    section = _section(fields, layer_type)
    top_partial = fields.number("partial_rotary_factor", default=1.0 if partial is None else partial)
    top_theta = fields.number("rope_theta", default=default_theta)
    max_position = fields.size("max_position_embeddings", default=2048)
    if section is None:
        return RopeSpec(
            "default", top_theta, _rotated(head_dim, top_partial), max_position, interleaved=interleaved
        )
    kind = section.choice("rope_type", "type", options=_KINDS, default="default")
    theta = section.number("rope_theta", default=top_theta)
    fraction = section.number("partial_rotary_factor", default=top_partial)
    # Proportional RoPE spreads its frequencies over the whole head: `dim` stays the head and the rest are zero.
    dim = head_dim if kind == "proportional" else _rotated(head_dim, fraction)
    original = fields.optional_size("original_max_position_embeddings")
    if original is None:
        original = section.optional_size("original_max_position_embeddings")
    needs_original = kind in ("llama3", "yarn", "longrope")
    if original is None and needs_original:
        original = max_position
    factor = _factor(section, kind, max_position, original)
    mscale, mscale_all = section.number("mscale", positive=False), section.number("mscale_all_dim", positive=False)
    return RopeSpec(
        kind=kind,
        theta=theta,
        dim=dim,
        max_position=max_position,
        factor=factor,
        original_max_position=original if needs_original else None,
        low_freq_factor=section.required_number("low_freq_factor") if kind == "llama3" else None,
        high_freq_factor=section.required_number("high_freq_factor") if kind == "llama3" else None,
        beta_fast=section.number("beta_fast", default=32.0) if kind == "yarn" else None,
        beta_slow=section.number("beta_slow", default=1.0) if kind == "yarn" else None,
        attention_factor=_attention_factor(section, kind, factor, original, mscale, mscale_all),
        mscale=mscale,
        mscale_all_dim=mscale_all,
        truncate=section.flag("truncate", default=True),
        short_factor=_factors(section, "short_factor", dim) if kind == "longrope" else (),
        long_factor=_factors(section, "long_factor", dim) if kind == "longrope" else (),
        interleaved=interleaved,
        rotated_dim=_rotated(head_dim, fraction) if kind == "proportional" else None,
    )


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Yarn's magnitude correction 0.1 · mscale · ln(factor) + 1 (arXiv:2309.00071, eq. 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _section(fields: Fields, layer_type: str | None) -> Fields | None:
    section = fields.section("rope_scaling") or fields.section("rope_parameters")
    if section is None:
        return None
    nested = any(isinstance(value, Mapping) for value in section.values.values())
    if nested:
        return section.section(layer_type) if layer_type is not None else None
    return section if section.values else None


def _rotated(head_dim: int, fraction: float) -> int:
    return int(head_dim * fraction)


def _factor(section: Fields, kind: RopeKind, max_position: int, original: int | None) -> float:
    if kind == "default":
        return 1.0
    if kind == "proportional":
        return section.number("factor", default=1.0)
    factor = section.number("factor")
    if factor is None and kind in ("longrope", "yarn") and original is not None:
        return max_position / original
    return section.required_number("factor")


def _attention_factor(
    section: Fields,
    kind: RopeKind,
    factor: float,
    original: int | None,
    mscale: float | None,
    mscale_all: float | None,
) -> float | None:
    """The multiplier of cos and sin: stated, or inferred as Transformers does."""
    stated = section.number("attention_factor", positive=False)
    if kind == "yarn":
        if stated is not None:
            return stated
        if mscale and mscale_all:
            return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
        return yarn_mscale(factor)
    if kind == "longrope" and original is not None:
        if stated is not None:
            return stated
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return None


def _factors(section: Fields, key: str, dim: int) -> tuple[float, ...]:
    factors = section.numbers(key)
    if factors is None or len(factors) != dim // 2:
        raise section.error(key, factors, f"a list of {dim // 2} numbers, one for each rotated pair")
    return factors
