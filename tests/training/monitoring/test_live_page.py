"""The report is written anew while a run goes on, seldom enough to cost nothing, and its failing harms nobody."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_records import MACHINE

from daybreak.core.run_folder import RunFolder
from daybreak.training.monitoring.live_page import INTERVAL, MAX_COST_FRACTION, MAX_FAILURES, LivePage, start_child


class FakeChild:
    """A process that ends on request."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.killed = False

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float) -> int:
        return -9


class Machine:
    """A clock, a processor and the children that were started, all by hand."""

    def __init__(self, folder: Path):
        self.now, self.seconds = 1000.0, 0.0
        self.children: list[FakeChild] = []
        self.commands: list[Sequence[str]] = []
        self.broken = False
        self.page = LivePage(RunFolder(folder), clock=lambda: self.now, spawn=self.spawn, used=lambda: self.seconds)

    def spawn(self, command: Sequence[str]) -> FakeChild:
        if self.broken:
            raise OSError("no memory")
        self.commands.append(command)
        self.children.append(FakeChild())
        return self.children[-1]

    def after(self, seconds: float) -> None:
        """A record comes so much later."""
        self.now += seconds
        self.page.on_machine(MACHINE)


def ends(machine: Machine, code: int, cost: float) -> None:
    """The newest child ends; its processor time is known only after a poll."""
    child = machine.children[-1]

    def poll() -> int:
        machine.seconds += cost
        return code

    child.poll = poll  # type: ignore[method-assign]
    machine.after(0.0)


def test_the_first_page_comes_after_a_minute_and_is_that_of_the_run(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.after(INTERVAL - 1)
    assert machine.commands == []
    machine.after(1.0)
    page = str(tmp_path / "report.html")
    assert machine.commands == [[sys.executable, "-m", "daybreak", "report", str(tmp_path), "--out", page]]


def test_there_are_never_two_children(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for _ in range(50):
        machine.after(INTERVAL)
    assert len(machine.children) == 1


@pytest.mark.parametrize("cost", [0.01, 4.0, 60.0])
def test_pages_cost_at_most_their_fraction_of_wall_time(tmp_path: Path, cost: float) -> None:
    machine = Machine(tmp_path)
    for _ in range(4):
        while not machine.children or machine.children[-1].code is not None:
            machine.after(1.0)
        started = machine.now
        machine.after(30.0)  # it lasts longer than it costs
        ends(machine, 0, cost)
        machine.children[-1].code = 0
        count = len(machine.children)
        while len(machine.children) == count:
            machine.after(1.0)
        waited = machine.now - started
        assert waited >= INTERVAL and cost / waited <= MAX_COST_FRACTION
        assert waited <= max(INTERVAL, cost / MAX_COST_FRACTION) + 1.0  # and no rarer than that


def test_a_page_that_fails_is_given_up_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path)
    for _ in range(MAX_FAILURES):
        machine.after(INTERVAL)
        ends(machine, 2, 0.1)
    for _ in range(10):
        machine.after(10 * INTERVAL)
    assert len(machine.children) == MAX_FAILURES
    assert capsys.readouterr().out.count("no longer updated") == 1


def test_a_failure_between_successes_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path)
    for code in (2, 2, 0) * 3:
        machine.after(INTERVAL)
        ends(machine, code, 0.1)
    assert len(machine.children) == 9
    assert capsys.readouterr().out == ""


def test_a_machine_that_starts_no_process_harms_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path)
    machine.broken = True
    for _ in range(10):
        machine.after(INTERVAL)
    machine.page.close()
    assert capsys.readouterr().out.count("no longer updated") == 1


def test_closing_ends_a_child_that_is_at_work_and_no_other(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.after(INTERVAL)
    ends(machine, 0, 0.1)
    machine.page.close()
    assert not machine.children[0].killed
    machine.after(INTERVAL)
    machine.page.close()
    assert machine.children[1].killed


def test_a_child_is_of_lowest_priority_and_silent_and_ends_at_once(tmp_path: Path) -> None:
    """A real process says what it is."""
    received = tmp_path / "told"
    code = (
        "import os, pathlib, time; print('noise'); "
        "is_set = lambda: os.getpriority(os.PRIO_PROCESS, 0) == 19; "
        "[time.sleep(0.01) for _ in range(1000) if not is_set()]; "
        f"pathlib.Path({str(received)!r}).write_text(repr((is_set(), os.environ['OMP_NUM_THREADS'], "
        "os.environ['CUDA_VISIBLE_DEVICES'], os.getsid(0) == os.getpid())))"
    )
    child = start_child([sys.executable, "-c", code])
    assert child.wait(60) == 0
    assert received.read_text() == "(True, '1', '', True)"
    sleeper = start_child([sys.executable, "-c", "import time; time.sleep(600)"])
    sleeper.kill()
    assert sleeper.wait(60) < 0


def test_a_run_that_is_going_on_gets_its_page(write_run: Callable[..., Path], start: Callable[..., Any]) -> None:
    path = write_run(ended=False)
    now = time.monotonic()
    page = LivePage(RunFolder(path), clock=lambda: now, spawn=lambda command: start(*command[3:]))
    now += INTERVAL
    page.on_machine(MACHINE)
    report = path / "report.html"
    until = time.monotonic() + 120
    while not report.exists() and time.monotonic() < until:
        time.sleep(0.05)
    text = report.read_text("utf-8")
    assert text.lstrip().lower().startswith("<!doctype html") and "tiny" in text
    page.close()
    assert [name for name in os.listdir(path) if name.endswith(".tmp")] == []
