"""Guided decoding: only tokens that keep the output within a grammar can be chosen.

llguidance does the parsing. A constraint is compiled once and kept in a bounded cache; each sequence gets a copy of
the compiled matcher and advances it by its own tokens, so a preempted sequence is resumed by replaying its output.
"""

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from shoal.engine.errors import InvalidParameter
from shoal.engine.sampling.gbnf import lark_of
from shoal.engine.sampling.json_schema import SchemaError, prepare, show_path
from shoal.engine.sampling.params import GuidedParams

MAX_SOURCE_CHARS = 256 * 1024
"""Longest schema, regex, choice list or grammar accepted."""
_MAX_COMPILED = 64
_TRIAL_TOKENS = 8
"""Tokens taken of a new grammar before it is accepted: `{`, white space, the first name."""
_JSON_LAYOUT = {"whitespace_pattern": r"( |\r?\n[ \t]{0,20})?"}
"""White space admitted between JSON tokens: none, a space, or a line break with indentation (as llama.cpp has it).
Given more, small models spend their tokens on blanks (vllm#38696)."""


class GuidedState:
    """Where one sequence stands in its grammar."""

    def __init__(self, matcher: Any, eos_token_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._eos = np.array(eos_token_ids, np.int64)
        self._error: str | None = None

    @property
    def complete(self) -> bool:
        """The grammar admits nothing but the end."""
        return bool(self._matcher.is_stopped())

    def advance(self, token: int) -> None:
        """Take the output's next token. A token the grammar refuses is reported by the next `mask`."""
        # Past its end the grammar has no say: only EOS was admitted, and with ignore_eos it may be repeated.
        if self._error is not None or self.complete:
            return
        if not self._matcher.consume_token(token):
            reason = self._matcher.get_error() or "not admitted here"
            self._error = f"the grammar refuses token {token}: {_trimmed(reason)}"

    def mask(self, logits: NDArray[np.float32], early_stops: NDArray[np.int64] | None = None) -> str | None:
        """Set every token the grammar does not admit to -inf, in place; returns why the sequence is dead, if it is.

        `early_stops` (ids held off by `min_tokens`) are excluded too, unless nothing else is admitted: a finished
        grammar ends the output even before `min_tokens`.
        """
        if self._error is not None:
            return self._error
        admitted = np.zeros(logits.size, np.bool_)
        if self.complete:
            if self._matcher.is_error():
                return f"the grammar cannot go on: {_trimmed(self._matcher.get_error())}"
            admitted[self._eos] = True
        else:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(bits, count=min(logits.size, bits.size * 8), bitorder="little")
            admitted[: mask.size] = mask
            if self._matcher.is_error():
                return f"the grammar cannot go on: {_trimmed(self._matcher.get_error())}"
        if early_stops is not None:
            later = admitted.copy()
            later[early_stops] = False
            admitted = later if later.any() else admitted
        if not admitted.any():
            return "the grammar admits no token"
        logits[~admitted] = -np.inf
        return None


GuidedFactory = Callable[[GuidedParams], GuidedState]


class GuidedCompiler:
    """Compiles constraints for one tokenizer; a `GuidedFactory`. Thread-safe."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        """`vocab_size` is the width of the logits, which may exceed the tokenizer's own vocabulary."""
        self._source = tokenizer_json
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._lock = threading.Lock()
        """Of the cache; never held while a constraint is compiled, for which others' sequences would wait."""
        self._trie_lock = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[GuidedParams, Any] = OrderedDict()

    def __call__(self, guided: GuidedParams) -> GuidedState:
        """A fresh state at the grammar's start. Raises `InvalidParameter` when it does not compile."""
        return GuidedState(self._matcher(guided).deep_copy(), self._eos)

    def validate(self, guided: GuidedParams) -> None:
        """Compile (and keep) a constraint; raises `InvalidParameter` with the parser's own reason."""
        self._matcher(guided)

    def prepare(self) -> None:
        """Do now what the first constraint would wait for, and with it everybody's streams and heartbeats.

        It holds the interpreter for seconds where the vocabulary is large. What fails, the first constraint says.
        """
        with contextlib.suppress(Exception):
            self._token_trie()

    def _token_trie(self) -> Any:
        # Half a second for 49 k tokens, several for 262 k: see `prepare`.
        with self._trie_lock:
            if self._tokenizer is None:
                self._tokenizer = llguidance.LLTokenizer(
                    self._source, n_vocab=self._vocab_size, eos_token=list(self._eos) or None
                )
            return self._tokenizer

    @property
    def cached(self) -> int:
        """Compiled constraints held."""
        return len(self._compiled)

    def _matcher(self, guided: GuidedParams) -> Any:
        with self._lock:
            if (found := self._compiled.get(guided)) is not None:
                self._compiled.move_to_end(guided)
                return found
        # A large schema takes seconds. The library releases the GIL; two that compile the same do it twice.
        matcher = llguidance.LLMatcher(self._token_trie(), grammar_of(guided), log_level=0)
        if (reason := self._try_out(matcher)) is not None:
            raise _refused(guided, reason)
        with self._lock:
            self._compiled[guided] = matcher
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        return matcher

    def _try_out(self, matcher: Any) -> str | None:
        """Return why a compiled grammar fails within its first tokens; None: it does not.

        Limits of the parser (items per row) show only where a token was taken: some grammars compile and then fail.
        """
        trial = matcher.deep_copy()
        for _ in range(_TRIAL_TOKENS):
            if trial.is_error():
                return str(trial.get_error())
            if trial.is_stopped():
                return None
            bits = np.frombuffer(trial.compute_bitmask(), np.uint8)
            admitted = np.unpackbits(bits, bitorder="little")
            admitted[[token for token in self._eos if token < admitted.size]] = 0
            if not trial.is_error() and not admitted.any():
                return None
            if not trial.is_error():
                trial.consume_token(int(admitted.argmax()))
        return str(trial.get_error()) if trial.is_error() else None


def grammar_of(guided: GuidedParams) -> str:
    """llguidance's form of a constraint. Raises `InvalidParameter` for what is wrong before any parsing."""
    if len(guided.value) > MAX_SOURCE_CHARS:
        raise _refused(guided, f"{len(guided.value)} characters are more than the {MAX_SOURCE_CHARS} allowed")
    matcher = llguidance.LLMatcher
    try:
        match guided.kind:
            case "json_object":
                return str(matcher.grammar_from_json_schema('{"type": "object"}', overrides=_JSON_LAYOUT))
            case "json_schema":
                schema = prepare(json.loads(guided.value), strict=guided.strict).document()
                return str(matcher.grammar_from_json_schema(json.dumps(schema), overrides=_JSON_LAYOUT))
            case "regex":
                return str(matcher.grammar_from_regex(guided.value))
            case "choice":
                return str(matcher.grammar_from_lark(_lark_of_choices(json.loads(guided.value))))
            case "grammar":
                return str(matcher.grammar_from_lark(lark_of(guided.value)))
    except SchemaError as error:
        field = f"guided.json_schema{show_path(error.path)}"
        raise InvalidParameter(field, error.value, error.accepted) from error
    except (ValueError, RecursionError) as error:
        raise _refused(guided, str(error) or type(error).__name__) from error


def _lark_of_choices(choices: object) -> str:
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise ValueError("a choice is a JSON list of one or more non-empty strings")
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)


def _refused(guided: GuidedParams, reason: str) -> InvalidParameter:
    accepted = {
        "json_schema": "a JSON schema",
        "json_object": "no value",
        "regex": "a regular expression",
        "choice": "a JSON list of one or more non-empty strings",
        "grammar": "a grammar in Lark's or llama.cpp's notation",
    }[guided.kind]
    return InvalidParameter(f"guided.{guided.kind}", guided.value, f"{accepted} ({_trimmed(reason)})")


def _trimmed(reason: str) -> str:
    """The first line that says something, bounded: the library's messages carry dumps of the parser's state."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return (lines[0] if lines else "no reason given")[:300]
