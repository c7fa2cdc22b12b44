"""Signal handling: a signal sets a flag that the loop reads between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C, the signals with which schedulers and clouds announce that they take a machine away, a closed terminal, and
the signal that Slurm can send before the end (--signal=USR1@120)."""


class Signals:
    """Context in which the signals in HANDLED set a flag; a second Ctrl-C has its default effect.

    SIGHUP stays ignored if it is ignored already: nohup sets this, and the run then survives its terminal. An ignored
    SIGINT is handled, because a shell ignores it for background processes without any request by the user.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread can set signal handlers
        for number in HANDLED:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def stop_requested(self) -> bool:
        """Whether this process received a signal to stop."""
        return self.received is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if number == signal.SIGINT:  # the other signals arrive twice: for the process group, and again from torchrun
            signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
