"""Watchdog: detects that a run hangs and writes the stack of each process. It never ends the run."""

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

MIN_LIMIT = 60.0
LIMIT_FACTOR = 30
"""A step may take this many times the second longest step, or MIN_LIMIT seconds."""
FIRST_STEP_LIMIT = 600.0
"""Limit of the first step, which compiles."""
PAUSE_LIMIT = 3600.0
"""Limit of work between two steps: a validation, a checkpoint, a compilation."""
CHECKS_PER_LIMIT = 12
"""Checks in MIN_LIMIT seconds."""
ALARM_FACTOR = 2
"""Multiple of the limit after which the stack is written even if no Python thread can run."""


class Watchdog:
    """A thread on every rank that detects when no step has ended for too long, from now until ``close``.

    It writes the stacks of all threads to ``folder/rank-R.txt`` and prints a message, once per hang, and another
    message when steps end again. There are two mechanisms:

    - The thread itself. It holds the interpreter's lock while it writes, so no other thread changes its stack. It does
      not count time in which the whole process was stopped.
    - An alarm signal, which the thread postpones at each check. If a call holds the lock forever, no thread can run,
      and the signal makes the main thread write its own stack from within the call.

    The timer thread of ``faulthandler.dump_traceback_later`` is not suitable: it reads frames while they change. If the
    process was only stopped and continues, as after SIGCONT, that can end in a segmentation fault. The watchdog uses
    SIGALRM and ITIMER_REAL, so no other code may.

    Args:
        folder: folder of the stacks; created here. Files of ranks without a hang are empty, and ``close`` removes them.
        rank: rank of this process.
        least: seconds that any step but the first may take.
    """

    def __init__(self, folder: Path, rank: int, *, least: float = MIN_LIMIT):
        self._path = folder / f"rank-{rank}.txt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"'{self._path}' cannot be written ({reason(error)}).", "Correct the permissions of the run folder."
            ) from None
        self._min_limit = least
        self._interval = least / CHECKS_PER_LIMIT
        self._step: int | None = None
        self._last = time.monotonic()
        self._steps_measured = False
        self._longest = self._second_longest = 0.0
        self._pauses = 0
        self._stopping = threading.Event()
        self._alarm_lock = threading.Lock()
        faulthandler.register(signal.SIGALRM, file=self._file, all_threads=False)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        with self._alarm_lock:  # an alarm set after this point would end the process
            self._stopping.set()
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._thread.join(timeout=1.0)
        faulthandler.unregister(signal.SIGALRM)
        self._file.close()
        with contextlib.suppress(OSError):  # the folder stays while it holds files of other ranks
            if self._path.stat().st_size == 0:
                self._path.unlink()
            self._path.parent.rmdir()

    def beat(self, step: int) -> None:
        """Record that the run is alive, after ``step`` steps."""
        now = time.monotonic()
        if self._step is not None and step != self._step:
            if self._steps_measured:
                # The second longest step: a single stall does not raise the limit, but steps that get longer do.
                seconds = now - self._last
                if seconds > self._longest:
                    self._second_longest, self._longest = self._longest, seconds
                elif seconds > self._second_longest:
                    self._second_longest = seconds
            self._steps_measured = True  # from the second step on: the first one compiles
        self._step, self._last = step, now

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Allow work outside of a step, or longer than one, for up to PAUSE_LIMIT seconds."""
        self._pauses += 1
        self._last = time.monotonic()
        try:
            yield
        finally:
            self._last = time.monotonic()
            self._pauses -= 1

    def limit(self) -> float:
        """Seconds without a step after which the run counts as hanging."""
        if self._pauses:
            return max(PAUSE_LIMIT, LIMIT_FACTOR * self._second_longest)
        return max(self._min_limit if self._steps_measured else FIRST_STEP_LIMIT, LIMIT_FACTOR * self._second_longest)

    def _watch(self) -> None:
        last_check, silent = time.monotonic(), 0.0
        hang_started: float | None = None
        while True:
            alarm = ALARM_FACTOR * self.limit()
            with self._alarm_lock:
                if self._stopping.is_set():
                    return
                signal.setitimer(signal.ITIMER_REAL, alarm)
            self._stopping.wait(self._interval)
            now, last = time.monotonic(), self._last
            if now - last_check > alarm:
                self._say(
                    f"This process did not run for {duration(now - last_check)}: it was suspended, or one call blocked "
                    f"it. It continues; its stack trace is in {self._path.parent}."
                )
            # Time in which this thread could not run counts for at most two intervals.
            silent = min(silent + min(now - last_check, 2 * self._interval), now - last)
            last_check = now
            if hang_started is None and silent > self.limit():
                hang_started = last
                self._write(now - last)
            elif hang_started is not None and last != hang_started:
                self._say(f"The run continues after {duration(last - hang_started)}.")
                hang_started = None

    def _write(self, seconds: float) -> None:
        """Write all stacks and print a message."""
        after = f"last step: {self._step:,}" if self._step is not None else "before the first"
        with contextlib.suppress(OSError):  # a full disk must not end the watchdog
            moment = time.strftime("%Y-%m-%d %H:%M:%S")
            self._file.write(f"{moment}: no step has ended for {duration(seconds)} ({after}).\n")
            self._file.flush()
            faulthandler.dump_traceback(self._file, all_threads=True)
            self._file.write("\n")
            self._file.flush()
        self._say(
            f"No step has ended for {duration(seconds)} ({after}); stack traces of all processes are in "
            f"{self._path.parent}. The run keeps waiting; stop it with Ctrl-C, twice if necessary, and repeat the same "
            "command to resume."
        )

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            say(line)
