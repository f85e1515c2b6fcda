"""What fewer bits cost: a model's output distributions beside those of the same model in full precision.

Both run over the same windows of tokens. At every position but a window's last:

    perplexity   exp of the mean of -log p(next token)
    KL           Σ p · (log p - log q) in nats, p of the full-precision model, q of the other
    agreement    whether both find the same token likeliest
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import msgspec
import torch
from torch import Tensor

from shoal.engine.batch import SequenceRows, build_batch
from shoal.engine.errors import InvalidOption
from shoal.engine.kv.cache import KvCache
from shoal.engine.options import EngineOptions
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.ranks.load import LoadedRank, cache_dtype, load_worker
from shoal.engine.sources import model_of
from shoal.engine.text.tokenizer import Tokenizer, load_tokenizer
from shoal.specs import load_model_spec

_ROWS = 64
"""Positions whose distributions are held at once: a vocabulary of 256k takes 64 MB then."""
_EXCERPT = 100


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt's figures."""

    text: str
    """How it begins."""
    tokens: int
    kl_mean: float
    kl_max: float
    perplexity: float
    reference_perplexity: float
    agreement: float


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Figures over all positions of all windows, and by window."""

    positions: int
    perplexity: float
    reference_perplexity: float
    kl_mean: float
    kl_p50: float
    kl_p99: float
    kl_max: float
    agreement: float
    windows: tuple[Window, ...]

    @property
    def perplexity_increase(self) -> float:
        """As a share: 0.01 is one percent more."""
        return self.perplexity / self.reference_perplexity - 1

    def worst(self, count: int) -> tuple[Window, ...]:
        """Windows whose distributions moved most, by their mean KL."""
        return tuple(sorted(self.windows, key=lambda window: -window.kl_mean)[:count])


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What is still good enough; None: anything."""

    perplexity_increase: float | None = None
    kl_mean: float | None = None
    kl_p99: float | None = None
    agreement: float | None = None

    def broken(self, found: Quality) -> tuple[str, ...]:
        """One line a bound that does not hold."""
        most = [
            ("perplexity increase", found.perplexity_increase, self.perplexity_increase),
            ("mean KL", found.kl_mean, self.kl_mean),
            ("99th percentile of KL", found.kl_p99, self.kl_p99),
        ]
        # Written so that NaN breaks any bound.
        lines = [f"{n} {v:.4g}, at most {b:.4g}" for n, v, b in most if b is not None and not v <= b]
        if self.agreement is not None and not found.agreement >= self.agreement:
            lines.append(f"greedy agreement {found.agreement:.4g}, at least {self.agreement:.4g}")
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class Positions:
    """What is known of each position of a window, [n] each."""

    kl: Tensor
    loss: Tensor
    reference_loss: Tensor
    same: Tensor


class Scorer:
    """Hidden states of one window at a time, on one rank."""

    def __init__(self, loaded: LoadedRank, length: int) -> None:
        """`length`: of the longest window."""
        size = loaded.options.block_size
        self.model = loaded.model
        self._blocks = list(range(1, -(-length // size) + 1))
        dtype = cache_dtype(loaded.options, loaded.spec, loaded.dtype)
        self._kv = KvCache(loaded.spec, len(self._blocks) + 1, size, dtype, loaded.device)
        self._device = loaded.device

    @torch.inference_mode()
    def hidden(self, tokens: Sequence[int]) -> Tensor:
        """[n, H], of every token; in steps of at most 512 rows."""
        parts = []
        for start in range(0, len(tokens), 512):
            share = SequenceRows(tokens[start : start + 512], start, self._blocks)
            parts.append(self.model(build_batch([share], self._kv.block_size, self._device), self._kv))
        return torch.cat(parts)


@torch.inference_mode()
def compare(reference: Scorer, other: Scorer, tokens: Sequence[int]) -> Positions:
    """Of a window of at least two tokens."""
    p_hidden, q_hidden = reference.hidden(tokens), other.hidden(tokens)
    following = torch.tensor(tokens[1:])
    parts: list[Positions] = []
    for start in range(0, len(following), _ROWS):
        end = min(start + _ROWS, len(following))
        p = torch.log_softmax(reference.model.logits(p_hidden[start:end]).double(), -1)
        q = torch.log_softmax(other.model.logits(q_hidden[start:end]).double(), -1)
        wanted = following[start:end, None]
        parts.append(
            Positions(
                kl=(p.exp() * (p - q)).sum(-1).clamp_(min=0),
                loss=-q.gather(-1, wanted)[:, 0],
                reference_loss=-p.gather(-1, wanted)[:, 0],
                same=p.argmax(-1) == q.argmax(-1),
            )
        )
    return _joined(parts)


def _joined(parts: Sequence[Positions]) -> Positions:
    return Positions(
        kl=torch.cat([p.kl for p in parts]),
        loss=torch.cat([p.loss for p in parts]),
        reference_loss=torch.cat([p.reference_loss for p in parts]),
        same=torch.cat([p.same for p in parts]),
    )


def summarize(windows: Sequence[tuple[str, Positions]]) -> Quality:
    """Of what `compare` found, with how each window begins. Raises ValueError for no windows."""
    every = _joined([found for _, found in windows])
    kl = every.kl.sort().values
    return Quality(
        positions=len(kl),
        perplexity=_perplexity(every.loss),
        reference_perplexity=_perplexity(every.reference_loss),
        kl_mean=float(kl.mean()),
        kl_p50=_quantile(kl, 0.5),
        kl_p99=_quantile(kl, 0.99),
        kl_max=float(kl[-1]),
        agreement=float(every.same.double().mean()),
        windows=tuple(
            Window(
                text=text,
                tokens=len(found.kl) + 1,
                kl_mean=float(found.kl.mean()),
                kl_max=float(found.kl.max()),
                perplexity=_perplexity(found.loss),
                reference_perplexity=_perplexity(found.reference_loss),
                agreement=float(found.same.double().mean()),
            )
            for text, found in windows
        ),
    )


def _perplexity(loss: Tensor) -> float:
    return math.exp(min(float(loss.mean()), 700.0)) if len(loss) else math.nan


def _quantile(ordered: Tensor, share: float) -> float:
    """The smallest number that at least this share of them is not above."""
    return float(ordered[max(0, math.ceil(share * len(ordered)) - 1)])


def passages() -> tuple[str, ...]:
    """English prose in the public domain, for where no other text is given.

    The passages were quoted from memory, so that a word may differ from one edition or another.
    """
    text = files("shoal.engine").joinpath("passages.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=dict[str, str]).values())


def windows_of(
    texts: Sequence[str], tokenizer: Tokenizer, length: int, most: int | None
) -> Iterator[tuple[str, list[int]]]:
    """Texts cut into windows of `length` tokens, each begun as a prompt is; what is left of a text counts if it is
    at least a quarter of that.
    """
    made = 0
    for text in texts:
        ids = tokenizer.encode(text)
        plain = tokenizer.encode(text, add_special_tokens=False)
        first = ids[: len(ids) - len(plain)] if ids[-len(plain) :] == plain else []
        step = length - len(first)
        for start in range(0, len(plain), step):
            part = plain[start : start + step]
            if most is not None and made >= most:
                return
            if len(part) >= max(2, length // 4):
                made += 1
                yield _excerpt(tokenizer.decode(part)), [*first, *part]


def _excerpt(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _EXCERPT else flat[: _EXCERPT - 1] + "…"


def measure(
    options: EngineOptions,
    texts: Sequence[str],
    length: int = 128,
    most: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Quality:
    """`options.model` as `options` have it, beside the same in float32 with keys and values of that dtype.

    Raises InvalidOption for options that change nothing, a length out of range or texts too short, and what loading
    a model raises.
    """
    options.validate()
    if options.quantize is None and options.kv_dtype == "auto" and options.dtype != "bfloat16":
        raise InvalidOption("quantize", options.quantize, "int8 or int4, or another kv-dtype or dtype to compare")
    found = model_of(options)
    spec, tokenizer = load_model_spec(found.path), load_tokenizer(found.path)
    if not 8 <= length <= spec.max_position:
        raise InvalidOption("length", length, f"from 8 to {spec.max_position} tokens")
    windows = list(windows_of(texts, tokenizer, length, most))
    if not windows:
        raise InvalidOption("text", f"{sum(map(len, texts))} characters", f"at least {length // 4} tokens of text")
    plain = msgspec.structs.replace(options, quantize=None, kv_dtype="auto", dtype="float32")
    scorers = []
    for wanted in (plain, options):
        sized = msgspec.structs.replace(wanted, max_model_len=length, num_blocks=None, kv_memory=1 << 30)
        loaded = load_worker(sized, Mesh.single(), found.path, spec, None, tuple(tokenizer.eos_token_ids))
        scorers.append(Scorer(loaded, length))
    results = []
    for index, (text, tokens) in enumerate(windows):
        results.append((text, compare(scorers[0], scorers[1], tokens)))
        if progress is not None:
            progress(index + 1)
    return summarize(results)
