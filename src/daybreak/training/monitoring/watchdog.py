"""Notices that a run hangs, and writes down where each process stands. It only writes: the run goes on waiting."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from daybreak.core.errors import UserError, reason
from daybreak.core.terminal import duration, say

LEAST_SECONDS = 60.0
TIMES = 30
"""A step may take this many times as long as the longest but one, or LEAST_SECONDS."""
FIRST_SECONDS = 600.0
"""The first step may take this long: it compiles."""
PAUSE_SECONDS = 3600.0
"""What is done between two steps may take this long: a validation, a checkpoint, compiling anew."""
LOOKS = 12
"""In LEAST_SECONDS."""
LATER = 2
"""Times the limit after which the stack is written even where no Python thread can run."""


class Watchdog:
    """A thread on every rank that notices when no step has ended for too long, from now until ``close``.

    It writes the stacks of all threads to ``folder/rank-R.txt`` and says so, once per hang, and says when steps end
    again. Two ways lead there:

    - The thread itself. It holds the interpreter's lock while it writes, so no other thread moves under its hands,
      and it does not count time in which the whole process was stopped.
    - Where a call holds that lock for good, no thread runs any more. An alarm signal, which the thread puts off at
      each look, then makes the main thread write its own stack from within the call. (The timer thread of
      ``faulthandler.dump_traceback_later`` is no way: it reads frames while they change, and where the process was
      merely stopped and goes on, as after SIGCONT, that can end in a segmentation fault.)

    SIGALRM and ITIMER_REAL belong to it meanwhile.

    Args:
        folder: of the stacks; made here. The files of ranks without a hang are empty, and removed by ``close``.
        rank: of this process.
        least: seconds that any step may take.
        first: seconds that the first step may take.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(self, folder: Path, rank: int, *, least: float = LEAST_SECONDS, first: float = FIRST_SECONDS):
        self._path = folder / f"rank-{rank}.txt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"'{self._path}' cannot be written ({reason(error)}).", "Mend the permissions of the run folder."
            ) from None
        self._least, self._first = least, first
        self._every = least / LOOKS
        self._step: int | None = None
        self._last = time.monotonic()
        self._learns = False
        self._longest = self._second = 0.0
        self._pauses = 0
        self._leaving = threading.Event()
        self._arming = threading.Lock()
        faulthandler.register(signal.SIGALRM, file=self._file, all_threads=False)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no longer."""
        with self._arming:  # an alarm set after this would end the process
            self._leaving.set()
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._thread.join(timeout=1.0)
        faulthandler.unregister(signal.SIGALRM)
        self._file.close()
        with contextlib.suppress(OSError):  # the folder stays while other ranks have files in it
            if self._path.stat().st_size == 0:
                self._path.unlink()
            self._path.parent.rmdir()

    def beat(self, step: int) -> None:
        """Note that the run is alive, after ``step`` steps."""
        now = time.monotonic()
        if self._step is not None and step != self._step:
            if self._learns:
                # The longest but one: a single stall does not make it deaf, but steps that become longer are learnt.
                turn = now - self._last
                if turn > self._longest:
                    self._second, self._longest = self._longest, turn
                elif turn > self._second:
                    self._second = turn
            self._learns = True  # from the second step on: the first one compiles
        self._step, self._last = step, now

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """For what is no step, or takes longer than one: up to PAUSE_SECONDS it is no hang."""
        self._pauses += 1
        self._last = time.monotonic()
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._pauses -= 1

    def limit(self) -> float:
        """Seconds after which quiet is a hang."""
        if self._pauses:
            return max(PAUSE_SECONDS, TIMES * self._second)
        return max(self._least if self._learns else self._first, TIMES * self._second)

    def _watch(self) -> None:
        looked, quiet = time.monotonic(), 0.0
        hangs_since: float | None = None
        while True:
            alarm = LATER * self.limit()
            with self._arming:
                if self._leaving.is_set():
                    return
                signal.setitimer(signal.ITIMER_REAL, alarm)
            self._leaving.wait(self._every)
            now, last = time.monotonic(), self._last
            if now - looked > alarm:
                self._say(
                    f"This process stood still for {duration(now - looked)}, stopped from outside or held by one "
                    f"call, and goes on; a stack of it is in {self._path.parent}."
                )
            # Of a time in which this thread could not run either, little is counted.
            quiet = min(quiet + min(now - looked, 2 * self._every), now - last)
            looked = now
            if hangs_since is None and quiet > self.limit():
                hangs_since = last
                self._write(now - last)
            elif hangs_since is not None and last != hangs_since:
                self._say(f"The run goes on, after {duration(last - hangs_since)}.")
                hangs_since = None

    def _write(self, seconds: float) -> None:
        """Write all stacks and say so."""
        after = f"step {self._step:,}" if self._step is not None else "before the first"
        with contextlib.suppress(OSError):  # a full disk must not end the watch
            moment = time.strftime("%Y-%m-%d %H:%M:%S")
            self._file.write(f"{moment}: no step has ended for {duration(seconds)} ({after}).\n")
            self._file.flush()
            faulthandler.dump_traceback(self._file, all_threads=True)
            self._file.write("\n")
            self._file.flush()
        self._say(
            f"No step has ended for {duration(seconds)} ({after}); where each process stands is in "
            f"{self._path.parent}. The run goes on waiting; stop it with Ctrl-C, twice if need be, and give the same "
            "command to resume."
        )

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            say(line)
