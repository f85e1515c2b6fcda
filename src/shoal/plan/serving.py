"""From one step to what a user sees: TTFT and TPOT of a closed loop of requests, aggregated or split.

Closed loop: a fixed number of requests is in flight; each ends and is replaced at once. What the model accounts
for: KV admission (the running batch is what fits, the rest waits), prefills of others that interrupt decoding, the
queue of prefills before one's own, and, split, a prefill pool whose rate may bound the decoding batch.
"""

from dataclasses import dataclass

import numpy as np

from shoal.plan.engine_constants import Constants
from shoal.plan.numeric import ARRAY, Ops, Real
from shoal.plan.pool_work import PoolWork, cache_room
from shoal.plan.step_time import decode_terms, prefill_terms


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a deployment; floats, or arrays with one entry a case."""

    input_tokens: Real
    output_tokens: Real
    concurrency: Real
    """Requests in flight, over all workers."""
    workers: Real
    """Decoding workers (aggregated: replicas)."""
    prefill_workers: Real
    known_workers: Real
    """1 where the numbers of workers are given, 0 where they were assumed."""
    split: Real
    """1 for split prefill and decode, else 0."""
    running_limit: Real
    """Most sequences that the engine runs in one worker at a time (`max_num_seqs`); large where it sets none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds, and the quantities behind them that explain a result and place it in a regime."""

    ttft: Real
    tpot: Real
    running: Real
    """Sequences in the batch of one attention rank."""
    admitted: Real
    """Sequences of this length that one attention rank may run: what its KV memory or the engine's limit allows."""
    offered: Real
    """Requests in flight for each attention rank."""
    decode_step: Real
    prefill: Real
    """Seconds to prefill one prompt."""
    wait: Real
    """Seconds of TTFT spent waiting for KV memory or a saturated prefill pool."""
    pressure: Real
    """Decode pool's demand over prefill pool's rate (split only)."""


def _admission(work: PoolWork, k: Constants, load: Load, ops: Ops) -> tuple[Real, Real, Real]:
    """(offered, admitted, running) sequences on an attention rank."""
    context = load.input_tokens + load.output_tokens / 2.0
    kept = work.kv_elements * context + work.window_elements * ops.minimum(context, work.window)
    sequence = kept * k.cache_bytes + work.state_bytes
    held = cache_room(work) * work.pp / ops.maximum(sequence, 1.0)
    admitted = ops.maximum(ops.minimum(held, load.running_limit / work.attention_dp), 1.0)
    offered = ops.maximum(load.concurrency / (load.workers * work.attention_dp), 1.0)
    # Harmonic of high order: near the limit some requests already wait.
    running = (offered**-4.0 + admitted**-4.0) ** -0.25
    return offered, admitted, ops.maximum(running, 1.0)


def _decode(work: PoolWork, k: Constants, sequences: Real, load: Load, ops: Ops) -> Real:
    """A decode step; with stages, a micro-batch of 1/p of the sequences passes all of them."""
    context = load.input_tokens + load.output_tokens / 2.0
    return decode_terms(work, k, ops.maximum(sequences / work.pp, 1.0), context, ops).total


def _aggregated(work: PoolWork, k: Constants, load: Load, prefill: Real, ops: Ops) -> Outcome:
    offered, admitted, running = _admission(work, k, load, ops)
    step = _decode(work, k, running, load, ops)
    others = ops.maximum(running - 1.0, 0.0)
    tpot = step + k.interference * prefill * others / (load.output_tokens * work.pp)
    excess = (1.0 + ops.minimum(offered / admitted, 1e6) ** 24.0) ** (1.0 / 24.0) - 1.0
    wait = excess * load.output_tokens * tpot * k.wait
    ahead = ops.minimum(others + 1e-9, 500.0) ** k.queue_power
    ttft = k.request + prefill * (k.own_prefill + k.queue * ahead) + step * k.stream + wait
    return Outcome(ttft, tpot, running, admitted, offered, step, prefill, wait, 0.0 * step)


def _split(work: PoolWork, first: PoolWork, k: Constants, load: Load, prefill: Real, ops: Ops) -> Outcome:
    """Closed network of two stations: a prefill pool of bounded rate, then decoding."""
    offered, admitted, _ = _admission(work, k, load, ops)
    ranks = load.workers * work.attention_dp
    rate = load.prefill_workers * first.attention_dp / (prefill * k.split_prefill)
    step = _decode(work, k, ops.minimum(offered, admitted), load, ops)
    running = offered
    for _ in range(4):
        # Damped: the batch is what the prefill pool feeds, the step is what that batch takes.
        fed = ops.minimum(load.concurrency, rate * load.output_tokens * step)
        running = ops.maximum(ops.minimum(fed / ranks, admitted), 1.0)
        step = 0.4 * step + 0.6 * _decode(work, k, running, load, ops)
    demand = load.concurrency / (load.output_tokens * step)
    served = ops.minimum(running * ranks / (load.output_tokens * step), rate)
    surplus = ops.maximum(load.concurrency / served - load.output_tokens * step, 0.0)
    factor = ops.where(load.known_workers > 0.5, k.saturation, k.unknown_saturation)
    queued = ops.minimum(load.concurrency / (load.prefill_workers * first.attention_dp), 300.0)
    wait = surplus * factor
    ahead = prefill * (k.own_prefill + k.split_queue * queued**k.split_queue_power)
    ttft = k.split_request + ahead + step * k.stream + wait
    return Outcome(ttft, step, running, admitted, offered, step, prefill, wait, demand / rate)


def closed_loop(
    work: PoolWork, first: PoolWork, k: Constants, load: Load, ops: Ops = ARRAY, first_k: Constants | None = None
) -> Outcome:
    """TTFT and TPOT of each case. `first` is the prefill pool's work (aggregated: the same as `work`), `first_k`
    its constants where they are others than `k`."""
    prefill = prefill_terms(
        first, k if first_k is None else first_k, load.input_tokens, 0.0 * load.input_tokens, ops
    ).total
    if ops is ARRAY:
        return _both(work, first, k, load, prefill)
    if load.split:
        return _split(work, first, k, load, prefill, ops)
    return _aggregated(work, k, load, prefill, ops)


def _both(work: PoolWork, first: PoolWork, k: Constants, load: Load, prefill: Real) -> Outcome:
    is_split = np.asarray(load.split) > 0.5
    if not is_split.any():
        return _aggregated(work, k, load, prefill, ARRAY)
    if is_split.all():
        return _split(work, first, k, load, prefill, ARRAY)
    whole = _aggregated(work, k, load, prefill, ARRAY)
    parted = _split(work, first, k, load, prefill, ARRAY)

    def pick(name: str) -> Real:
        return ARRAY.where(is_split, getattr(parted, name), getattr(whole, name))

    return Outcome(*(pick(name) for name in Outcome.__dataclass_fields__))
