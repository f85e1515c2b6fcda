"""Experts and the choice among them in one call of the compiled kernels, against the same op by op."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from kernel_kit import QUICK, ROUNDING, assert_near, dtypes, kinds, numbers, seeds
from shoal.engine.layers.moe import MoeFfn
from shoal.engine.layers.router import choose_experts
from shoal.engine.ops.kernels import select_kernels
from shoal.specs.model import FfnSpec, RouterSpec

CPU = torch.device("cpu")
HIDDEN = 40
ROUTERS = {
    "softmax": RouterSpec(experts=12, top_k=3),
    "one": RouterSpec(experts=1, top_k=1),
    "all": RouterSpec(experts=4, top_k=4, normalize=False),
    "groups-max": RouterSpec(12, 3, normalize=False, groups=4, top_groups=2, group_score="max", scaling=2.5),
    "groups-top2": RouterSpec(12, 3, scoring="sigmoid", groups=4, top_groups=2, correction_bias=True, scaling=2.5),
    "single-groups": RouterSpec(6, 2, groups=6, top_groups=3, group_score="max", correction_bias=True),
    "after": RouterSpec(12, 3, normalize=False, bias=True, softmax_after_top_k=True),
}
PLAIN = FfnSpec("moe", intermediate=24, activation="silu", router=ROUTERS["softmax"])


def _ffn(spec: FfnSpec, dtype: torch.dtype, scheme, seed: int, scale: float = 0.3) -> MoeFfn:
    ffn = MoeFfn(spec, HIDDEN, dtype, CPU)
    with torch.no_grad():
        for index, parameter in enumerate(ffn.parameters()):
            parameter.copy_(numbers(tuple(parameter.shape), scale, torch.float32, seed + index))
        if scheme is not None:
            weights = [ffn.experts.gate_up, ffn.experts.down]
            ffn.experts.quantize(scheme)
            for packed, weight in zip((ffn.experts.gate_up, ffn.experts.down), weights, strict=True):
                for slot in range(ffn.experts.slots):
                    packed.slot(slot).set_rows(weight[slot])
    return ffn


def _op_by_op(ffn: MoeFfn, x: Tensor) -> Tensor:
    ffn._fused = None
    return ffn(x)


def _fused(kind: str, ffn: MoeFfn, x: Tensor) -> Tensor:
    spec = ffn.fused_spec()
    assert spec is not None
    call = select_kernels(f"native-{kind}").fuse_experts(spec, x.dtype)
    assert call is not None
    return call(x)


def _close_call(ffn: MoeFfn, x: Tensor) -> bool:
    """Whether a rounding could let another expert be chosen."""
    logits = x.float() @ ffn.router.weight.T + (0.0 if ffn.router.bias is None else ffn.router.bias)
    chosen = [
        choose_experts(logits + nudge, ffn.router.spec, ffn.router.correction).experts.sort(-1).values
        for nudge in (0.0, *(1e-4 * torch.randn(8, 1, logits.shape[1])))
    ]
    return any(not torch.equal(chosen[0], other) for other in chosen[1:])


@kinds
@QUICK
@given(
    rows=st.sampled_from([0, 1, 2, 5, 33]),
    router=st.sampled_from(sorted(ROUTERS)),
    activation=st.sampled_from(["silu", "gelu_tanh", "swiglu_oai"]),
    shared=st.sampled_from([(0, False), (16, False), (24, True)]),
    biased=st.booleans(),
    scheme=st.sampled_from([None, "int8", "int4"]),
    dtype=dtypes,
    seed=seeds,
)
def test_experts(kind, rows, router, activation, shared, biased, scheme, dtype, seed) -> None:
    width, gated = shared if activation != "swiglu_oai" else (0, False)
    spec = replace(
        PLAIN,
        router=ROUTERS[router],
        activation=activation,
        shared_intermediate=width,
        shared_gate=gated,
        experts_bias=biased,
        swiglu_limit=1.5,
    )
    ffn = _ffn(spec, dtype, scheme, seed)
    x = numbers((rows, HIDDEN), 1.0, dtype, seed + 99)
    assume(not _close_call(ffn, x))
    expected = _op_by_op(ffn, x.clone())
    # A row's rounding to eight bits may go the other way where an input differs in its last bit.
    share = 16 * ROUNDING[dtype] + (0.02 if scheme else 0.0)
    size = float(expected.abs().max()) if rows else 0.0
    assert_near(_fused(kind, ffn, x), expected, share * size + 1e-6)


@kinds
@pytest.mark.parametrize("router", sorted(ROUTERS))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_number_spoils_no_other(kind, router, bad) -> None:
    ffn = _ffn(replace(PLAIN, router=ROUTERS[router]), torch.float32, None, 5)
    x = numbers((5, HIDDEN), 1.0, torch.float32, 1)
    good = _fused(kind, ffn, x)
    x[2, 7] = bad
    out = _fused(kind, ffn, x)
    assert not bool(out[2].isfinite().any())
    others = [0, 1, 3, 4]
    assert torch.equal(out[others], good[others])


@kinds
def test_a_row_gets_the_same_bits_whatever_is_with_it(kind) -> None:
    ffn = _ffn(PLAIN, torch.float32, "int8", 3)
    x = numbers((40, HIDDEN), 1.0, torch.float32, 2)
    together = _fused(kind, ffn, x)
    assert torch.equal(torch.cat([_fused(kind, ffn, row[None]) for row in x]), together)


@kinds
def test_of_equals_the_first_is_chosen(kind) -> None:
    ffn = _ffn(PLAIN, torch.float32, None, 4)
    ffn.router.weight.zero_()
    x = numbers((3, HIDDEN), 1.0, torch.float32, 2)
    routed = ffn.experts(x.repeat(3, 1), [3, 3, 3] + [0] * 9).view(3, 3, HIDDEN).mean(0)
    torch.testing.assert_close(_fused(kind, ffn, x), routed)


def test_what_the_kernels_do_not_know_runs_op_by_op() -> None:
    ffn = _ffn(replace(PLAIN, activation="gelu"), torch.float32, None, 4)
    assert ffn._fused is None
    assert bool(ffn(numbers((2, HIDDEN), 1.0, torch.float32, 2)).isfinite().all())
