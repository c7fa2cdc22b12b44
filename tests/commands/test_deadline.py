"""benchmarks/deadline.py: the moment that it asks for, the neighbours that slow it, and what it says of a late run."""

from __future__ import annotations

import datetime
import time

import psutil
import pytest
from benchmark_scripts import beside, script

__all__ = ["beside"]  # a fixture


@pytest.mark.parametrize("minutes", [0.2, 1.0, 10.0])
def test_the_deadline_is_the_next_full_minute(minutes: float) -> None:
    before = datetime.datetime.now()
    due = script("deadline").deadline_after(minutes)
    ahead = (due - before).total_seconds()
    assert (due.second, due.microsecond) == (0, 0) and 60 * minutes <= ahead <= 60 * minutes + 61


def test_a_slowed_machine_has_twice_as_many_busy_processes_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = script("deadline")
    monkeypatch.setattr(deadline, "usable_cores", lambda: 1)
    busy = deadline.crowd()
    try:
        assert len(busy) == 2
        seen = time.monotonic() + 60
        while not all(psutil.Process(one.pid).cpu_times().user > 0.2 for one in busy):
            assert time.monotonic() < seen
            time.sleep(0.05)
    finally:
        for one in busy:
            one.kill()
            one.wait()


def test_a_late_report_is_told_as_late() -> None:
    run = {"run": 0, "slowed": True, "given_seconds": 600.0, "pretraining_seconds": 400.0, "end_before": -14.0}
    told = script("deadline").render([{**run, "results": [{"seeds": [0, 1]}], "report_before": -12.2}])
    assert told.splitlines()[-1].split() == ["0", "(slowed)", "600", "s", "400", "s", "2", "-12", "s", "-14", "s"]
