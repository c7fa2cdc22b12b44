"""Leaving when asked to: a signal becomes a flag that the loop looks at between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType

OBEYED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C; what schedulers and clouds send before they take a machine away; a closed terminal; and what Slurm is asked
to send some time before the end (--signal=USR1@120)."""


class Signals:
    """Turns the signals of OBEYED into a flag while it is entered; a second Ctrl-C falls through to the default.

    SIGHUP stays ignored where it is: nohup does that, and the run then outlives its terminal. (A shell that starts
    something in the background ignores SIGINT for it; that is no wish of the user's.)
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._old: dict[int, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets only the main thread listen
        for number in OBEYED:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._old[number] = signal.signal(number, self._note)
        return self

    def asked(self) -> bool:
        """Whether this process was asked to leave."""
        return self.received is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        if number == signal.SIGINT:  # others come twice: to the whole group, and once more from torchrun
            signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
