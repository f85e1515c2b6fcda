"""From tensors and the engine's descriptions to the structs of csrc/kernels/interface.h."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from torch import Tensor, bfloat16, dtype, float32, int8

from shoal.engine.batch import Batch
from shoal.engine.kv.cache import LayerKv
from shoal.engine.ops.native_library import NativeLibrary
from shoal.engine.ops.quantized import STEPS, QuantizedWeight

DTYPES: Final[Mapping[dtype, str]] = MappingProxyType({float32: "FLOAT32", bfloat16: "BFLOAT16"})
"""What kernels compute with."""


def address(tensor: Tensor | None) -> int:
    """Of its memory; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


class Packer:
    """Packs what several structs have in common. A struct's memory is the caller's to keep."""

    def __init__(self, library: NativeLibrary) -> None:
        self.structs = library.pack
        self.constants = codes = library.constants
        self.dtypes = {dtype: codes[name] for dtype, name in DTYPES.items()}
        self.cache_dtypes = {**self.dtypes, int8: codes["EIGHT_BIT"]}
        self._layouts, self._matrix = library.structs, library.pack.Matrix
        self._dense, self._schemes = codes["DENSE"], {scheme: codes[scheme.upper()] for scheme in STEPS}

    def matrix(self, weight: Tensor | QuantizedWeight, bias: Tensor | None) -> bytes:
        """A matrix and its bias; of a stack of such, the first."""
        if isinstance(weight, QuantizedWeight):
            return self.quantized(weight, bias)
        *_, outputs, inputs = weight.shape
        return self.dense(weight, bias, inputs, outputs)

    def dense(self, weight: Tensor, bias: Tensor | None, inputs: int, outputs: int) -> bytes:
        """A weight [outputs, inputs], or the first of a stack of such."""
        return self._matrix(
            w=weight.data_ptr(),
            scales=0,
            bias=address(bias),
            inputs=inputs,
            outputs=outputs,
            scheme=self._dense,
        )

    def quantized(self, weight: QuantizedWeight, bias: Tensor | None) -> bytes:
        """A weight of one slot, or the first of several."""
        return self._matrix(
            w=weight.codes.data_ptr(),
            scales=weight.scales.data_ptr(),
            bias=address(bias),
            inputs=weight.inputs,
            outputs=weight.outputs,
            scheme=self._schemes[weight.scheme],
        )

    def takes_eight_bit(self, kv: LayerKv) -> bool:
        """Whether it is a whole cache in eight bits that the kernels read and write."""
        scales = (kv.k_scales, kv.v_scales)
        return (
            kv.k.dtype == int8
            and all(part is not None and part.is_contiguous() for part in scales)
            and max(kv.k.shape[3], kv.v.shape[3]) <= self.constants["MAX_WIDTH"]
        )

    def paged_kv(self, kv: LayerKv) -> bytes:
        """A layer's cache."""
        k, v = kv.k, kv.v
        _, block_size, heads, width = k.shape
        _, k_slot, k_head, _ = k.stride()
        _, v_slot, v_head, _ = v.stride()
        return self.structs.PagedKv(
            k=k.data_ptr(),
            v=v.data_ptr(),
            k_scales=address(kv.k_scales),
            v_scales=address(kv.v_scales),
            k_slot=k_slot,
            k_head=k_head,
            v_slot=v_slot,
            v_head=v_head,
            heads=heads,
            width=width,
            v_width=v.shape[3],
            block_size=block_size,
            dtype=self.cache_dtypes[k.dtype],
        )

    def sequences(self, batch: Batch) -> bytes:
        """Where a batch's sequences begin, how long they are, and their block tables."""
        return self.structs.Sequences(
            starts=batch.query_starts.data_ptr(),
            contexts=batch.context_lengths.data_ptr(),
            tables=batch.block_tables.data_ptr(),
            count=len(batch.lengths),
            table_stride=batch.block_tables.stride(0),
        )

    def described(self, name: str, source: object, **given: object) -> bytes:
        """A struct whose fields have their namesakes' values in `source`, but for those that are `given`.

        A tensor is its address, a name the enumerator of that name, and None zero, as is all of a struct of None.
        """
        values: dict[str, object] = {}
        for field, code in self._layouts[name].fields.items():
            value = given[field] if field in given else None if source is None else getattr(source, field)
            if isinstance(value, Tensor):
                value = value.data_ptr()
            elif isinstance(value, str):
                value = self.constants[value.upper()]
            elif value is None:
                value = b"" if code.endswith("s") else 0
            values[field] = value
        packed: bytes = getattr(self.structs, name)(**values)
        return packed
