"""Guided decoding: whatever the logits say, the output is in the language of the constraint."""

import json
import re
import threading

import numpy as np
import pytest
import torch

from sampling_kit import byte_level_tokenizer, logits_of, sentencepiece_tokenizer
from shoal.engine.errors import InvalidParameter
from shoal.engine.sampling import guided as guided_module
from shoal.engine.sampling.guided import MAX_SOURCE_CHARS, GuidedCompiler
from shoal.engine.sampling.params import GuidedParams, SamplingParams
from shoal.engine.sampling.sampler import Sampler, SampleRow
from shoal.engine.sampling.validate import validate_params

PADDING = 5
"""Columns of the logits beyond the tokenizer's vocabulary."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["wö", "he"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


class Rig:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.vocab = tokenizer.vocab_size + PADDING
        self.compiler = GuidedCompiler(tokenizer.json, self.vocab, tokenizer.eos_token_ids)
        self.eos = tokenizer.eos_token_ids[0]

    def sampler(self):
        return Sampler(self.vocab, guided=self.compiler, eos_token_ids=self.tokenizer.eos_token_ids)

    def run(self, params, seed=0, limit=200, sampler=None, output=()):
        sampler = self.sampler() if sampler is None else sampler
        sampler.add(0, params, (), output)
        tokens = list(output)
        # Digits, quotes and the like are rare among so many tokens: ends come by raising EOS.
        for row in logits_of(seed, limit, self.vocab):
            row[self.eos] += 3
            (result,) = sampler.sample(row[None], [SampleRow(0, 0, 1)])
            assert result.error is None, result.error
            tokens.extend(result.tokens)
            if tokens[-1] == self.eos:
                break
        return tokens

    def text(self, tokens):
        return self.tokenizer.decode(tokens)


@pytest.fixture(scope="module", params=[byte_level_tokenizer, sentencepiece_tokenizer])
def rig(request):
    return Rig(request.param())


def guided(kind, value="", **fields):
    return SamplingParams(guided=GuidedParams(kind, value), seed=3, **fields)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_schema(rig, temperature):
    params = guided("json_schema", json.dumps(SCHEMA), temperature=temperature)
    for seed in range(3):
        tokens = rig.run(params, seed)
        assert tokens[-1] == rig.eos
        value = json.loads(rig.text(tokens))
        assert value["name"] in ("wö", "he")
        assert 0 <= value["n"] <= 99


def test_json_object_is_an_object(rig):
    tokens = rig.run(guided("json_object"), limit=400)
    assert rig.text(tokens).lstrip().startswith("{")


@pytest.mark.parametrize("pattern", ["[0-9]{3}-(ab|cd)+", "(wö|he) [a-c]{2,4}"])
def test_regex(rig, pattern):
    for seed in range(3):
        assert re.fullmatch(pattern, rig.text(rig.run(guided("regex", pattern), seed)))


def test_choice_may_hold_anything(rig):
    choices = ["yes", "no", 'a "quoted"\nline', "wörld 🐟", "yes and no"]
    seen = {rig.text(rig.run(guided("choice", json.dumps(choices)), seed)) for seed in range(12)}
    assert seen <= set(choices)
    assert len(seen) > 1


def test_lark_grammar(rig):
    grammar = 'start: pair ("," pair)*\npair: /[a-z]{1,2}/ "=" /[0-9]/\n'
    text = rig.text(rig.run(guided("grammar", grammar)))
    assert re.fullmatch(r"[a-z]{1,2}=[0-9](,[a-z]{1,2}=[0-9])*", text)


def test_a_complete_grammar_admits_only_the_end(rig):
    state = rig.compiler(GuidedParams("regex", "h"))
    (h,) = [i for i in range(rig.tokenizer.vocab_size) if rig.tokenizer.token(i) == "h"]
    logits = np.zeros(rig.vocab, np.float32)
    assert state.mask(logits) is None
    assert np.flatnonzero(np.isfinite(logits)).tolist()[0] == h or np.isfinite(logits[h])
    assert not np.isfinite(logits[rig.eos])
    state.advance(h)
    logits[:] = 0
    assert state.mask(logits) is None
    assert np.flatnonzero(np.isfinite(logits)).tolist() == [rig.eos]


def test_ignore_eos_repeats_the_end(rig):
    sampler = rig.sampler()
    sampler.add(0, guided("regex", "h", ignore_eos=True), (), ())
    tokens = []
    for _ in range(5):
        tokens += sampler.sample(torch.zeros(1, rig.vocab), [SampleRow(0, 0, 1)])[0].tokens
    assert tokens[1:] == [rig.eos] * 4


def test_min_tokens_yields_to_a_finished_grammar_but_not_to_an_unfinished_one(rig):
    tokens = rig.run(guided("regex", "[ab]", min_tokens=5))
    assert len(tokens) == 2
    tokens = rig.run(guided("regex", "[ab]*", min_tokens=5))
    assert rig.eos not in tokens[:5]


def test_resumed_output_is_replayed(rig):
    params = guided("json_schema", json.dumps(SCHEMA))
    sampler, fresh = rig.sampler(), rig.sampler()
    whole = rig.run(params, sampler=sampler)
    for cut in (1, len(whole) // 2, len(whole) - 1):
        fresh.add(0, params, (), whole[:cut])
        row = logits_of(0, len(whole), rig.vocab)[cut]
        row[rig.eos] += 3
        (result,) = fresh.sample(row[None], [SampleRow(0, 0, 1)])
        assert list(result.tokens) == whole[cut : cut + 1]


def test_an_output_outside_the_grammar_ends_its_sequence_only(rig):
    sampler = rig.sampler()
    other = rig.tokenizer.encode("w", add_special_tokens=False)
    sampler.add(0, guided("regex", "[0-9]+"), (), other)
    sampler.add(1, SamplingParams(temperature=0), (), ())
    bad, good = sampler.sample(logits_of(0, 2, rig.vocab), [SampleRow(0, 0, 1), SampleRow(1, 1, 2)])
    assert bad.error is not None
    assert "grammar" in bad.error
    assert good.tokens


def test_drafts_under_a_grammar(rig):
    params = guided("regex", "[0-9]{6}", temperature=0.0)
    whole = rig.run(params)
    logits = logits_of(0, 7, rig.vocab)
    logits[:, rig.eos] += 3
    sampler = rig.sampler()
    sampler.add(0, params, (), ())
    (result,) = sampler.sample(logits[:4], [SampleRow(0, 0, 4, drafts=tuple(whole[:3]))])
    assert list(result.tokens) == whole[:4]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("json_schema", "{", "property name"),
        ("json_schema", "[1]", "object"),
        ("json_schema", '{"type": "strnig"}', "strnig"),
        ("json_schema", '{"$ref": "#/nowhere"}', ""),
        ("regex", "(a", "parse error"),
        ("regex", "a" * (MAX_SOURCE_CHARS + 1), "characters"),
        ("choice", "[]", "non-empty"),
        ("choice", '["a", 1]', "strings"),
        ("choice", "yes", ""),
        ("grammar", "start: nothing", "nothing"),
        ("grammar", "start: [", ""),
        ("json_schema", "[" * 100_000, ""),
    ],
)
def test_bad_constraints_are_refused_with_a_short_reason(rig, kind, value, reason):
    with pytest.raises(InvalidParameter) as caught:
        validate_params(guided(kind, value), vocab_size=rig.vocab, max_model_len=100, guided=rig.compiler)
    assert caught.value.field.startswith(f"guided.{kind}")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value).replace(repr(value)[:77], "")


def test_unknown_kind_and_no_compiler_are_refused(rig):
    with pytest.raises(InvalidParameter, match="one of json_schema"):
        validate_params(guided("xml"), vocab_size=rig.vocab, max_model_len=100, guided=rig.compiler)
    with pytest.raises(InvalidParameter, match="no guided decoding"):
        validate_params(guided("json_object"), vocab_size=rig.vocab, max_model_len=100)


def test_compiled_constraints_are_kept_but_not_without_bound(rig):
    compiler = GuidedCompiler(rig.tokenizer.json, rig.vocab, rig.tokenizer.eos_token_ids)
    for i in range(100):
        compiler.validate(GuidedParams("regex", f"a{{{i + 1}}}"))
    assert compiler.cached == 64
    # Sequences advance copies: the kept one stays at its start.
    first, second = compiler(GuidedParams("regex", "h")), compiler(GuidedParams("regex", "h"))
    first.advance(rig.tokenizer.token_id("h"))
    assert first.complete
    assert not second.complete


def test_prepared_compiler_compiles_as_an_unprepared_one(rig):
    compiler = GuidedCompiler(rig.tokenizer.json, rig.vocab, rig.tokenizer.eos_token_ids)
    compiler.prepare()
    assert compiler.cached == 0
    assert not compiler(GuidedParams("regex", "h")).complete


def test_white_space_between_json_tokens_is_bounded(rig):
    """A small model left free to put white space anywhere may do so for ever."""
    state = rig.compiler(GuidedParams("json_schema", json.dumps(SCHEMA)))
    space = rig.tokenizer.token_id("Ġ") or rig.tokenizer.token_id("▁")
    brace = next(i for i in range(rig.tokenizer.vocab_size) if rig.tokenizer.token_bytes(i) == b"{")
    state.advance(brace)
    logits = np.zeros(rig.vocab, np.float32)
    for _ in range(200):
        logits[:] = 0
        assert state.mask(logits) is None
        if not np.isfinite(logits[space]):
            return
        state.advance(space)
    pytest.fail("200 spaces in a row were admitted")


def test_a_compiled_constraint_does_not_wait_for_another_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread takes a copy of a grammar that is there while a large schema compiles in another."""
    compiler = GuidedCompiler(byte_level_tokenizer().json, byte_level_tokenizer().vocab_size, (0,))
    ready, large = GuidedParams("regex", "a+"), GuidedParams("regex", "b+")
    compiler.validate(ready)
    compiling, finish = threading.Event(), threading.Event()
    real = guided_module.grammar_of

    def slow(guided: GuidedParams) -> str:
        compiling.set()
        assert finish.wait(30)
        return real(guided)

    monkeypatch.setattr(guided_module, "grammar_of", slow)
    thread = threading.Thread(target=compiler.validate, args=(large,))
    thread.start()
    taken = threading.Event()
    other = threading.Thread(target=lambda: (compiler(ready), taken.set()))
    try:
        assert compiling.wait(30)
        other.start()
        assert taken.wait(30), "it waits for the other's compilation"
    finally:
        finish.set()
        thread.join(30)
        other.join(30)
    assert compiler.cached == 2


def test_a_grammar_whose_parser_overflows_after_a_token_is_refused_when_compiled(rig):
    """Limits of llguidance show when a token is taken, not when it compiles: a request would fail midway."""
    rules = "\n".join(f'a{i}: "x" "{i}" "y"?' for i in range(3000))
    optional = " ".join(f"a{i}?" for i in range(3000))
    with pytest.raises(InvalidParameter, match="items"):
        rig.compiler.validate(GuidedParams("grammar", f'start: "{{" rest\nrest: {optional}\n{rules}\n'))


def test_a_grammar_that_dies_ends_its_own_sequence_as_a_failed_constraint(rig):
    sampler = rig.sampler()
    dead = SamplingParams(temperature=0, guided=GuidedParams("regex", "ab"), allowed_token_ids=(rig.eos,))
    sampler.add(0, dead, (), ())
    sampler.add(1, SamplingParams(temperature=0), (), ())
    (logits,) = logits_of(3, 1, rig.vocab)
    failed, fine = sampler.sample(torch.stack([logits, logits]), [SampleRow(0, 0, 1), SampleRow(1, 1, 2)])
    assert failed.error is not None
    assert failed.constraint_failed
    assert (fine.error, fine.constraint_failed, len(fine.tokens)) == (None, False, 1)
    logits[0] = float("nan")
    (broken,) = sampler.sample(logits[None], [SampleRow(1, 0, 1)])
    assert broken.error is not None
    assert not broken.constraint_failed
