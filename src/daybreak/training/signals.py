"""Leaving when asked to: a signal becomes a flag that the loop looks at between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Signals:
    """Turns SIGINT and SIGTERM into a flag while it is entered; a second signal falls through to the default."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._old: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets only the main thread listen
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
