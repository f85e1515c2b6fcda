"""Tokens that a request excludes (bad_words, allowed_token_ids), and a nucleus of no mass."""

import json

import pytest
import torch

from sampling_kit import byte_level_tokenizer, logits_of, sentencepiece_tokenizer
from shoal.engine.errors import InvalidParameter
from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.params import GuidedParams, SamplingParams
from shoal.engine.sampling.sampler import Sampler, SampleRow
from shoal.engine.sampling.validate import resolve_bad_words, validate_params

VOCAB = 50


def generate(params, logits, output=(), drafts=(), sampler=None):
    """Sample once per row, from where `output` ends."""
    sampler = sampler or Sampler(logits.shape[1], eos_token_ids=(0,))
    sampler.add(0, params, (1, 2), output)
    tokens, logprobs = list(output), []
    for row in logits[len(output) :]:
        (result,) = sampler.sample(row[None], [SampleRow(0, 0, 1)])
        assert result.error is None, result.error
        tokens.extend(result.tokens)
        logprobs.extend(result.logprobs)
    return tokens, logprobs


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_top_p_of_zero_is_greedy(temperature):
    """lmms-eval#1265: its harness sends `top_p: 0`, which was refused."""
    logits = logits_of(1, 20, VOCAB)
    # Two tokens are the most likely: greedy takes the first, whatever the seed.
    logits[:, 7] = logits[:, 9] = 50.0
    for seed in range(5):
        params = SamplingParams(temperature=temperature, top_p=0.0, seed=seed)
        validate_params(params, vocab_size=VOCAB, max_model_len=100)
        assert generate(params, logits)[0] == [7] * 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_allowed_token_ids(temperature):
    params = SamplingParams(
        temperature=temperature,
        seed=1,
        allowed_token_ids=(4, 9, 30),
        logprobs=2,
        presence_penalty=1.5,
        repetition_penalty=1.3,
        logit_bias={5: 100.0},
    )
    logits = logits_of(2, 40, VOCAB)
    tokens, logprobs = generate(params, logits)
    assert set(tokens) == {4, 9, 30}
    # Log-probabilities are the model's own, as with every other constraint.
    expected = torch.log_softmax(logits.double(), dim=1)
    for place, (token, entry) in enumerate(zip(tokens, logprobs, strict=True)):
        assert entry.logprobs[0] == pytest.approx(float(expected[place, token]), abs=1e-4)
    for cut in (1, 17, 39):
        assert generate(params, logits, output=tuple(tokens[:cut]))[0] == tokens


def test_bad_words_never_complete():
    logits = 0.1 * logits_of(3, 1500, 12)
    words = ((3,), (5, 6), (6, 5, 7), (8, 8))
    free = SamplingParams(seed=4, temperature=1.0)
    params = SamplingParams(seed=4, temperature=1.0, bad_words=("x",), bad_word_ids=words)

    def found(tokens):
        return [w for w in words for i in range(len(tokens)) if tuple(tokens[i : i + len(w)]) == w]

    tokens, _ = generate(params, logits)
    assert set(words) == set(found(generate(free, logits)[0])), "the free output has them all"
    assert found(tokens) == []
    # A word is excluded only where it would be completed: its tokens may come alone.
    assert {5, 6, 7, 8} <= set(tokens)
    for cut in (1, 2, 50, 199):
        assert generate(params, logits, output=tuple(tokens[:cut]))[0] == tokens


def test_bad_words_with_drafts():
    logits = logits_of(5, 4, 12)
    params = SamplingParams(temperature=0.0, bad_word_ids=((5, 6),))
    logits[0, 5] = logits[1, 6] = 60.0
    sampler = Sampler(12, eos_token_ids=(0,))
    sampler.add(0, params, (1,), ())
    (result,) = sampler.sample(logits, [SampleRow(0, 0, 4, drafts=(5, 6, 1))])
    assert result.tokens[0] == 5
    assert result.tokens[1] != 6
    assert len(result.tokens) == 2


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
def test_bad_words_are_spelled_as_the_tokenizer_cuts_them(make):
    tokenizer = make()
    params = SamplingParams(bad_words=["world", " he"])
    resolved = resolve_bad_words(params, lambda word: tokenizer.encode(word, add_special_tokens=False))
    texts = {tokenizer.decode(ids).strip() for ids in resolved.bad_word_ids}
    assert texts == {"world", "he"}
    alone, spaced = (tuple(tokenizer.encode(t, add_special_tokens=False)) for t in ("world", " world"))
    assert {alone, spaced} <= set(resolved.bad_word_ids)
    assert resolve_bad_words(SamplingParams(), tokenizer.encode).bad_word_ids == ()


def test_exclusions_under_a_grammar():
    tokenizer = byte_level_tokenizer()
    vocab = tokenizer.vocab_size
    compiler = GuidedCompiler(tokenizer.json, vocab, tokenizer.eos_token_ids)
    yes, no = (tuple(tokenizer.encode(t, add_special_tokens=False)) for t in ("yes", "no"))
    guided = GuidedParams("choice", json.dumps(["yes", "no"]))
    params = SamplingParams(temperature=0.0, guided=guided, bad_word_ids=(yes[:1],))
    sampler = Sampler(vocab, guided=compiler, eos_token_ids=tokenizer.eos_token_ids)
    assert tuple(generate(params, logits_of(0, 2, vocab), sampler=sampler)[0]) == no
    # What leaves nothing ends the sequence with an error that says so.
    sampler.add(1, SamplingParams(temperature=0.0, guided=guided, allowed_token_ids=(0,)), (), ())
    (result,) = sampler.sample(logits_of(0, 1, vocab), [SampleRow(1, 0, 1)])
    assert result.error is not None
    assert "allowed_token_ids" in result.error


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (VOCAB,)}, "allowed_token_ids"),
        ({"allowed_token_ids": "ab"}, "allowed_token_ids"),
        ({"bad_words": ("",)}, "bad_words"),
        ({"bad_words": ("x",) * 1025}, "bad_words"),
        ({"bad_words": (3,)}, "bad_words"),
    ],
)
def test_exclusions_out_of_range(fields, field):
    with pytest.raises(InvalidParameter) as caught:
        validate_params(SamplingParams(**fields), vocab_size=VOCAB, max_model_len=100)
    assert caught.value.field == field
