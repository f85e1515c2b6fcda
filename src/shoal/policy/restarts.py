"""When a replica that crashed is started again or given up, when one is killed, and how a pool is renewed.

| observed                                            | decided                                             |
|-----------------------------------------------------|-----------------------------------------------------|
| it crashed                                          | started again after a delay, doubled for each crash |
| it crashed `crash_limit` times without serving long | given up                                            |
| it refused its options                              | given up                                            |
| its checks have failed for `unhealthy_seconds`      | killed                                              |

A replica that runs elsewhere is neither given up nor killed: its process is not ours.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

_Seconds = Annotated[float, Meta(gt=0, le=86_400)]
_JITTER = 0.2


class RestartConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When replicas are started again. Times in seconds."""

    backoff_seconds: _Seconds = 0.5
    """Before a crashed replica is started again; doubled for every crash in a row."""
    backoff_seconds_max: _Seconds = 30.0
    crash_limit: Annotated[int, Meta(ge=1)] = 5
    """Crashes in a row, each before `stable_seconds` of service, after which it is given up until a reload."""
    stable_seconds: _Seconds = 10.0
    unhealthy_seconds: _Seconds = 60.0
    """A replica that fails its checks for so long while its process lives is killed and started again."""


class RestartPolicy:
    """Decides for one replica; told the time. `attached`: it runs elsewhere."""

    def __init__(self, config: RestartConfig, *, attached: bool) -> None:
        self._config = config
        self._attached = attached
        self._crashes = 0
        self._ill_since: float | None = None

    def on_crash(self, served_seconds: float, jitter: float, *, final: bool = False) -> float | None:
        """Return the seconds until it is started again; None: it is given up.

        `served_seconds`: how long it served before. `jitter`, a random number from 0 to 1, spreads replicas that
        crashed together. `final`: starting it again is of no use.
        """
        config = self._config
        self._ill_since = None
        self._crashes = 1 if served_seconds >= config.stable_seconds else self._crashes + 1
        if (final or self._crashes >= config.crash_limit) and not self._attached:
            return None
        delay = min(config.backoff_seconds_max, config.backoff_seconds * 2.0 ** min(30, self._crashes - 1))
        return delay * (1 + _JITTER * (2 * jitter - 1))

    def on_health(self, healthy: bool, now: float) -> Literal["prove", "kill"] | None:
        """Return what follows from the health of a running replica; None: nothing.

        `prove`: an attached replica is back, perhaps with another model.
        """
        if healthy:
            recovered, self._ill_since = self._ill_since is not None, None
            return "prove" if recovered and self._attached else None
        if self._ill_since is None:
            self._ill_since = now
        too_long = now - self._ill_since >= self._config.unhealthy_seconds
        return "kill" if too_long and not self._attached else None


def starts_successor_first(ready_peers: int) -> bool:
    """Whether the successor of a replica is started before that is stopped: where no other serves its pool.

    Otherwise it is stopped first, so that the successor gets the same cores and memory.
    """
    return ready_peers == 0
