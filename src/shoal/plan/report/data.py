"""A plan as plain data for JSON: base units (seconds, bytes, US dollars), names as in `Design`."""

from shoal.plan.cost import distinct
from shoal.plan.designs import BestPossible, Design, Plan, Ranked
from shoal.plan.explain import Explanation
from shoal.plan.restate import restate
from shoal.plan.step_time import Estimate
from shoal.specs.layout import AXES, Layout

Data = dict[str, object]
FORMAT = 1
"""Of the JSON: raised when a field changes its meaning or goes away."""


def plan_data(plan: Plan, explanation: Explanation | None = None, top: int = 10) -> Data:
    """What `shoal plan --json` prints: the question, the first `top` distinct designs, and what was found out."""
    shown = distinct(plan.ranked, top)
    return {
        "format": FORMAT,
        "question": _question(plan),
        "feasible": plan.best is not None,
        "impossible": None if plan.impossible is None else _impossible(plan.impossible),
        "considered": plan.considered,
        "designs_found": len(plan.ranked),
        "designs": [_ranked(entry) for entry in shown],
        "pareto": [
            {
                "tokens_per_second_user": point.per_user, "tokens_per_second_device": point.per_device,
                "design": point.design, "accelerator": point.accelerator,
            }
            for point in plan.front
        ],
        "rejected": [
            {"reason": r.reason, "count": r.count, "nearest": r.example, "detail": r.detail}
            for r in plan.rejections
        ],
        "explanation": None if explanation is None else explanation_data(explanation),
    }  # fmt: skip


def _question(plan: Plan) -> Data:
    question, load, slo = plan.question, plan.question.workload, plan.question.slo
    return {
        "text": restate(question),
        "model": question.model.name,
        "accelerators": [accelerator.name for accelerator in question.accelerators],
        "engines": [f"{engine.engine} (constants since {engine.since})" for engine in question.engines],
        "users": load.users,
        "requests_per_second": load.rate,
        "input_tokens": load.input.mean,
        "output_tokens": load.output.mean,
        "longest_context": load.longest_context,
        "prefix_hit": load.prefix_hit,
        "peak_to_mean": load.peak_to_mean,
        "ttft_seconds": slo.ttft,
        "tpot_seconds": slo.tpot,
        "percentile": slo.percentile,
        "headroom": question.headroom,
        "spares": question.spares,
        "max_devices": question.max_devices,
        "price_basis": question.basis,
        "split": question.split,
        "sized_for": question.assurance,
    }


def _ranked(entry: Ranked) -> Data:
    return {"group": entry.group, **design_data(entry.design)}


def design_data(design: Design) -> Data:
    """One design."""
    cost, energy = design.cost, design.energy
    return {
        "name": design.name,
        "accelerator": design.accelerator.name,
        "prefill_accelerator": None if design.prefill_accelerator is None else design.prefill_accelerator.name,
        "devices": design.devices,
        "parts": [{"accelerator": part.name, "devices": count} for part, count in design.parts],
        "engine": design.engine,
        "engine_constants_since": design.engine_since,
        "weights": design.weights.name,
        "weights_converted": not design.weights.native,
        "kv_dtype": design.kv_dtype,
        "layout": _layout(design.layout),
        "replicas": design.replicas,
        "spares": design.spares,
        "prefill_layout": None if design.prefill is None else _layout(design.prefill),
        "prefill_replicas": design.prefill_replicas,
        "rung": design.rung,
        "load_per_replica": design.load,
        "capacity_per_replica": design.capacity,
        "limited_by": design.limit,
        "memory_batch": design.memory_batch,
        "ttft_seconds": _estimate(design.ttft),
        "tpot_seconds": _estimate(design.tpot),
        "tokens_per_second": _estimate(design.tokens_per_second),
        "tokens_per_second_user": design.per_user,
        "tokens_per_second_device": design.per_device,
        "demand_tokens_per_second": design.demand,
        "targets_met_at_upper_end": design.sure,
        "devices_low_mean_high": list(design.needed),
        "cost": None
        if cost is None
        else {
            "usd_per_hour": cost.per_hour,
            "usd_per_million_output_tokens": _estimate(cost.per_million_output),
            "usd_per_million_tokens": _estimate(cost.per_million_tokens),
            "usd_per_million_output_tokens_at_capacity": cost.at_capacity,
        },
        "energy": None
        if energy is None
        else {
            "kilowatts_at_most": energy.kilowatts,
            "watt_hours_per_million_output_tokens": energy.watt_hours_per_million,
        },
        "curve_user_device": [list(point) for point in design.front],
    }


def _estimate(value: Estimate) -> Data:
    return {"mean": value.mean, "low": value.low, "high": value.high}


def _layout(layout: Layout) -> Data:
    return {"label": layout.label(), "devices": layout.world, **{axis: getattr(layout, axis) for axis in AXES}}


def _impossible(found: BestPossible) -> Data:
    return {
        "what": found.what,
        "message": found.message,
        "best_ttft_seconds": None if found.ttft is None else _estimate(found.ttft),
        "best_ttft_design": found.ttft_design or None,
        "best_tpot_seconds": None if found.tpot is None else _estimate(found.tpot),
        "best_tpot_design": found.tpot_design or None,
        "least_devices": found.least_devices,
    }


def explanation_data(found: Explanation) -> Data:
    """The explanation's parts, as sentences where they are sentences."""
    return {
        "summary": list(found.summary),
        "ladder": [
            {"rung": r.number, "name": r.name, "verdict": r.verdict, "reason": r.reason} for r in found.ladder
        ],
        "binding": list(found.binding),
        "tpot_terms": []
        if found.terms is None
        else [{"name": t.name, "seconds": t.seconds, "share": t.share} for t in found.terms.tpot],
        "flips": [
            {"what": f.what, "factor": f.factor, "changes": f.changes, "sentence": f.sentence} for f in found.flips
        ],
        "prefix": list(found.prefix),
        "levers": [
            {"change": e.lever.change, "share": e.share, "devices": e.design.devices, "sentence": e.sentence}
            for e in found.levers
        ],
        "links": [
            {
                "axis": u.axis, "kind": u.kind, "link": u.link, "bytes_per_second": u.bandwidth, "inside": u.inside,
                "messages": u.messages, "bytes_per_token": u.bytes_per_token,
            }
            for u in found.links
        ],
        "splitting": list(found.splitting),
        "rejected": list(found.rejected),
        "accelerators": list(found.parts),
        "paying": list(found.paying),
        "cautions": [{"topic": c.topic, "text": c.text} for c in found.cautions],
        "figures": [{"name": f.name, "text": f.text, "class": f.kind, "source": f.source} for f in found.figures],
    }  # fmt: skip
