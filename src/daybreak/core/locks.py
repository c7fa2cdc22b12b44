"""One process at a time: locks that the kernel lets go of when their process ends, also by kill -9."""

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
"""Seconds that a process which was told to end has to save itself."""
POLL_SECONDS = 0.25


def locked(file: int, patience: float = 0.0, waiting: str = "") -> bool:
    """Lock an open file or folder for as long as it is open; return whether it is ours after ``patience`` seconds.

    True also where the file system has no locks.

    Args:
        waiting: said where another process has it.
    """
    deadline, told = time.monotonic() + patience, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError:  # a file system without locks
            return True
        if not told:
            say(waiting)
            told = True
        time.sleep(POLL_SECONDS)


@contextmanager
def alone_in(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold ``folder``, made where it is missing, alone. The lock is on the folder itself: no file of it tells of that.

    Raises:
        UserError: another process holds it and does not end within ``patience`` seconds, or it cannot be written.
    """
    deadline, busy = time.monotonic() + patience, f"Another process is at work in '{folder}'"
    while True:
        opened = os.open(make_folder(folder), os.O_RDONLY)
        try:
            if not locked(opened, deadline - time.monotonic(), f"{busy}: waiting for its end."):
                raise UserError(f"{busy}.", "Wait for it, or end it and give the same command again.")
            if folder.exists() and os.path.samestat(os.fstat(opened), folder.stat()):
                yield
                return
        finally:
            os.close(opened)  # also of a folder that who held it has deleted: then there is a new one


def who_holds(folder: Path) -> bool | None:
    """Whether a process is ``alone_in`` the folder; None where that cannot be told, as on a file system without locks.

    A network file system may keep locks to each host: False then says nothing of processes on other hosts.
    """
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(opened)
    return False


def is_held(folder: Path) -> bool:
    """Whether a process is known to be ``alone_in`` the folder; False also where nobody can tell."""
    return who_holds(folder) is True
