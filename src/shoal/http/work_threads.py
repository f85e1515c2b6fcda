"""What keeps a server's streams flowing while it does long work: few threads, of low priority, and no long pauses.

`asyncio.to_thread` uses the executor set here. Long prompts, grammars and large bodies go there.
"""

import asyncio
import contextlib
import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

WORKERS = 2
"""More would only take turns on the GIL, and cores from the engine."""
_NICE = 5
_SWITCH_SECONDS = 0.001
"""How long a thread in Python keeps the GIL from others; the default, 5 ms, is paid at every call of a kernel."""


def use_work_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Make `asyncio.to_thread` on `loop` use few threads that leave the processor to the engine. Process-wide, the
    GIL changes hands more often."""
    loop.set_default_executor(ThreadPoolExecutor(WORKERS, "shoal-work", initializer=_lower_priority))
    sys.setswitchinterval(_SWITCH_SECONDS)


def _lower_priority() -> None:
    """Linux has a priority per thread, inherited by those it starts (the tokenizer's own pool)."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICE))


def spare_the_collector() -> None:
    """Leave what was loaded out of garbage collections: a full one would look at all of it, without pause."""
    gc.freeze()
