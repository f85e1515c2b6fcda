"""Turn whatever tokenizer a checkpoint carries into one plain form, once, and keep it.

Transformers knows every tokenizer format and each family's quirks, but importing it costs about a second and
rebuilding a tokenizer from GGUF takes a second (SmolLM2) to ten (Gemma: 260 k pieces without a merge list, which is
derived). So it runs once; the result, a `tokenizer.json` and a small `meta.json`, is kept in
a cache folder named after the source files' sizes and times, and later starts read only that.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from shoal.engine.errors import TokenizerError
from shoal.engine.sampling.defaults import SamplingDefaults, gguf_sampling_defaults, read_generation_config
from shoal.engine.sources.cache import cache_root
from shoal.specs.errors import UnreadableModel
from shoal.specs.gguf_header import read_gguf_header

FORMAT = 2
"""Part of the cache key: raise it when the meaning of the cached files changes."""

_SOURCES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)


class TokenizerMeta(msgspec.Struct, frozen=True):
    """What `tokenizer.json` does not say."""

    chat_templates: dict[str, str]
    """By name; the usual one is `default`, some models have `tool_use` too."""
    special_tokens: dict[str, str]
    """`bos_token`, `eos_token`, … as a chat template sees them."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Every id that ends an answer, the tokenizer's own first."""
    sampling_defaults: SamplingDefaults = SamplingDefaults()
    """Here because it is read from the same files, and kept with the same cache entry."""


class ConvertedTokenizer(msgspec.Struct, frozen=True):
    """The plain form of a tokenizer."""

    json: str
    """The `tokenizers` library's serialization."""
    meta: TokenizerMeta


def converted(path: Path, cache_dir: Path | None = None) -> ConvertedTokenizer:
    """The plain form of the tokenizer at `path` (a directory or a GGUF file), from the cache when it is there.

    `cache_dir` is the model cache, by default the user's. Where nothing can be written the conversion is repeated
    at every start. Raises `TokenizerError`.
    """
    entry = cache_root(cache_dir) / ".tokenizers" / _fingerprint(path)
    if (found := _read(entry)) is not None:
        return found
    made = _convert(path)
    _write(entry, made)
    return made


def _fingerprint(path: Path) -> str:
    files = [path / name for name in _SOURCES] if path.is_dir() else [path]
    digest = hashlib.sha256(f"{FORMAT}\0{path.resolve()}".encode())
    for file in files:
        if file.is_file():
            stat = file.stat()
            digest.update(f"\0{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _read(entry: Path) -> ConvertedTokenizer | None:
    try:
        meta = msgspec.json.decode((entry / "meta.json").read_bytes(), type=TokenizerMeta)
        return ConvertedTokenizer((entry / "tokenizer.json").read_text(encoding="utf-8"), meta)
    except (OSError, ValueError, msgspec.DecodeError):
        return None


def _write(entry: Path, made: ConvertedTokenizer) -> None:
    """Best effort and atomic: a reader sees the whole entry or none."""
    scratch: str | None = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(dir=entry.parent, prefix=".partial-")
        (Path(scratch) / "tokenizer.json").write_text(made.json, encoding="utf-8")
        (Path(scratch) / "meta.json").write_bytes(msgspec.json.encode(made.meta))
        if entry.exists() and _read(entry) is None:  # os.rename does not replace a folder that holds files
            shutil.rmtree(entry, ignore_errors=True)
        os.rename(scratch, entry)
        scratch = None
    except OSError:
        pass  # a read-only model folder, or another process was first
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _convert(path: Path) -> ConvertedTokenizer:
    if not path.exists():
        raise TokenizerError(f"no tokenizer at {path}: no such file or directory")
    declared = _declared(path)
    tokenizer = _load_with_transformers(path)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(
            f"the tokenizer at {path} ({type(tokenizer).__name__}) has no fast form; "
            "a tokenizer.json, tokenizer.model or GGUF tokenizer is needed"
        )
    backend.no_padding()
    backend.no_truncation()
    templates = tokenizer.chat_template or {}
    if isinstance(templates, str):
        templates = {"default": templates}
    eos = [tokenizer.eos_token_id, *declared.eos_token_ids]
    meta = TokenizerMeta(
        chat_templates=dict(templates),
        special_tokens={k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=tuple(dict.fromkeys(i for i in eos if i is not None)),
        sampling_defaults=declared.sampling,
    )
    return ConvertedTokenizer(backend.to_str(), meta)


def _load_with_transformers(path: Path) -> Any:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        if path.is_dir():
            return AutoTokenizer.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
        # Not AutoTokenizer: it reads the whole header again for a config, ten times the work, for the same result.
        return PreTrainedTokenizerFast.from_pretrained(str(path.parent), gguf_file=path.name, local_files_only=True)
    except Exception as error:
        # Transformers raises whatever the format at hand raises: OSError, ValueError, KeyError, RuntimeError, …
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TokenizerError(f"cannot read a tokenizer from {path}: {reason}") from error


class _Declared(msgspec.Struct, frozen=True):
    """What a checkpoint says of answers outside its tokenizer."""

    eos_token_ids: list[int]
    sampling: SamplingDefaults


def _declared(path: Path) -> _Declared:
    """End-of-answer ids and sampling defaults.

    Instruction-tuned models often end a turn with another token than the tokenizer's `eos_token`:
    `generation_config.json` lists them, GGUF calls it `tokenizer.ggml.eot_token_id`.
    """
    if path.is_dir():
        return _Declared(_declared_eos(path), read_generation_config(path))
    try:
        values = read_gguf_header(path).values
    except UnreadableModel as error:
        raise TokenizerError(str(error)) from error
    eos = [values.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return _Declared([i for i in eos if isinstance(i, int)], gguf_sampling_defaults(values, path))


def _declared_eos(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        try:
            eos = msgspec.json.decode((folder / name).read_bytes()).get("eos_token_id")
        except (OSError, msgspec.DecodeError, AttributeError):
            continue
        if eos is not None:
            return [i for i in (eos if isinstance(eos, list) else [eos]) if isinstance(i, int)]
    return []
