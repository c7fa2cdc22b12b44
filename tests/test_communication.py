"""Messages about the communication time of several devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from daybreak.core.files import read_json
from daybreak.core.world import World
from daybreak.pretraining import run_end
from daybreak.schemas.run import Summary


@pytest.mark.parametrize(
    ("devices", "seconds", "slower"),
    [(1, 0.0, False), (2, 40.0, False), (2, 60.0, True), (4, 60.0, False), (4, 80.0, True)],
)
def test_devices_that_are_slower_than_one_are_said_so(
    devices: int, seconds: float, slower: bool, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 100 s of steps: n devices that spend more than (n - 1) / n of it waiting were beaten by one alone."""
    summary: Summary = read_json(finished / "summary.json", Summary)
    used = {**summary.time_by_category, "train": 100.0 - seconds, "communicate": seconds}
    run_end.warn_of_communication(replace(summary, time_by_category=used), World(rank=0, size=devices))
    received = capsys.readouterr().out
    assert (f"on {devices} devices; {seconds:.0f}% of the time is communication" in received) == (devices > 1)
    assert (f"{devices} devices are slower than one" in received) == slower
