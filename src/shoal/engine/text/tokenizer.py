"""The one tokenizer object of a replica: text ↔ token ids, and the chat template."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from shoal.engine.errors import ChatTemplateError, TokenizerError
from shoal.engine.text.bounds import LengthBound, length_bound
from shoal.engine.text.chat import Message, read_template, render_chat, render_continued
from shoal.engine.text.convert import ConvertedTokenizer, TokenizerMeta, converted
from shoal.engine.text.pieces import TokenPieces
from shoal.engine.text.reasoning import ReasoningMarks, reasoning_marks_of
from shoal.engine.text.tool_prompt import with_tool_prompt
from shoal.engine.text.tools import ToolFormat, tool_format_of

_GIL_FREE_CHARACTERS = 1024
"""Texts above this are encoded by the call that releases the GIL (and tracks no offsets: half the time). For short
ones, waking its threads costs more than it saves."""


class Tokenizer:
    """A fast tokenizer with what serving needs. Thread-safe: nothing but caches changes after construction."""

    def __init__(self, source: ConvertedTokenizer) -> None:
        try:
            self._tokenizer: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(source.json)
        except Exception as error:  # the library raises plain `Exception`
            raise TokenizerError(f"the tokenizer does not load: {error}") from error
        self._json = source.json
        self._meta = source.meta
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.bos_token_id = source.meta.bos_token_id
        self.eos_token_ids = source.meta.eos_token_ids
        self.pieces = TokenPieces(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)

    @property
    def meta(self) -> TokenizerMeta:
        return self._meta

    @property
    def json(self) -> str:
        """The `tokenizers` serialization, for libraries that build on it."""
        return self._json

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`.

        With `add_special_tokens` the ids the tokenizer puts around a text (usually BOS) come along, but BOS never
        twice: a text that already begins with it (a rendered chat, a pasted prompt) keeps its own.
        """
        ids = self._encode(text, add_special_tokens)
        bos = self.bos_token_id
        if add_special_tokens and bos is not None and ids[:2] == [bos, bos]:
            bare = self._encode(text, False)
            if bare[:2] != [bos, bos]:
                del ids[0]
        return ids

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= _GIL_FREE_CHARACTERS:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            # `encode` holds the GIL: a prompt of 4 MB stopped every stream of the server for seconds (vllm#10635).
            ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def min_tokens(self, text: str, enough: int) -> int:
        """A lower bound on the tokens of `text`, found without tokenizing; 0 where nothing is known.

        A text that has `enough` is not counted to its end.
        """
        return self._length_bound.min_tokens(text, enough) if self._length_bound is not None else 0

    @property
    def max_token_bytes(self) -> int | None:
        """Bytes of text that one token stands for at the most; None: not known, or it drops assigned characters."""
        bound = self._length_bound
        return bound.max_token_bytes if bound is not None and bound.keeps_assigned else None

    @cached_property
    def _length_bound(self) -> LengthBound | None:
        return length_bound(self._tokenizer)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of whole `ids`; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary nothing."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token (`Ġhello`, `▁hello`, `<0x0A>`); None outside the vocabulary."""
        token: str | None = self._tokenizer.id_to_token(token_id)
        return token

    def token_id(self, token: str) -> int | None:
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, context aside: what `logprobs` reports as `bytes`."""
        return self.pieces[token_id].data

    def token_text(self, token_id: int) -> str:
        """A token as text of its own; incomplete UTF-8 shows as U+FFFD."""
        return self.pieces[token_id].data.decode("utf-8", errors="replace")

    @property
    def chat_template(self) -> str | None:
        """The source of the template used for a conversation without tools."""
        return self._template(has_tools=False)

    def _template(self, *, has_tools: bool) -> str | None:
        templates = self._meta.chat_templates
        if has_tools and "tool_use" in templates:
            return templates["tool_use"]
        return templates.get("default") or next(iter(templates.values()), None)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """A conversation as prompt text. Raises `ChatTemplateError`.

        `continue_final_message`: the text ends where the last message's content does, and no turn is begun.
        """
        source = self._template(has_tools=bool(tools))
        if source is None:
            raise ChatTemplateError(
                "the model has no chat template: use /v1/completions, or start the server with a chat template"
            )
        if tools and "tools" not in source:
            # The template would drop them without a word.
            messages, tools = with_tool_prompt(messages, tools), None
        variables = {**self._meta.special_tokens, **(variables or {})}
        if continue_final_message:
            return render_continued(source, messages, tools=tools, variables=variables)
        return render_chat(
            source, messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )

    def tool_format(self, model_type: str = "") -> ToolFormat:
        """The notation in which the model writes tool calls, for `shoal.engine.text.tools`."""
        return tool_format_of(self._template(has_tools=True), model_type)

    @property
    def reasoning_marks(self) -> ReasoningMarks | None:
        """What the model writes around its reasoning; None if it isn't known to reason."""
        return reasoning_marks_of(self._template(has_tools=True), lambda mark: self.token_id(mark) is not None)


def load_tokenizer(path: Path, cache_dir: Path | None = None, *, chat_template: Path | None = None) -> Tokenizer:
    """The tokenizer of a model directory or GGUF file; `chat_template` is a file that replaces the model's own.

    The first call for a model converts it with Transformers (seconds) and keeps the result in the model cache
    (`cache_dir`, by default the user's); later calls read only that. Raises `TokenizerError`.
    """
    source = converted(path, cache_dir)
    if chat_template is not None:
        templates = {"default": read_template(chat_template)}
        source = msgspec.structs.replace(
            source, meta=msgspec.structs.replace(source.meta, chat_templates=templates)
        )
    return Tokenizer(source)
