"""5 · A cache miss must not go to the emptiest cache when that replica is the overloaded one (sglang PR#14305)."""

import asyncio

from fleet import fleet


async def test_case_05_an_overloaded_replica_gets_less() -> None:
    async with fleet(3) as f:
        slow = f.engines[0]
        slow.prefill_rate, slow.decode_seconds = 400, 0.05
        for wave in range(3):
            await asyncio.gather(*(f.post(f.chat(f"{wave}-{i} " + "word " * 80)) for i in range(15)))
        counts = f.counts()
        assert counts[0] < min(counts[1:]), counts
        f.check()
