"""Locks between processes; the kernel releases them when their process ends, also after kill -9."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder
from daybreak.core.terminal import say

PATIENCE = 60.0
"""Seconds that a process has to save its state after a signal to stop."""
POLL_SECONDS = 0.25


def locked(file: int, patience: float = 0.0, waiting: str = "") -> bool:
    """Lock an open file or folder while it is open; return whether this process has the lock after ``patience``
    seconds.

    Also True on a file system without locks.

    Args:
        waiting: message to print while another process has the lock.
    """
    deadline, announced = time.monotonic() + patience, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError:  # a file system without locks
            return True
        if not announced:
            say(waiting)
            announced = True
        time.sleep(POLL_SECONDS)


@contextmanager
def alone_in(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold ``folder`` exclusively, created if missing. The lock is on the folder itself and leaves no file."""
    deadline, busy = time.monotonic() + patience, f"Another process is at work in '{folder}'"
    while True:
        descriptor = os.open(make_folder(folder), os.O_RDONLY)
        try:
            if not locked(descriptor, deadline - time.monotonic(), f"{busy}: waiting for its end."):
                raise UserError(f"{busy}.", "Wait for it, or end it and give the same command again.")
            if folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat()):
                yield
                return
        finally:
            os.close(descriptor)  # also after another process deleted the folder: then the next attempt opens a new one


def who_holds(folder: Path) -> bool | None:
    """Whether a process is ``alone_in`` the folder; None if unknown, as on a file system without locks.

    A network file system may keep locks per host: False then does not cover processes on other hosts.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def is_held(folder: Path) -> bool:
    """Whether a process is known to be ``alone_in`` the folder; False also if unknown."""
    return who_holds(folder) is True
