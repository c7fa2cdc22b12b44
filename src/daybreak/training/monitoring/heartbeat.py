"""Heartbeat: the seconds charged so far, in a small file that is rewritten many times a second and survives a kill.

The trace has one line per step, so a kill during a long step would refund the time since the last line: 25 kills in
five minutes refunded four seconds. With the heartbeat, kills cannot extend a budget. A beat holds the time of the next
one. The exact time of a kill within the interval is unknown, so the whole interval is charged.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

INTERVAL = 0.05
"""Seconds between two beats; a write of 16 bytes into the page cache, which survives a kill of the process."""
_RECORD = struct.Struct("<dd")


class Heartbeat:
    """A thread that writes ``elapsed()`` to ``path`` until ``close``; disk errors are ignored.

    Args:
        elapsed: seconds charged, callable from any thread.
    """

    def __init__(self, path: Path, elapsed: Callable[[], float]):
        self._elapsed = elapsed
        self._stopping = threading.Event()
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self._write(self._elapsed() + INTERVAL)

    def _write(self, seconds: float) -> None:
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            os.pwrite(self._file, _RECORD.pack(seconds, seconds), 0)

    def close(self) -> None:
        """Write the exact time, and end."""
        self._stopping.set()
        self._thread.join()
        self._write(self._elapsed())
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_heartbeat(path: Path) -> float:
    """Return the seconds in the file; 0 if there is no file or its content is incomplete."""
    try:
        first, second = _RECORD.unpack(path.read_bytes()[: _RECORD.size])
    except (OSError, struct.error):
        return 0.0
    return float(first) if first == second and math.isfinite(first) and first > 0 else 0.0
