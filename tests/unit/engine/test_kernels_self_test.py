"""The self-test passes for every implementation that runs here, and finds each op that computes something else."""

import pytest
import torch

from kernel_kit import kinds
from shoal.engine.ops.kernels import REFERENCE, select_kernels
from shoal.engine.ops.reference_ops import ReferenceOps
from shoal.engine.ops.self_test import self_test

OPS = ("linear", "rms_norm", "silu_mul", "gelu_mul", "quantized_linear", "paged_attention", "rope_write")


@kinds
def test_compiled_kernels_agree_with_the_reference_in_half_a_second(kind: str) -> None:
    found = [self_test(select_kernels(f"native-{kind}")) for _ in range(4)]
    assert all(done.passed for done in found), found[0].failures
    assert found[0].checks > 30
    # The quickest of four: other work on this machine slows single ones down.
    assert min(done.seconds for done in found) < 0.5


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_an_op_that_is_off_is_found_and_named(op: str, factor: float) -> None:
    right = getattr(REFERENCE, op)

    def wrong(*arguments: object) -> torch.Tensor:
        out = right(*arguments)
        out[..., -1] *= factor  # one number of a row: the last lane of a vector
        return out

    done = self_test(type("Wrong", (ReferenceOps,), {op: staticmethod(wrong)})())
    assert not done.passed
    named = "attention" if op in ("paged_attention", "rope_write") else op.removeprefix("quantized_")
    assert all(named in failure for failure in done.failures)
    assert str(done).startswith("FAILED: ")


def test_it_leaves_the_number_of_threads_alone() -> None:
    threads = torch.get_num_threads()
    self_test(REFERENCE)
    assert torch.get_num_threads() == threads
