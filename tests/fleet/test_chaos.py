"""No request is lost, no stream silently cut or garbled, and the fleet is whole again by itself."""

from pathlib import Path

import pytest
from chaos_kit import FAULTS, Chaos, chaos_fleet

GOOD = {"ok", "cancelled", "error event"}


async def survives(chaos: Chaos, seconds: float, pause: tuple[float, float]) -> None:
    report = await chaos.run(seconds, clients=6, pause=pause)
    print(f"\n{report.text()}")
    assert report.problems == [], report.text()
    assert {name for name in report.answers if name not in GOOD and not name.startswith("typed error")} == set()
    assert set(report.faults) == set(FAULTS)
    assert report.restarts >= report.faults["kill"] > 0
    # It goes on serving meanwhile: errors are the exception.
    assert report.answers["ok"] > 0.8 * report.sent
    await chaos.check_books()


@pytest.mark.timeout(300)
async def test_every_kind_of_fault_once(tiny_folder: Path, tmp_path: Path, no_leaks: None) -> None:
    async with chaos_fleet(tiny_folder, tmp_path, replicas=3, seed=1) as chaos:
        await survives(chaos, seconds=5, pause=(1.0, 2.0))
        # The replica whose disk is full serves all the same.
        assert (tmp_path / "logs" / "tiny-0.log").is_symlink()


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_ten_minutes(tiny_folder: Path, tmp_path: Path, no_leaks: None) -> None:
    async with chaos_fleet(tiny_folder, tmp_path, replicas=3, seed=2) as chaos:
        await survives(chaos, seconds=600, pause=(1.0, 6.0))
