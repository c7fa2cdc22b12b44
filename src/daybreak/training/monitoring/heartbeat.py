"""The seconds charged so far, in a small file that is rewritten many times a second and outlives a kill.

The trace has a line a step. Where steps are long, or a process is killed again and again, what passed since its last
line would be free: 25 kills in five minutes gave back four seconds. (Design idea 3: kills cannot phase a budget.)
A beat says the time of the next one: when it was in this interval that a process was killed nobody knows, so all of it
is charged.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

EVERY = 0.05
"""Seconds between two beats; a write of 16 bytes into the page cache, which a kill of the process leaves as it is."""
_TWICE = struct.Struct("<dd")


class Heartbeat:
    """A thread that writes ``elapsed()`` to ``path`` until ``close``; what the disk refuses is let go.

    Args:
        elapsed: seconds charged, from any thread.
    """

    def __init__(self, path: Path, elapsed: Callable[[], float]):
        self._elapsed = elapsed
        self._leaving = threading.Event()
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._leaving.wait(EVERY):
            self._write(self._elapsed() + EVERY)

    def _write(self, seconds: float) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            os.pwrite(self._file, _TWICE.pack(seconds, seconds), 0)

    def close(self) -> None:
        """Write the time as it is, and end."""
        self._leaving.set()
        self._thread.join()
        self._write(self._elapsed())
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_heartbeat(path: Path) -> float:
    """Return the seconds in the file; 0 where there is none, or what is there is torn."""
    try:
        one, other = _TWICE.unpack(path.read_bytes()[: _TWICE.size])
    except (OSError, struct.error):
        return 0.0
    return float(one) if one == other and math.isfinite(one) and one > 0 else 0.0
