"""Bugs that other engines had in sampling and text: one test each, named by where it was reported."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling_kit import BOS, byte_level_tokenizer, logits_of, run_alone, sentencepiece_tokenizer
from shoal.engine.errors import InvalidParameter
from shoal.engine.sampling.params import SamplingParams
from shoal.engine.sampling.random import params_of_choice
from shoal.engine.sampling.sampler import Sampler, SampleRow
from shoal.engine.sampling.validate import validate_params
from shoal.engine.text.detokenize import IncrementalDetokenizer
from shoal.engine.text.stop import StopMatcher

VOCAB = 200


def test_bug_11_vllm_42245_prompt_logprobs_of_a_chunk_are_its_own():
    """Prompt log-probabilities with a cached prefix: right shape, and nothing stale from an earlier request."""
    sampler = Sampler(VOCAB)
    params = SamplingParams(temperature=0, prompt_logprobs=2)
    for request, cached in ((0, 0), (1, 4)):
        logits = logits_of(request, 6 - cached + 1, VOCAB)
        targets = tuple(range(10 + cached, 16))
        sampler.add(request, params, range(9, 16), ())
        row = SampleRow(request, 0, len(logits), prompt_targets=targets)
        (result,) = sampler.sample(logits, [row])
        reference = torch.log_softmax(logits.double(), -1)
        assert [entry.token_ids[0] for entry in result.prompt_logprobs] == list(targets)
        for i, entry in enumerate(result.prompt_logprobs):
            np.testing.assert_allclose(entry.logprobs[0], reference[i, targets[i]], atol=1e-5)
        assert result.tokens == (int(logits[-1].argmax()),)


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_bug_12_vllm_14239_chunked_prefill_gives_no_partial_output_and_the_same_logprobs(chunk):
    logits = logits_of(1, 8, VOCAB)
    targets = tuple(range(50, 57))
    params = SamplingParams(temperature=0, prompt_logprobs=1, logprobs=1)
    whole = Sampler(VOCAB)
    whole.add(0, params, (), ())
    (expected,) = whole.sample(logits, [SampleRow(0, 0, 8, prompt_targets=targets)])

    sampler = Sampler(VOCAB)
    sampler.add(0, params, (), ())
    collected = []
    for start in range(0, 7, chunk):
        stop = min(start + chunk, 7)
        last = stop == 7
        piece = logits[start : stop + last]
        row = SampleRow(0, 0, len(piece), sample=last, prompt_targets=targets[start:stop])
        (result,) = sampler.sample(piece, [row])
        collected.extend(result.prompt_logprobs)
        assert bool(result.tokens) == last
    assert tuple(collected) == expected.prompt_logprobs
    assert (result.tokens, result.logprobs) == (expected.tokens, expected.logprobs)


def stream(stops, text, cuts, **options):
    matcher = StopMatcher(stops, **options)
    shown, at = [], 0
    for cut in [*sorted(c for c in cuts if c < len(text)), len(text)]:
        shown.append(matcher.push(text[at:cut]))
        at = cut
        assert matcher.matched is not None or not any("".join(shown).endswith(s[: len(s)]) for s in stops), (
            "a stop string leaked"
        )
    return "".join(shown) + matcher.flush(), matcher.matched


def test_bug_13_llamacpp_9867_a_stop_prefix_does_not_leak():
    matcher = StopMatcher(["</s>"])
    assert matcher.push("Hi <") == "Hi "
    assert matcher.push("/s") == ""
    assert matcher.push("> more") == ""
    assert matcher.matched == "</s>"
    assert matcher.flush() == ""


def test_bug_13_vllm_3574_a_false_prefix_is_not_lost():
    matcher = StopMatcher(["STOP"])
    assert "".join(matcher.push(c) for c in "aSTSTOaST") + matcher.flush() == "aSTSTOaST"
    assert matcher.matched is None


@given(
    text=st.text(alphabet="ab<", max_size=40),
    stops=st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.sets(st.integers(1, 40), max_size=12),
    include=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_bug_13_any_cut_gives_the_text_before_the_first_completed_stop(text, stops, cuts, include):
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    expected, matched = text, None
    if ends:
        end, _, matched = min(ends)
        expected = text[:end] if include else text[: end - len(matched)]
    assert stream(stops, text, cuts, include_stop=include) == (expected, matched)


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_bug_14_exo_1691_no_character_is_split_or_dropped(make):
    tokenizer = make()
    text = "wörld 🐟 trout 漢字 é"
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push([i]) for i in tokenizer.encode(text)] + [detokenizer.flush()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert any(piece == "" for piece in pieces), "the text has characters of several tokens"


@st.composite
def params(draw):
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.7, 1.0, 1.5])),
        top_k=draw(st.sampled_from([0, 1, 5, VOCAB])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.3])),
        min_p=draw(st.sampled_from([0.0, 0.2])),
        presence_penalty=draw(st.sampled_from([0.0, 1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        logit_bias=draw(st.sampled_from([None, {3: 5.0}, {4: -100.0}])),
        min_tokens=draw(st.sampled_from([0, 3])),
        logprobs=draw(st.sampled_from([None, 0, 3])),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
    )


@given(batch=st.lists(params(), min_size=2, max_size=6), order=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_bug_15_vllm_5639_a_mixed_batch_is_its_rows_alone(batch, order):
    steps = 4
    logits = [logits_of(i, steps, VOCAB) for i in range(len(batch))]
    alone = []
    for i, p in enumerate(batch):
        alone.append(run_alone(p, logits[i], prompt=[3, i], sampler=Sampler(VOCAB, eos_token_ids=(5,))))
    sampler = Sampler(VOCAB, eos_token_ids=(5,))
    for i, p in enumerate(batch):
        sampler.add(i, p, [3, i], ())
    together = [[] for _ in batch]
    for step in range(steps):
        ids = list(range(len(batch)))
        order.shuffle(ids)
        rows = [SampleRow(i, r, r + 1) for r, i in enumerate(ids)]
        for result in sampler.sample(torch.stack([logits[i][step] for i in ids]), rows):
            together[result.sequence_id].extend(result.tokens)
    assert together == alone


def test_bug_16_vllm_51226_a_seed_holds_beside_unseeded_requests():
    logits = logits_of(2, 10, VOCAB)
    expected = run_alone(SamplingParams(seed=42), logits)
    sampler = Sampler(VOCAB)
    sampler.add(0, SamplingParams(seed=42), (), ())
    sampler.add(1, SamplingParams(seed=999), (), ())
    got = []
    for row in logits:
        got.extend(sampler.sample(torch.stack([row, row]), [SampleRow(1, 0, 1), SampleRow(0, 1, 2)])[1].tokens)
    assert got == expected


def test_bug_16_the_choices_of_n_have_seeds_seed_plus_i():
    logits = logits_of(3, 10, VOCAB)
    base = SamplingParams(seed=42, n=3)
    choices = [run_alone(params_of_choice(base, i), logits) for i in range(3)]
    assert len({tuple(c) for c in choices}) == 3
    assert choices == [run_alone(SamplingParams(seed=42 + i), logits) for i in range(3)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_bug_17_vllm_4589_min_tokens_holds_off_every_end_token(temperature, ignore_eos):
    """Both EOS of a model with two, and the caller's own stop ids."""
    ends = (5, 6, 7)
    logits = torch.zeros(6, 20)
    logits[:, ends] = 50.0
    sampler = Sampler(20, eos_token_ids=(5, 6))
    p = SamplingParams(temperature=temperature, seed=1, min_tokens=4, stop_token_ids=(7,), ignore_eos=ignore_eos)
    tokens = run_alone(p, logits, sampler=sampler)
    assert not set(tokens[:4]) & set(ends)
    assert tokens[4] in ends


BAD = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", True),
    ("temperature", "1"),
    ("temperature", 1e9),
    ("top_k", -2),
    ("top_k", VOCAB + 1),
    ("top_k", 2**40),
    ("top_k", 1.5),
    ("top_k", True),
    ("top_p", -0.1),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", math.nan),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0),
    ("repetition_penalty", 1e30),
    ("logit_bias", {VOCAB: 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {"3": 1.0}),
    ("logit_bias", {3: 101.0}),
    ("logit_bias", {3: math.nan}),
    ("logit_bias", [3]),
    ("n", 0),
    ("n", 129),
    ("n", True),
    ("seed", 2**63),
    ("seed", "a"),
    ("max_tokens", 0),
    ("max_tokens", 101),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("stop", ("",)),
    ("stop", ("x",) * 17),
    ("stop", ("x" * 2000,)),
    ("stop", (1,)),
    ("stop_token_ids", (VOCAB,)),
    ("stop_token_ids", (-1,)),
    ("stop_token_ids", (1,) * 1025),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", True),
    ("prompt_logprobs", 21),
    ("ignore_eos", 1),
    ("guided", "regex"),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda v: str(v)[:20])
def test_bug_18_vllm_54195_out_of_range_values_are_named_at_the_edge(field, value):
    with pytest.raises(InvalidParameter) as caught:
        validate_params(SamplingParams(**{field: value}), vocab_size=VOCAB, max_model_len=100)
    assert caught.value.field.startswith(field)
    assert str(caught.value).startswith(f"Invalid value for '{caught.value.field}': ")
    assert caught.value.accepted in str(caught.value)


@given(p=params())
@settings(max_examples=50, deadline=None)
def test_bug_18_whatever_passes_the_edge_can_be_sampled(p):
    validate_params(p, vocab_size=VOCAB, max_model_len=100)
    run_alone(p, logits_of(0, 2, VOCAB, scale=30.0), prompt=[0, VOCAB - 1])


def test_bug_18_extremes_of_the_accepted_ranges_can_be_sampled():
    for p in (
        SamplingParams(
            temperature=100.0, repetition_penalty=100.0, presence_penalty=2, frequency_penalty=2, seed=1
        ),
        SamplingParams(temperature=1e-300, repetition_penalty=0.01, min_p=1.0, top_p=1e-12, seed=1),
        SamplingParams(temperature=1.1e-5, seed=2, logit_bias=dict.fromkeys(range(VOCAB), -100.0)),
        SamplingParams(seed=-(2**63), top_k=VOCAB, logprobs=20),
    ):
        validate_params(p, vocab_size=VOCAB, max_model_len=100)
        run_alone(p, logits_of(0, 3, VOCAB, scale=1e4), prompt=[0, VOCAB - 1])


TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"


def test_bug_24_vllm_27515_bos_comes_once():
    tokenizer = byte_level_tokenizer({"default": TEMPLATE})
    bos = tokenizer.bos_token_id
    messages = [{"role": "user", "content": "hello"}]
    ids = tokenizer.encode(tokenizer.render_chat(messages), add_special_tokens=False)
    assert ids[0] == bos
    assert ids.count(bos) == 1
    # A rendered conversation sent to the completions endpoint, where special tokens are added:
    assert tokenizer.encode(tokenizer.render_chat(messages)) == ids
    assert tokenizer.encode("hello").count(bos) == 1
    # Two in the text are the caller's wish.
    assert tokenizer.encode(f"{BOS}{BOS}x", add_special_tokens=False).count(bos) == 2
