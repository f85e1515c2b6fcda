"""What a pool's replicas compute with: whether two of them may stand in for each other."""

from dataclasses import dataclass

from shoal.engine.options import default_name
from shoal.fleet.config import Pool


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one replica, as far as they are known. Of attached replicas only the model is."""

    model: str
    """Reference as the engine was given it, or the pool's own word for its weights."""
    declared: bool = False
    """`model` is the pool's `weights`."""
    known: bool = True
    """The fields below are what the engine was started with."""
    revision: str = ""
    tokenizer: str = ""
    quantization: str = ""
    dtype: str = ""
    kv_dtype: str = ""

    def difference(self, other: "Weights") -> str | None:
        """Return the field by which both are certainly not the same model; None: there is none."""
        if not _same_reference(self.model, other.model):
            return "model"
        if (self.declared and other.declared) or not (self.known and other.known):
            return None
        for name in ("revision", "tokenizer", "quantization"):
            if getattr(self, name) != getattr(other, name):
                return name
        return None

    def key(self, engine: str) -> str:
        """Return what is equal for replicas of one engine that generate the same tokens."""
        own = (self.revision, self.tokenizer, self.quantization, self.dtype, self.kv_dtype)
        return "|".join((engine, self.model if self.declared else default_name(self.model).casefold(), *own))


def weights_of(pool: Pool) -> Weights:
    """Return what the file says of a pool's weights."""
    options = {name.replace("-", "_"): value for name, value in pool.options.items()}

    def option(*names: str) -> str:
        return next((str(options[name]) for name in names if options.get(name) is not None), "")

    return Weights(
        model=pool.weights or pool.model,
        declared=pool.weights is not None,
        known=not pool.urls,
        revision=option("revision"),
        tokenizer=option("tokenizer", "tokenizer_path"),
        quantization=option("quantize", "quantization"),
        dtype=option("dtype"),
        kv_dtype=option("kv_dtype", "kv_cache_dtype"),
    )


def _same_reference(one: str, other: str) -> bool:
    """`org/name` and `name` may be the same; `a/name` and `b/name` are not."""
    one, other = one.casefold(), other.casefold()
    if one == other:
        return True
    bare = "/" not in one or "/" not in other
    return bare and default_name(one) == default_name(other)
