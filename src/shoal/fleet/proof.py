"""Readiness of one replica: its health endpoint, the model that it lists, one generated token."""

import asyncio
from collections.abc import Callable, Sequence

from shoal.fleet.adapters import ModelCard, ReadinessGate
from shoal.policy.outcomes import LegFailed, Outcome

_PAUSE_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 2.0


async def prove(
    gate: Callable[[], ReadinessGate | None], names: Sequence[str], on_problem: Callable[[str], None]
) -> ModelCard:
    """Return what the replica calls its model once it has generated a token.

    `gate` is asked anew before each try: there is none while the replica is being started. `on_problem` is told
    what is in the way, in words that follow the replica's name.
    """
    pause = _PAUSE_SECONDS
    while True:
        now = gate()
        if now is not None:
            try:
                if (why := await now.adapter.why_not_ready()) is None:
                    card = await now.adapter.find_model(names)
                    await now.adapter.prove(card.id)
                    return card
                on_problem(f"isn't ready: {why}")
            except LegFailed as error:
                hint = "; is it running, and is the URL right?" if error.outcome is Outcome.TRANSPORT_FAULT else ""
                on_problem(f"isn't ready: {error}{hint}")
            except TimeoutError:
                on_problem("isn't ready: no answer in time")
        await asyncio.sleep(pause)
        pause = min(_MAX_PAUSE_SECONDS, pause * 1.3)
