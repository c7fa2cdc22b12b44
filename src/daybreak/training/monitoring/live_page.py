"""report.html while the run goes on: by a child process of lowest priority, and seldom enough to cost nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say
from daybreak.schemas.changes import MachineRecord
from daybreak.schemas.run import StepRecord, ValidationRecord

FIRST = 60.0
"""Seconds from the start of this process' training to the first page, and the least between two."""
SHARE = 0.005
"""Processor time of the pages as a share of wall time."""
TRIES = 3
"""Failures in a row after which no more is tried."""
LOWEST = 19


class Child(Protocol):
    """What is asked of a started process, as ``subprocess.Popen`` answers it."""

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float) -> int: ...


def start_child(command: Sequence[str]) -> Child:
    """Start a process that the run hardly feels: lowest priority, one thread, no accelerator, nothing on the screen."""
    # A session of its own: Ctrl-C is for the run, which then ends this child itself.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    with contextlib.suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, child.pid, LOWEST)
    return child


def children_seconds() -> float:
    """Processor time of all children of this process that have ended and were waited for."""
    times = os.times()
    return times.children_user + times.children_system


class LivePage:
    """Writes the report anew now and then; a monitor, so its clock is the coming of records."""

    def __init__(
        self,
        run: RunFolder,
        *,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[[Sequence[str]], Child] = start_child,
        used: Callable[[], float] = children_seconds,
    ):
        """Wait for the first records.

        Args:
            clock: seconds, from anywhere.
            used: processor seconds of the children that were waited for. At the lowest priority a child on a busy
                machine lasts minutes and costs seconds, so its wall time would say nothing.
        """
        self._run = run
        self._clock, self._spawn, self._used = clock, spawn, used
        self._child: Child | None = None
        self._begun = clock()
        self._next = self._begun + FIRST
        self._failures = 0

    def on_step(self, record: StepRecord) -> None:
        self._look()

    def on_validation(self, record: ValidationRecord) -> None:
        self._look()

    def on_machine(self, record: MachineRecord) -> None:
        self._look()

    def _look(self) -> None:
        if self._child is not None:
            before = self._used()
            code = self._child.poll()
            if code is not None:
                self._child = None
                self._ended(code == 0, self._used() - before)
        elif self._failures < TRIES and self._clock() >= self._next:
            command = [sys.executable, "-m", "daybreak", "report", str(self._run.path), "--out", str(self._run.report)]
            self._begun = self._clock()
            try:
                self._child = self._spawn(command)
            except OSError:
                self._ended(False, 0.0)

    def _ended(self, well: bool, seconds: float) -> None:
        self._next = self._begun + max(FIRST, seconds / SHARE)
        self._failures = 0 if well else self._failures + 1
        if self._failures == TRIES:
            say(f"report.html is not kept fresh any more; daybreak report {self._run.path} says why.")

    def close(self) -> None:
        """End a child that is still at work."""
        if self._child is not None:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel, on a disk that is gone
                self._child.wait(5.0)
            self._child = None
