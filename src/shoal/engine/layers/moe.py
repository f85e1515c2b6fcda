"""A mixture-of-experts FFN: route, bring rows to their experts, compute, weigh, add up."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from shoal.engine import ops
from shoal.engine.layers.dispatch import ExpertExchange
from shoal.engine.layers.experts import Experts
from shoal.engine.layers.linear import Linear
from shoal.engine.layers.loading import Target
from shoal.engine.layers.mlp import GatedMlp
from shoal.engine.layers.router import Router, Routing
from shoal.engine.ops.fused import ExpertsFfn, Product
from shoal.engine.parallel.group import SoloGroup
from shoal.engine.parallel.mesh import Mesh
from shoal.engine.parallel.shard import split
from shoal.policy.experts import LayerLoad, LayerPlacement, initial_placement
from shoal.specs.model import FfnSpec


class MoeFfn(nn.Module):
    """x [T, H] -> [T, H]: Σ weight · expert(x) over a row's experts, plus the shared ones.

    Over ranks:
    - without `ep`, every rank of `tp` holds a slice of every expert, as of a dense FFN;
    - with `ep`, whole experts are shared out (slices of them, where there are more ranks than expert groups). The
      ranks of `tp` have the same rows: each sends some of them, so that a row travels once to each of its experts.
    Either way the ranks of `tp` then add up what they have, shared experts included, in one all-reduce.
    """

    def __init__(
        self,
        spec: FfnSpec,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        mesh: Mesh | None = None,
        spare_slots: int = 0,
    ) -> None:
        super().__init__()
        if spec.router is None:
            raise ValueError("an FFN of experts without a router")
        mesh = mesh or Mesh.single()
        self.spec = spec
        self.dtype = dtype
        self.tp = mesh.tp
        self.ep = mesh.ep
        self.router = Router(spec.router, hidden, device)
        self.placement: LayerPlacement = initial_placement(spec.router.experts, mesh.ep.size, spare_slots)
        cut = mesh.etp if mesh.ep.size > 1 else mesh.tp
        self.experts = Experts(spec, self.placement.slots_per_rank, hidden, dtype, device, cut)
        self.exchange = ExpertExchange(mesh.ep, mesh.etp, self.placement, device) if mesh.ep.size > 1 else None
        self.shared: GatedMlp | None = None
        self.shared_gate: Linear | None = None
        if spec.shared_intermediate:
            dense = replace(spec, kind="dense", intermediate=spec.shared_intermediate, router=None)
            self.shared = GatedMlp(dense, hidden, dtype, device, mesh)
            # Its partial sums are added up together with the routed experts'.
            self.shared.down.group = SoloGroup("tp", mesh.rank)
            self.shared_gate = Linear(hidden, 1, False, dtype, device) if spec.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        if self._fused is not None:
            out, shared = self._fused(x), None
        elif self.exchange is None:
            out, shared = self._routed(x), self._shared(x)
        else:
            out, shared = self._exchanged(x, self.exchange)
        if shared is not None:
            out = out + shared
        return self.tp.all_reduce(out) if self.tp.size > 1 and len(out) else out

    @cached_property
    def _fused(self) -> Callable[[Tensor], Tensor] | None:
        """All of it but the sum over ranks in one call, if the kernels have it; asked for with weights in."""
        spec = self.fused_spec()
        return None if spec is None else ops.KERNELS.fuse_experts(spec, self.dtype)

    def _shared(self, x: Tensor) -> Tensor | None:
        if self.shared is None:
            return None
        shared: Tensor = self.shared(x)
        return shared if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * shared

    def _routed(self, x: Tensor) -> Tensor:
        routing: Routing = self.router(x)
        top_k = routing.experts.shape[1]
        chosen = routing.experts.flatten()
        order = chosen.argsort(stable=True)
        counts = chosen.bincount(minlength=self.experts.slots).tolist()
        computed = self.experts(x.index_select(0, order // top_k), counts)
        return combine(torch.empty_like(computed).index_copy_(0, order, computed), routing)

    def _exchanged(self, x: Tensor, exchange: ExpertExchange) -> tuple[Tensor, Tensor | None]:
        """What routed experts made of x, and what the shared ones did while rows were under way."""
        own = split(len(x), self.tp.size)[self.tp.index]
        mine = x[own.start : own.stop]
        routing: Routing = self.router(mine)
        dispatched = exchange.dispatch(mine, routing)
        shared = self._shared(x)
        out = combine(exchange.combine(dispatched, self.experts), routing)
        if self.tp.size > 1:
            before, after = out.new_zeros(own.start, out.shape[1]), out.new_zeros(len(x) - own.stop, out.shape[1])
            out = torch.cat((before, out, after))
        return out, shared

    def fused_spec(self) -> ExpertsFfn | None:
        """What the compiled kernels take in one call with the rest of a layer; None where they can't."""
        shared = None if self.shared is None else self.shared.fused_spec()
        if self.exchange is not None or (self.shared is not None and shared is None):
            return None
        gate = self.shared_gate
        return ExpertsFfn(
            router=self.router.spec,
            router_weight=self.router.weight,
            router_bias=self.router.bias,
            correction=self.router.correction,
            routed=self.experts.fused_spec(),
            shared=shared,
            shared_gate=None if gate is None else Product(gate.weight, gate.bias),
        )

    def place(self, placement: LayerPlacement) -> None:
        """Fetch and give away experts so that they are where `placement` says. All ranks of `ep` call it."""
        if self.exchange is not None:
            self.exchange.move(placement, self.experts)
            self.placement = placement

    def take_load(self, layer: int) -> LayerLoad | None:
        """What was counted since the last call; None where experts are not shared out."""
        return None if self.exchange is None else self.exchange.take_load(layer)

    def targets(self) -> dict[str, Target]:
        found = self.router.targets("router" if self.router.spec.softmax_after_top_k else "gate")
        held = self.placement.slots[self.ep.index]
        experts = self.experts.targets([expert for expert in held if expert >= 0])
        found |= {f"experts.{name}": target for name, target in experts.items()}
        if self.shared is not None:
            part = "shared_experts" if self.shared_gate is None else "shared_expert"
            found |= {f"{part}.{name}": target for name, target in self.shared.targets().items()}
        if self.shared_gate is not None:
            found |= self.shared_gate.targets({"shared_expert_gate": 1})
        return found


def combine(computed: Tensor, routing: Routing) -> Tensor:
    """computed [T · k, H], row t · k + i from row t's i-th expert -> [T, H].

    Added up in fp32 in the order of the row's own choice, so that the sum doesn't depend on the batch.
    """
    rows, top_k = routing.weights.shape
    weighted = computed.view(rows, top_k, computed.shape[-1]) * routing.weights[..., None]
    return weighted.sum(1).to(computed.dtype)
