"""Weights of eight and four bits: how they are made, how they lie in memory, and what they stand for.

    int8   weight ≈ scale[o, g] · code[o, i],                  codes -127 … 127
    int4   weight ≈ scale[o, g] · code[o, i] + zero_point[o, g],    codes 0 … 15

A group g is 32 inputs of an output, and so are the groups that activations are rounded by: of a whole row, whose
few largest numbers are dozens of times the others, too little would be left (docs/quantization.md has the figures).

Codes lie in panels of 16 outputs, as csrc/kernels/quantized.h says, from the moment they are made: a matrix is in
memory once, whatever number it is multiplied with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

Scheme = Literal["int8", "int4"]
PANEL = 16
"""Outputs that lie together."""
GROUP = 32
"""Inputs that share a scale in four bits; inputs are padded to a multiple of it."""
STEPS: Mapping[Scheme, int] = MappingProxyType({"int8": 2, "int4": 4})
"""Inputs of an output that lie side by side."""
QMAX = 127
"""-128 is not used, so that codes are symmetric about zero."""
MAX_CODE = 15
_SPANS = (1.0, 0.92, 0.84)
_REFITS = 3
"""With these, the mean error on normal numbers is that of llama.cpp's Q4_K, which has half a bit less a weight."""
_ROUNDING = 1e-8
"""Of a group's squared range, what half precision's rounding of scales leaves behind."""
_MAX_HALF = 65504.0
_CHUNK = 1 << 16
"""Numbers converted at a time, so that what is in fp32 meanwhile stays small."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A matrix [outputs, inputs], or a stack of such [slots, outputs, inputs]."""

    scheme: Scheme
    codes: Tensor
    """[slots, panels, inputs / 2, 16, 2] int8, or [slots, panels, inputs / 32, 4, 16, 4] uint8, two codes each."""
    scales: Tensor
    """[slots, panels, inputs / 32, 1, 16] float16; int4, with zero points: [slots, panels, inputs / 32, 2, 16]."""
    outputs: int
    inputs: int

    @classmethod
    def empty(cls, scheme: Scheme, outputs: int, inputs: int, slots: int = 1) -> Self:
        """Zeros, whose memory is not touched before `set_rows`."""
        panels, groups, step = -(-outputs // PANEL), -(-inputs // GROUP), STEPS[scheme]
        if scheme == "int8":
            codes = torch.zeros(slots, panels, groups * GROUP // step, PANEL, step, dtype=torch.int8)
        else:
            codes = torch.zeros(slots, panels, groups, GROUP // 8, PANEL, step, dtype=torch.uint8)
        parts = 1 if scheme == "int8" else 2
        scales = torch.zeros(slots, panels, groups, parts, PANEL, dtype=torch.float16)
        return cls(scheme, codes, scales, outputs, inputs)

    @classmethod
    def of(cls, scheme: Scheme, weight: Tensor) -> Self:
        """Of a matrix [out, in]."""
        made = cls.empty(scheme, weight.shape[0], weight.shape[1])
        made.set_rows(weight)
        return made

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    @property
    def slots(self) -> int:
        return self.codes.shape[0]

    def slot(self, index: int) -> Self:
        """One matrix of a stack; shares its memory."""
        part = slice(index, index + 1)
        return type(self)(self.scheme, self.codes[part], self.scales[part], self.outputs, self.inputs)

    def set_rows(self, weight: Tensor, start: int = 0) -> None:
        """Round outputs [start, start + n) of the only slot to those of weight [n, in]."""
        rows_at_once = max(PANEL, _CHUNK // max(1, self.inputs) // PANEL * PANEL)
        # The first piece ends where a panel does, so that all others are whole panels.
        first = min(len(weight), rows_at_once - start % PANEL)
        for begin, end in _pieces(len(weight), first, rows_at_once):
            # With the last input again, which changes no group's range; activations have zeros there.
            part = F.pad(weight[begin:end].float(), (0, -self.inputs % GROUP), mode="replicate")
            if self.scheme == "int8":
                self._set_int8(part, start + begin)
            else:
                self._set_int4(part, start + begin)

    def _set_int8(self, part: Tensor, start: int) -> None:
        grouped = part.view(len(part), -1, GROUP)
        scale = (grouped.abs().amax(-1) / QMAX).clamp_(max=_MAX_HALF).half()
        divisor = scale.float().masked_fill(scale == 0, torch.inf)[..., None]
        steps = grouped.div_(divisor).round_().clamp_(-QMAX, QMAX).to(torch.int8)
        self.set_codes(steps.view(len(part), -1), scale[:, None], start)

    def _set_int4(self, part: Tensor, start: int) -> None:
        grouped = part.view(len(part), -1, GROUP)
        scale, zero_point = (x.half() for x in fitted(grouped))
        steps = _codes(grouped, scale.float(), zero_point.float())
        both = torch.cat((scale, zero_point), -1).transpose(1, 2)
        self.set_codes(steps.to(torch.uint8).view(len(part), -1), both, start)

    def set_codes(self, codes: Tensor, scales: Tensor, start: int = 0) -> None:
        """Take outputs [start, start + n) of the only slot as they are: codes [n, in padded to 32], one a byte, and
        scales [n, 1, groups], of four bits with zero points [n, 2, groups].
        """
        count, parts, step = len(codes), scales.shape[1], STEPS[self.scheme]
        if self.scheme == "int8":
            laid = codes.view(count, -1, step)
        else:
            pairs = codes.view(count, -1, 2, step)
            laid = pairs[:, :, 0] | (pairs[:, :, 1] << 4)
        # [panels, steps or pairs of them, 16, step] and [panels, groups, parts, 16] of the only slot.
        held = self.codes[0].view(self.codes.shape[1], -1, PANEL, step)
        if start % PANEL == 0 and count % PANEL == 0:
            panels = slice(start // PANEL, (start + count) // PANEL)
            held[panels].copy_(laid.view(-1, PANEL, *laid.shape[1:]).transpose(1, 2))
            self.scales[0, panels].copy_(scales.view(count // PANEL, PANEL, parts, -1).permute(0, 3, 2, 1))
            return
        panel, lane = _places(start, count)
        held[panel, :, lane] = laid
        self.scales[0, panel, :, :, lane] = scales.transpose(1, 2).half()

    def exact_codes(self, rows: Tensor | None = None) -> Tensor:
        """Codes of the only slot, [out or as many as rows, in padded] float32."""
        panel, lane = _places(0, self.outputs) if rows is None else (rows // PANEL, rows % PANEL)
        laid = self.codes[0].view(self.codes.shape[1], -1, PANEL, STEPS[self.scheme])[panel, :, lane]
        if self.scheme == "int8":
            return laid.flatten(1).float()
        return torch.stack((laid & 15, laid >> 4), 2).flatten(1).float()

    def exact_scales(self, rows: Tensor | None = None) -> Tensor:
        """Scales of the only slot, [out, 1, groups] float32; of four bits with zero points, [out, 2, groups]."""
        panel, lane = _places(0, self.outputs) if rows is None else (rows // PANEL, rows % PANEL)
        return self.scales[0, panel, :, :, lane].transpose(1, 2).float()

    def dequantized(self, rows: Tensor | None = None) -> Tensor:
        """[out, in] float32 of the only slot, or only some rows [n] of it."""
        codes, scales = self.exact_codes(rows), self.exact_scales(rows)
        values = codes.view(len(codes), codes.shape[1] // GROUP, GROUP) * scales[:, 0, :, None]
        if self.scheme == "int4":
            values += scales[:, 1, :, None]
        return values.flatten(1)[:, : self.inputs]


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Some outputs of one slot of a weight, as a place that a checkpoint's matrix is copied to."""

    weight: QuantizedWeight
    start: int
    count: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.count, self.weight.inputs))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def copy_(self, source: Tensor) -> Self:
        """Round [count, in] to codes."""
        self.weight.set_rows(source, self.start)
        return self

    def narrow(self, dimension: int, start: int, length: int) -> Self:
        """Fewer outputs."""
        assert dimension == 0, "inputs of an output have scales in common"
        return type(self)(self.weight, self.start + start, length)


def fitted(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and zero point [..., 1] of groups [..., 32]: sixteen levels that are near to them in the mean square.

    From levels that span all of a group's range, and some less of it, each time: round to the nearest level, then
    take the levels that fit those codes best, and again. The best outcome of a group counts.
    """
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    spread = high - low
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for share in _SPANS:
        scale, zero_point = spread * (share / MAX_CODE), low + spread * ((1 - share) / 2)
        for _ in range(_REFITS if best is not None or not _exact(groups, scale, zero_point) else 0):
            scale, zero_point = _refitted(groups, _codes(groups, scale, zero_point))
        error = (_codes(groups, scale, zero_point) * scale + zero_point - groups).square_().sum(-1, keepdim=True)
        if best is None:
            best = error, scale, zero_point
            if bool((error <= _ROUNDING * spread.square()).all()):
                break
        else:
            better = error < best[0]
            best = (
                torch.where(better, error, best[0]),
                torch.where(better, scale, best[1]),
                torch.where(better, zero_point, best[2]),
            )
    assert best is not None
    return best[1], best[2]


def _exact(groups: Tensor, scale: Tensor, zero_point: Tensor) -> bool:
    """Whether groups lie on these levels already, as of a checkpoint that was rounded to such before."""
    off = (_codes(groups, scale, zero_point) * scale + zero_point - groups).square_().sum(-1, keepdim=True)
    return bool((off <= _ROUNDING * (scale * MAX_CODE).square()).all())


def _codes(groups: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """The nearest of the levels, 0 … 15 as floats; a scale of 0 has one level."""
    return ((groups - zero_point) / scale.masked_fill(scale == 0, torch.inf)).round_().clamp_(0, MAX_CODE)


def _refitted(groups: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The line through (code, number) of each group, by least squares."""
    centred = codes - codes.mean(-1, keepdim=True)
    spread = centred.square().sum(-1, keepdim=True)
    scale = (centred * groups).sum(-1, keepdim=True) / spread.masked_fill(spread == 0, torch.inf)
    return scale, groups.mean(-1, keepdim=True) - scale * codes.mean(-1, keepdim=True)


def _pieces(total: int, first: int, step: int) -> list[tuple[int, int]]:
    if not total:
        return []
    return [(0, first), *((begin, min(total, begin + step)) for begin in range(first, total, step))]


def _places(start: int, count: int) -> tuple[Tensor, Tensor]:
    """Panels and lanes of consecutive outputs."""
    rows = torch.arange(start, start + count)
    return rows // PANEL, rows % PANEL
