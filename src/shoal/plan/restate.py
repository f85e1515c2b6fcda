"""Says a question again, in words and as a command, so that an answer carries the question that it answers."""

import shlex
from collections.abc import Iterator, Mapping

from shoal.plan.asked import FIELDS, Asked
from shoal.plan.question import Question
from shoal.plan.words import plural
from shoal.specs.catalog import load_catalog


def restate(question: Question, traffic: str = "") -> str:
    """The whole question on one line: "llama-3.1-70b: 200 users at once · 7,680 tokens in, 512 out · …".

    Args:
        traffic: what is said in place of users and rate, where those are what is asked.
    """
    return f"{question.model.name}: {' · '.join(_parts(question, traffic))}"


def _parts(question: Question, traffic: str) -> Iterator[str]:
    load, slo = question.workload, question.slo
    if traffic:
        yield traffic
    elif load.users is not None:
        yield f"{plural(load.users, 'user')} at once"
    if load.rate is not None and not traffic:
        yield f"{load.rate:,.4g} requests/s"
    longest = "" if load.input.maximum is None else f", {load.longest_context:,.0f} together at most"
    yield f"{load.input.mean:,.0f} tokens in, {load.output.mean:,.0f} out{longest}"
    yield "no TTFT target" if slo.ttft is None else f"TTFT ≤ {slo.ttft:g} s"
    yield "no TPOT target" if slo.tpot is None else f"TPOT ≤ {slo.tpot * 1e3:g} ms"
    yield f"p{slo.percentile:g}"
    yield f"{load.prefix_hit:.3g} of the input cached" if 0 < load.prefix_hit < 0.01 else _percent_cached(question)
    if load.peak_to_mean != 1:
        yield f"peak {load.peak_to_mean:g} times the mean"
    yield f"{question.headroom:.0%} headroom"
    if question.spares:
        yield plural(question.spares, "spare replica")
    yield _where(question)
    if question.weights:
        yield f"weights {' or '.join(question.weights)}"
    if question.kv_dtypes:
        yield f"cache {' or '.join(question.kv_dtypes)}"
    if question.split != "auto":
        yield {"never": "one pool", "only": "prefill and decode split"}[question.split]
    version = _engine_version(question)
    yield f"{question.engines[0].engine}{f' {version}' if version else ''}, {question.basis} prices"
    if question.memory_fraction is not None:
        yield f"memory utilization {question.memory_fraction:.0%}"
    if question.max_sequences is not None:
        yield f"at most {plural(question.max_sequences, 'sequence')} in an engine"
    if question.assurance == "high":
        yield "sized for the upper end of the intervals"


def _percent_cached(question: Question) -> str:
    return f"prefix cache hits {question.workload.prefix_hit:.0%}"


def _where(question: Question) -> str:
    names = [accelerator.name for accelerator in question.accelerators]
    where = f"any of {len(names)} accelerators" if len(names) > 4 else " or ".join(names)
    return where if question.max_devices is None else f"at most {question.max_devices:,} × {where}"


def command(asked: Asked, program: str = "shoal plan") -> str:
    """The command line that asks this question; what is the default in any case is left out."""
    words = [*program.split(), *([asked.model] if asked.model else [])]
    for field in FIELDS:
        value = getattr(asked, field)
        if value is not None and field != "model" and value != _DEFAULTS.get(field):
            words += [f"--{field.replace('_', '-')}", value.replace(", ", ",")]
    return shlex.join(words)


def _engine_version(question: Question) -> str | None:
    """The engine's version, where it isn't the newest that is known."""
    able = next((c for c in question.capabilities if c.engine == question.engines[0].engine), None)
    newest = load_catalog().capability(question.engines[0].engine).version
    return None if able is None or able.version == newest else able.version


_DEFAULTS: Mapping[str, str] = {
    "ttft": "5s", "tpot": "50ms", "percentile": "p50", "prefix_hit": "0%", "peak_to_mean": "1", "headroom": "10%",
    "spares": "0", "engine": "vllm", "split": "auto", "prices": "owned", "sized_for": "mean",
}  # fmt: skip
"""As the page's form has them."""
