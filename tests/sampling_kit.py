"""Small real tokenizers of the two families, and a way to run the sampler over rows of logits."""

from collections.abc import Sequence

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from shoal.engine.sampling.guided import GuidedCompiler
from shoal.engine.sampling.params import GuidedParams, SamplingParams
from shoal.engine.sampling.sampler import Sampler, SampleRow
from shoal.engine.text.convert import ConvertedTokenizer, TokenizerMeta
from shoal.engine.text.tokenizer import Tokenizer

EOS, BOS = "<|end|>", "<|begin|>"


def _wrapped(backend: tokenizers.Tokenizer, templates: dict[str, str]) -> Tokenizer:
    meta = TokenizerMeta(
        chat_templates=templates,
        special_tokens={"bos_token": BOS, "eos_token": EOS},
        bos_token_id=backend.token_to_id(BOS),
        eos_token_ids=(backend.token_to_id(EOS),),
    )
    return Tokenizer(ConvertedTokenizer(backend.to_str(), meta))


def _add_specials(backend: tokenizers.Tokenizer) -> None:
    backend.add_special_tokens([AddedToken(EOS, special=True), AddedToken(BOS, special=True)])
    bos = backend.token_to_id(BOS)
    backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    backend.add_tokens([AddedToken("<two words>", special=False, normalized=False)])


def byte_level_tokenizer(templates: dict[str, str] | None = None) -> Tokenizer:
    """GPT-2's kind: every byte is a token, a few merges on top; adds BOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("Ġ", "w"), ("ð", "Ł"), ("Ã", "¶"), ("t", "r"), ("tr", "u")]
    words = [*alphabet, *(a + b for a, b in merges)]
    backend = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    _add_specials(backend)
    return _wrapped(backend, templates or {})


def sentencepiece_tokenizer() -> Tokenizer:
    """Llama 2's kind: pieces with ▁, byte fallback, a leading space dropped from the text."""
    pieces = ["▁", "h", "e", "w", "o", "r", "l", "d", "▁w", "he", "ö"]
    words = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
    merges = [("▁", "w"), ("h", "e")]
    model = models.BPE({w: i for i, w in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _add_specials(backend)
    return _wrapped(backend, {})


def logits_of(seed: int, rows: int, vocab: int, scale: float = 2.0) -> torch.Tensor:
    """Reproducible random logits, float32."""
    values = np.random.default_rng(seed).standard_normal((rows, vocab)) * scale
    return torch.from_numpy(values.astype(np.float32))


def run_alone(
    params: SamplingParams,
    logits: torch.Tensor,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    sampler: Sampler | None = None,
) -> list[int]:
    """Decode one sequence over the rows of `logits`, one step a row."""
    sampler = Sampler(logits.shape[1]) if sampler is None else sampler
    sampler.add(0, params, prompt, output)
    tokens: list[int] = []
    for row in logits:
        (result,) = sampler.sample(row[None], [SampleRow(0, 0, 1)])
        assert result.error is None, result.error
        tokens.extend(result.tokens)
    return tokens


def accepts(compiler: GuidedCompiler, guided: GuidedParams, tokenizer: Tokenizer, text: str) -> bool:
    """Whether a constraint admits `text` as a whole answer: it can end there."""
    state = compiler(guided)
    for token in tokenizer.encode(text, add_special_tokens=False):
        if state.complete:
            return False
        state.advance(token)
    logits = np.zeros(tokenizer.vocab_size, np.float32)
    return state.mask(logits) is None and bool(np.isfinite(logits[list(tokenizer.eos_token_ids)]).any())
