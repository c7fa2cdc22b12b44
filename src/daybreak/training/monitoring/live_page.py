"""Live report: a child process of lowest priority updates report.html during the run, rarely enough to cost little."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say

INTERVAL = 60.0
"""Minimum seconds between two pages, and from the start of this process' training to the first one."""
MAX_COST_FRACTION = 0.005
"""Processor time of the pages as a fraction of wall time."""
MAX_FAILURES = 3
"""Failures in a row after which the page is no longer updated."""
NICENESS = 19


def start_child(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process with minimal effect on the run: lowest priority, one thread, no accelerator, no output."""
    # Its own session: Ctrl-C is for the run, which then ends this child itself.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    with contextlib.suppress(OSError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
    return child


def children_seconds() -> float:
    """Processor time of all children of this process that have ended and were waited for."""
    times = os.times()
    return times.children_user + times.children_system


class LivePage:
    """Monitor that updates the report at intervals, checked at each record."""

    def __init__(
        self,
        run: RunFolder,
        *,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[[Sequence[str]], subprocess.Popen[bytes]] = start_child,
        used: Callable[[], float] = children_seconds,
    ):
        """Wait for the first records.

        Args:
            clock: seconds from an arbitrary start.
            used: processor seconds of the children that were waited for. At the lowest priority a child takes minutes
                of wall time on a busy machine but only seconds of processor time.
        """
        self._run = run
        self._clock, self._spawn, self._used = clock, spawn, used
        self._child: subprocess.Popen[bytes] | None = None
        self._started = clock()
        self._next = self._started + INTERVAL
        self._failures = 0

    def on_step(self, record: object) -> None:
        """Look whether a page is due or finished; each kind of record is an occasion."""
        if self._child is not None:
            before = self._used()
            code = self._child.poll()
            if code is not None:
                self._child = None
                self._finished(code == 0, self._used() - before)
        elif self._failures < MAX_FAILURES and self._clock() >= self._next:
            command = [sys.executable, "-m", "daybreak", "report", str(self._run.path), "--out", str(self._run.report)]
            self._started = self._clock()
            try:
                self._child = self._spawn(command)
            except OSError:
                self._finished(False, 0.0)

    on_validation = on_machine = on_step

    def _finished(self, succeeded: bool, seconds: float) -> None:
        self._next = self._started + max(INTERVAL, seconds / MAX_COST_FRACTION)
        self._failures = 0 if succeeded else self._failures + 1
        if self._failures == MAX_FAILURES:
            say(
                f"report.html is no longer updated; daybreak report {shlex.quote(str(self._run.path))} shows the error."
            )

    def close(self) -> None:
        """End a running child."""
        if self._child is not None:
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the kernel on a failed disk
                self._child.wait(5.0)
            self._child = None
