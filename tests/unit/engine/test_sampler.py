"""The sampler against independent references: Hugging Face's processors, torch's log-softmax, statistics."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sampling_kit import logits_of, run_alone
from shoal.engine.sampling.adjust import Adjustments
from shoal.engine.sampling.params import SamplingParams
from shoal.engine.sampling.random import params_of_choice, resolve_seed, uniform
from shoal.engine.sampling.sampler import Sampler, SampleRow
from shoal.engine.sampling.truncation import threshold_of, weights_of

VOCAB = 1000


def kept_by_us(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    row = logits.numpy()
    weights = weights_of(row, float(row.max()), params.temperature, np.empty_like(row))
    return set(np.flatnonzero(weights >= np.float32(threshold_of(weights, params))).tolist())


def kept_by_transformers(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = logits[None] / params.temperature
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(None, scores)
    return set(torch.isfinite(scores[0]).nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (1.0, 1, 1.0, 0.0),
        (0.7, 7, 1.0, 0.0),
        (1.0, 999, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.0, 0, 0.999, 0.0),
        (2.0, 0, 0.05, 0.0),
        (1.0, 0, 1.0, 0.1),
        (1.5, 40, 0.8, 0.0),
        (1.3, 40, 0.95, 0.02),
        (0.3, 3, 0.5, 0.5),
    ],
)
def test_truncation_keeps_what_transformers_keeps(temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=0)
    for seed in range(5):
        logits = logits_of(seed, 1, VOCAB)[0]
        assert kept_by_us(logits, params) == kept_by_transformers(logits, params)


def test_ties_at_the_boundary_stay_together():
    logits = torch.log(torch.tensor([0.4, 0.2, 0.2, 0.2]))
    assert kept_by_us(logits, SamplingParams(top_k=2)) == {0, 1, 2, 3}
    assert kept_by_us(logits, SamplingParams(top_p=0.5)) == {0, 1, 2, 3}
    assert kept_by_us(logits, SamplingParams(top_p=0.39)) == {0}


@given(
    values=st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=600),
    top_p=st.floats(0.01, 0.99),
    top_k=st.integers(0, 50),
)
@settings(max_examples=100, deadline=None)
def test_top_p_keeps_the_smallest_sufficient_set(values, top_p, top_k):
    logits = torch.tensor(values, dtype=torch.float32)
    kept = kept_by_us(logits, SamplingParams(top_p=top_p, top_k=top_k))
    probabilities = torch.softmax(logits.double(), 0).numpy()
    eligible = kept_by_us(logits, SamplingParams(top_k=top_k))
    total = probabilities[list(eligible)].sum()
    assert probabilities[list(kept)].sum() >= top_p * total - 1e-5
    # Without its least likely members (all tied ones) it would not have been enough.
    least = min(probabilities[i] for i in kept)
    above = [i for i in kept if probabilities[i] > least * (1 + 1e-6)]
    assert probabilities[above].sum() < top_p * total + 1e-5


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_penalty_is_transformers(penalty):
    from transformers import RepetitionPenaltyLogitsProcessor

    prompt, output = [3, 3, 10, 999], [5, 10, 0]
    logits = logits_of(1, 1, VOCAB)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits.clone())
    ours = logits[0].numpy().copy()
    Adjustments(SamplingParams(repetition_penalty=penalty), prompt, output, ()).apply(ours)
    np.testing.assert_allclose(ours, expected[0].numpy(), rtol=1e-6)


def test_presence_and_frequency_count_the_output_only():
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={1: 3.0, 2: -100.0})
    logits = np.zeros(8, np.float32)
    state = Adjustments(params, prompt=[7, 7], output=[4, 4], eos_token_ids=())
    for token in (4, 6):
        state.observe(token)
    state.apply(logits)
    np.testing.assert_allclose(logits, [0, 3, -100, 0, -0.5 - 3 * 0.25, 0, -0.5 - 0.25, 0])


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_p=0.8),
        SamplingParams(top_k=5, temperature=2.0),
        SamplingParams(min_p=0.1),
        SamplingParams(logit_bias={3: 2.0}),
    ],
    ids=["plain", "cold", "top_p", "top_k", "min_p", "bias"],
)
def test_frequencies_are_the_probabilities(params):
    vocab, draws = 300, 6000
    logits = logits_of(2, 1, vocab, scale=1.5)
    adjusted = logits[0].numpy().copy()
    Adjustments(params, (), (), ()).apply(adjusted)
    kept = kept_by_us(torch.from_numpy(adjusted), params)
    probabilities = torch.softmax(torch.from_numpy(adjusted).double() / params.temperature, 0).numpy()
    probabilities[[i for i in range(vocab) if i not in kept]] = 0
    probabilities /= probabilities.sum()

    sampler = Sampler(vocab)
    for i in range(draws):
        sampler.add(i, params_of_choice(SamplingParams(**{**_fields(params), "seed": 12345}), i), (), ())
    results = sampler.sample(logits.expand(draws, -1), [SampleRow(i, i, i + 1) for i in range(draws)])
    counts = np.bincount([r.tokens[0] for r in results], minlength=vocab)

    assert counts[probabilities == 0].sum() == 0
    common = probabilities * draws >= 5
    expected = np.append(probabilities[common], probabilities[~common].sum()) * draws
    observed = np.append(counts[common], counts[~common].sum())
    if expected[-1] < 5:
        expected, observed = expected[:-1] * observed[:-1].sum() / expected[:-1].sum(), observed[:-1]
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def _fields(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__struct_fields__}


def test_uniform_is_uniform_along_seeds_and_indices():
    for numbers in (
        [uniform(7, i) for i in range(5000)],
        [uniform(i, 0) for i in range(5000)],
        [uniform(i, i) for i in range(5000)],
    ):
        assert stats.kstest(numbers, "uniform").pvalue > 1e-3
        pairs = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
        assert abs(pairs) < 0.05
    assert 0 <= min(uniform(s, i) for s, i in itertools.product((-1, 0, 2**63 - 1, -(2**63)), range(50))) < 1


def test_every_u_finds_a_token_with_weight():
    from shoal.engine.sampling.truncation import draw

    weights = np.zeros(1000, np.float32)
    weights[[3, 700]] = [1.0, 1e-30]
    for u in (0.0, 0.5, 1 - 2**-53):
        assert draw(weights, 0.0, u) in (3, 700)
        assert draw(weights, 0.5, u) == 3


def test_cdf_inversion_is_exact_in_vocabulary_order():
    weights = np.array([1, 0, 2, 1], np.float32)
    from shoal.engine.sampling.truncation import draw

    assert [draw(weights, 0.0, u) for u in (0.0, 0.24, 0.25, 0.74, 0.75, 0.99)] == [0, 0, 2, 2, 3, 3]
    assert [draw(weights, 1.5, u) for u in (0.0, 0.99)] == [2, 2]


def test_resumed_sequence_goes_on_as_if_never_preempted():
    params = SamplingParams(seed=5, frequency_penalty=0.7, repetition_penalty=1.2, min_tokens=9, top_p=0.9)
    logits = logits_of(3, 12, VOCAB)
    whole = run_alone(params, logits, prompt=[1, 2, 3])
    for cut in (1, 6, 11):
        assert run_alone(params, logits[cut:], prompt=[1, 2, 3], output=whole[:cut]) == whole[cut:]


def test_drafts_give_what_single_steps_give():
    logits = logits_of(4, 6, 50, scale=1.0)
    params = SamplingParams(seed=9, presence_penalty=1.5, logprobs=2)
    whole = run_alone(params, logits)
    for good in range(5):
        drafts = (*whole[:good], *[(t + 1) % 50 for t in whole[good:5]])
        sampler = Sampler(50)
        sampler.add(0, params, (), ())
        (result,) = sampler.sample(logits, [SampleRow(0, 0, 6, drafts=drafts)])
        assert list(result.tokens) == whole[: good + 1]
        assert len(result.logprobs) == good + 1
        # The state is that of the accepted tokens: going on gives the rest.
        (after,) = sampler.sample(logits[good + 1 : good + 2], [SampleRow(0, 0, 1)])
        assert list(after.tokens) == whole[good + 1 : good + 2]


def test_drafts_stop_at_the_end_of_the_answer():
    logits = torch.zeros(3, 10)
    logits[:, 4] = 9
    sampler = Sampler(10, eos_token_ids=(4,))
    sampler.add(0, SamplingParams(temperature=0), (), ())
    (result,) = sampler.sample(logits, [SampleRow(0, 0, 3, drafts=(4, 4))])
    assert result.tokens == (4,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("greedy_batch", [True, False])
def test_non_finite_row_fails_alone(bad, greedy_batch):
    logits = logits_of(5, 3, VOCAB)
    expected = int(logits[2].argmax())
    logits[1] = bad if bad < 0 else logits[1]
    logits[1, 17] = bad
    sampler = Sampler(VOCAB)
    for i in range(3):
        sampler.add(i, SamplingParams(temperature=0 if greedy_batch or i == 2 else 1.0, seed=i), (), ())
    results = sampler.sample(logits, [SampleRow(i, i, i + 1) for i in range(3)])
    assert results[1].error is not None
    assert "non-finite" in results[1].error
    assert results[1].tokens == ()
    assert results[0].error is None
    assert results[2].tokens == (expected,)


def test_minus_infinity_in_single_logits_is_no_fault():
    logits = logits_of(6, 1, 100)
    logits[0, ::2] = -float("inf")
    tokens = {run_alone(SamplingParams(seed=s), logits)[0] for s in range(200)}
    assert all(t % 2 for t in tokens)


def test_logprobs_are_log_softmax_of_the_raw_logits():
    logits = logits_of(7, 4, VOCAB)
    reference = torch.log_softmax(logits.double(), -1)
    before = logits.clone()
    sampler = Sampler(VOCAB)
    for i in range(4):
        sampler.add(i, SamplingParams(temperature=0.5, seed=i, logprobs=i, repetition_penalty=1.5), [1], [2])
    for i, result in enumerate(sampler.sample(logits, [SampleRow(i, i, i + 1) for i in range(4)])):
        (entry,) = result.logprobs
        token = result.tokens[0]
        assert entry.token_ids[0] == token
        best = reference[i].topk(i)
        assert list(entry.token_ids[1:]) == best.indices.tolist()
        np.testing.assert_allclose(entry.logprobs[0], reference[i, token], atol=1e-5)
        np.testing.assert_allclose(entry.logprobs[1:], best.values, atol=1e-5)
        assert entry.rank == int((reference[i] > reference[i, token]).sum()) + 1
    assert torch.equal(before, logits)


def test_all_of_the_vocabulary_can_be_reported():
    (entry,) = _one_logprob(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 4)
    assert entry.token_ids == (1, 1, 2, 3, 0)
    assert entry.rank == 1


def _one_logprob(logits, top):
    sampler = Sampler(logits.shape[1])
    sampler.add(0, SamplingParams(temperature=0, logprobs=top), (), ())
    return sampler.sample(logits, [SampleRow(0, 0, 1)])[0].logprobs


def test_greedy_ties_take_the_smallest_id_on_every_path():
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0]])
    for params in (SamplingParams(temperature=0), SamplingParams(temperature=0, logit_bias={0: 1.0}, logprobs=0)):
        assert run_alone(params, logits) == [1]


def test_seedless_sampling_is_refused_and_resolved_at_the_edge():
    sampler = Sampler(10)
    with pytest.raises(ValueError, match="resolve_seed"):
        sampler.add(0, SamplingParams(temperature=1.0), (), ())
    first, second = resolve_seed(SamplingParams()), resolve_seed(SamplingParams())
    assert first.seed is not None
    assert first.seed != second.seed
    assert resolve_seed(SamplingParams(seed=3)).seed == 3


def test_choice_seeds_wrap_in_64_bits():
    assert params_of_choice(SamplingParams(seed=2**63 - 1, n=3), 1).seed == -(2**63)
    assert params_of_choice(SamplingParams(seed=4, n=3), 2) == SamplingParams(seed=6, n=1)


def test_removed_and_unknown_sequences_fail_alone():
    sampler = Sampler(10)
    sampler.add(0, SamplingParams(temperature=0), (), ())
    sampler.add(1, SamplingParams(temperature=0), (), ())
    sampler.remove(1)
    sampler.remove(1)
    assert sampler.live_sequences == 1
    logits = torch.zeros(2, 10)
    good, bad = sampler.sample(logits, [SampleRow(0, 0, 1), SampleRow(1, 1, 2)])
    assert good.tokens == (0,)
    assert bad.error is not None


def test_wrong_width_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"\[R, 10\]"):
        Sampler(10).sample(torch.zeros(1, 11), [])


@pytest.mark.parametrize("vocab", [10, 256, 257, 1000])
def test_any_vocabulary_width(vocab):
    logits = logits_of(8, 30, vocab, scale=0.1)
    tokens = run_alone(SamplingParams(seed=1, top_k=vocab - 1), logits)
    assert all(0 <= t < vocab for t in tokens)
    assert run_alone(SamplingParams(seed=1, top_k=1), logits) == logits.argmax(-1).tolist()
