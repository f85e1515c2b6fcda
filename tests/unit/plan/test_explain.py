"""Explanations: every rung judged, terms that add up, flips that hold, warnings where they apply and only there."""

from dataclasses import replace
from functools import lru_cache

import pytest

from shoal.plan.api import ask
from shoal.plan.breakdown import breakdown
from shoal.plan.cautions import cautions, footprint
from shoal.plan.designs import Plan
from shoal.plan.explain import Explanation, explain
from shoal.plan.flips import price_flip
from shoal.plan.ladder import RUNGS, ladder
from shoal.plan.search import search
from shoal.plan.topology import link_uses
from shoal.specs.layout import Layout


@lru_cache(maxsize=8)
def plan_of(name: str, users: float, gpu: tuple[str, ...], split: str = "auto", context: int = 8192) -> Plan:
    return search(ask(name, gpu=gpu, users=users, context=context, split=split, ttft=60.0))  # type: ignore[arg-type]


@lru_cache(maxsize=8)
def explained(name: str, users: float, gpu: tuple[str, ...], split: str = "auto") -> Explanation:
    return explain(plan_of(name, users, gpu, split), sensitivity=False)


def test_the_ladder_judges_every_rung() -> None:
    for name, users, gpu in (
        ("llama-3.1-70b", 200.0, ("h200", "mi300x")),
        ("llama-3.1-8b", 4.0, ("h100",)),
        ("deepseek-v3", 1000.0, ("h200",)),
    ):
        plan = plan_of(name, users, gpu)
        rungs = ladder(plan)
        assert [r.name for r in rungs] == list(RUNGS)
        assert [r.verdict for r in rungs].count("chosen") == 1
        assert plan.best is not None
        assert rungs[plan.best.rung - 1].verdict == "chosen"
        assert all(r.reason.endswith(".") for r in rungs)


def test_the_lowest_rung_is_where_one_stops() -> None:
    plan = plan_of("llama-3.1-8b", 4.0, ("h100",))
    assert plan.best is not None
    assert plan.best.rung == 1
    first = ladder(plan)[0]
    assert first.verdict == "chosen"
    assert "stop here" in first.reason
    assert ladder(plan)[4].verdict == "not applicable"


def test_a_rung_that_fails_says_why() -> None:
    rungs = ladder(plan_of("deepseek-v3", 1000.0, ("h200",)))
    assert rungs[0].verdict == "fails"
    assert "weights do not fit" in rungs[0].reason.lower()


def test_terms_add_up_to_the_token() -> None:
    plan = plan_of("llama-3.1-70b", 200.0, ("h200", "mi300x"))
    for design in plan.designs[:30]:
        terms = breakdown(plan.question, design)
        assert sum(part.share for part in terms.tpot) == pytest.approx(1)
        assert sum(part.seconds for part in terms.tpot) == pytest.approx(design.tpot.mean, rel=1e-6)
        assert terms.binding.share == max(part.share for part in terms.tpot)
        assert 0 < terms.floor <= design.tpot.mean


def test_what_binds_follows_the_physics() -> None:
    few = plan_of("llama-3.1-70b", 1.0, ("h200",), "never", 2048)
    assert few.best is not None
    assert breakdown(few.question, few.best).binding.name == "weights read"
    far = plan_of("llama-3.1-8b", 1.0, ("h200",), "never", 130_000)
    one = next(d for d in far.designs if d.layout == Layout(tp=1) and d.kv_dtype == "bf16")
    shares = {part.name: part.share for part in breakdown(far.question, one).tpot}
    near = plan_of("llama-3.1-8b", 1.0, ("h200",), "never", 2048)
    same = next(d for d in near.designs if d.layout == Layout(tp=1) and d.kv_dtype == "bf16")
    before = {part.name: part.share for part in breakdown(near.question, same).tpot}
    assert shares["attention"] > 3 * before["attention"]


def test_a_price_flip_flips() -> None:
    plan = plan_of("llama-3.1-70b", 200.0, ("h200", "mi300x"), "never")
    flip = price_flip(plan)
    assert flip is not None
    assert plan.best is not None
    mine = plan.best.accelerator.name
    assert flip.factor > 1
    for past, draws_level in ((1.02, False), (0.98, True)):
        scale = flip.factor * past
        dear = tuple(
            replace(a, price_owned=(a.price_owned or 0.0) * (scale if a.name == mine else 1.0))
            for a in plan.question.accelerators
        )
        changed = search(replace(plan.question, accelerators=dear)).designs
        cheapest = {
            name: min(d.cost.per_million_output.mean for d in changed if d.cost and d.accelerator.name == name)
            for name in {d.accelerator.name for d in changed}
        }
        own = next(d for d in changed if d.layout == plan.best.layout and d.accelerator.name == mine
                   and (d.weights, d.kv_dtype) == (plan.best.weights, plan.best.kv_dtype))  # fmt: skip
        other = min(value for name, value in cheapest.items() if name != mine)
        assert own.cost is not None
        assert (own.cost.per_million_output.mean < other) == draws_level


def test_changed_questions_are_searched_again() -> None:
    found = explain(search(ask("llama-3.1-8b", gpu=["h100"], users=40, context=4096, split="never")))
    users = [flip for flip in found.flips if flip.what == "users"]
    assert [flip.factor for flip in users] == [0.5, 2.0, 4.0]
    assert "160 users" in users[-1].sentence
    assert any(flip.what == "tpot" for flip in found.flips)


def test_links_match_traffic() -> None:
    plan = plan_of("llama-3.1-70b", 200.0, ("h100",), "never")
    tp8 = next(d for d in plan.designs if d.layout == Layout(tp=8))
    (use,) = link_uses(plan.question, tp8)
    assert (use.axis, use.kind, use.messages, use.inside) == ("tp", "all_reduce", 160, True)
    assert use.bytes_per_token == 160 * 8192 * 2
    across = next(d for d in plan.designs if d.layout.pp > 1 and d.layout.world == 16)
    stages = next(u for u in link_uses(plan.question, across) if u.axis == "pp")
    assert not stages.inside
    assert stages.link == "InfiniBand NDR"
    single = next((d for d in plan.designs if d.layout.world == 1), None)
    assert single is None or link_uses(plan.question, single) == ()


def topics(plan: Plan, layout: Layout, **fields: object) -> set[str]:
    design = next(
        d for d in plan.designs
        if d.layout == layout and not d.split and all(getattr(d, name) == value for name, value in fields.items())
    )  # fmt: skip
    return {caution.topic for caution in cautions(plan, design)}


def test_cautions_apply_where_they_should_and_only_there() -> None:
    fast = plan_of("llama-3.1-70b", 200.0, ("h100",), "never")
    assert "slow links" not in topics(fast, Layout(tp=8))
    assert "slow links" in topics(fast, Layout(tp=16))
    cards = plan_of("llama-3.1-70b", 2.0, ("l40s",), "never")
    assert "slow links" in topics(cards, Layout(tp=4))
    assert "sizing for weights only" in topics(fast, Layout(tp=8))
    small = plan_of("llama-3.1-8b", 2.0, ("h100",), "never", 2048)
    found = topics(small, Layout(tp=1), kv_dtype="bf16")
    assert "sizing for weights only" not in found
    assert "no redundancy" in found
    native = next(d for d in small.designs if d.weights.native)
    assert "precision" not in {c.topic for c in cautions(small, native)}
    lossy = next(d for d in small.designs if not d.weights.native)
    assert "precision" in {c.topic for c in cautions(small, lossy)}


def test_the_cache_is_the_bigger_bill() -> None:
    # The guide's worked example: 537 GB of cache against 141 GB of weights, about 3.8 times.
    plan = plan_of("llama-3.1-70b", 200.0, ("h200", "mi300x"))
    design = next(d for d in plan.designs if d.weights.native and d.kv_dtype == "bf16" and not d.split)
    held = footprint(plan.question, design)
    assert held.cache == pytest.approx(536.9e9, rel=0.01)
    assert held.ratio == pytest.approx(3.8, rel=0.02)


def test_every_figure_has_a_class_and_a_source() -> None:
    found = explained("llama-3.1-70b", 200.0, ("h200", "mi300x"))
    assert {"memory", "bandwidth", "TTFT", "TPOT", "cost"} <= {figure.name for figure in found.figures}
    for figure in found.figures:
        assert figure.kind in ("published", "vendor", "calculated", "measured")
        assert figure.source
        assert figure.text


def test_an_explanation_is_sentences() -> None:
    for name, users, gpu in (("llama-3.1-70b", 200.0, ("h200", "mi300x")), ("deepseek-v3", 1000.0, ("h200",))):
        text = list(explained(name, users, gpu).lines())
        assert len(text) > 20
        assert not any("None" in line or "nan" in line or "e+" in line for line in text), text


def test_splitting_is_explained_either_way() -> None:
    only = explained("llama-3.1-70b", 200.0, ("h200",), "only")
    assert any("No design with one pool" in line or "split pays" in line for line in only.splitting)
    never = explained("llama-3.1-70b", 200.0, ("h200",), "never")
    assert "A split was ruled out by the question." in never.splitting
    assert any("Handing over" in line for line in never.splitting)


def test_nothing_possible_is_explained() -> None:
    found = explain(search(ask("llama-3.1-70b", gpu=["rtx_4090"], users=1, context=4096, tpot=1e-5)))
    assert "impossible" in found.summary[0]
    assert found.rejected
    assert found.ladder == ()
