"""Cells that take turns: each is one pretraining in a process of its own, on pinned threads, beside a watched load.

    OUT/cells/NAME-seed-0/            the run folder
    OUT/cells/NAME-seed-0.log         what it printed
    OUT/cells/NAME-seed-0.load.jsonl  the load of the machine, a line every few seconds: it survives a kill
    OUT/.lock                         held by the study and by its running cell

The process is the user's own command, so its budget charges the interpreter's start and the imports as for a user. A
study that is killed takes its cell with it; the cell saves a checkpoint, and the same call goes on from there.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from daybreak.core.errors import Interrupted, UserError
from daybreak.core.files import make_folder
from daybreak.core.locks import PATIENCE, locked
from daybreak.core.other_processes import OtherProcesses, note
from daybreak.core.run_folder import RunFolder
from daybreak.training.signals import Signals

POLL_SECONDS = 0.25
SAMPLE_SECONDS = 5.0
"""Between two looks at the load."""
LAST_LINES = 15
PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A variant with a seed."""

    variant: str
    seed: int
    words: tuple[str, ...]
    """The recipe and its flags, as ``daybreak pretrain`` takes them."""
    data: Path
    attempt: int = 0

    @property
    def name(self) -> str:
        again = "-again" if self.attempt else ""
        return f"{slug(self.variant)}-seed-{self.seed}{again}"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the cells of one study run, and what they share."""

    out: Path
    budget: str
    threads: int

    def folder(self, cell: Cell) -> Path:
        return self.out / "cells" / cell.name

    def beside(self, cell: Cell, suffix: str) -> Path:
        return self.out / "cells" / f"{cell.name}{suffix}"


def slug(name: str) -> str:
    """A variant's name as a folder can have it."""
    return re.sub(r"[^A-Za-z0-9_.+]+", "-", name).strip("-.")


# ---------------------------------------------------------------- a study holds its folder


@contextmanager
def held(out: Path) -> Iterator[TextIO]:
    """Hold the folder ``out`` alone; yield the lock, which running cells inherit: they too hold it.

    Raises:
        UserError: another study holds it, or a cell of one that was killed does not end.
    """
    make_folder(out)
    with (out / ".lock").open("a") as lock:
        if not locked(lock.fileno(), PATIENCE, "Waiting for a cell of a study that was killed to save itself."):
            raise UserError(
                f"Another study, or a cell of one that was killed, is at work in '{out}'.",
                "Wait for it, or choose another --out.",
            )
        yield lock


# ---------------------------------------------------------------- one cell


def train_cell(cell: Cell, place: Place, lock: TextIO) -> None:
    """Train one cell, or what is missing of it.

    Raises:
        UserError: it refused its command, or was stopped by somebody else.
        Interrupted: a signal came; the cell saved a checkpoint.
    """
    if RunFolder(place.folder(cell)).summary.exists():
        return
    make_folder(place.folder(cell).parent)
    loads, log = place.beside(cell, ".load.jsonl"), place.beside(cell, ".log")
    with Signals() as signals:
        note(loads, "start")
        begun, bystanders = time.monotonic(), OtherProcesses()
        code = run_child(command(cell, place), log, place.threads, lock, signals, look=lambda: note(loads, "look"))
        note(loads, "end", seconds=round(time.monotonic() - begun, 3), others=bystanders.cores())
    check_ended(code, signals, cell, log)


def run_child(
    words: Sequence[str], log: Path, threads: int, lock: TextIO, signals: Signals, look: Callable[[], None]
) -> int:
    """Run a command of one cell to its end and return its exit status; a signal is passed on.

    Args:
        log: the file to which the output of the command is appended.
        threads: value of ``OMP_NUM_THREADS`` and ``MKL_NUM_THREADS``.
        lock: the lock of the study, which the command inherits.
        look: called every SAMPLE_SECONDS.
    """
    with log.open("ab") as printed:
        process = subprocess.Popen(
            words,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=environment(threads),
            start_new_session=True,  # what the terminal sends comes to us alone, and we pass it on once
            pass_fds=[lock.fileno()],
            preexec_fn=_ends_with_us() if threading.current_thread() is threading.main_thread() else None,
        )
        try:
            _watch(process, look, signals)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    return process.returncode


def command(cell: Cell, place: Place) -> list[str]:
    """What the user would type."""
    fixed = {"--data": cell.data, "--out": place.folder(cell), "--budget": place.budget, "--seed": cell.seed}
    flags = [str(word) for pair in fixed.items() for word in pair]
    return [sys.executable, "-m", "daybreak", "pretrain", *cell.words, *flags]


def environment(threads: int) -> dict[str, str]:
    """The same number of threads for all, whatever the shell says."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}


def _ends_with_us() -> Callable[[], None] | None:
    """What the child calls before it begins, so that the kernel ends it when this process is killed; Linux only."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def end_with_us() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)

    return end_with_us


def _watch(process: subprocess.Popen[bytes], look: Callable[[], None], signals: Signals) -> None:
    """Until the process ends; a signal is passed on, after which it saves itself."""
    asked, next_look = False, time.monotonic() + SAMPLE_SECONDS
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        if signals.received and not asked:
            asked = True
            process.send_signal(signal.SIGTERM)
        if time.monotonic() >= next_look:
            next_look += SAMPLE_SECONDS
            look()


def check_ended(code: int, signals: Signals, cell: Cell, log: Path) -> None:
    """Turn the end of a cell's command into an error where it did not succeed.

    Raises:
        UserError: it refused its command, or was stopped by somebody else.
        Interrupted: a signal came.
    """
    if signals.received:
        raise Interrupted(signals.received)
    if code == 0:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line.removeprefix("daybreak: ") for line in lines[-LAST_LINES:] if line.startswith("daybreak: ")]
    if code == 2 and said:
        raise UserError(
            f"The cell '{cell.name}' ended: {said[-1]}",
            "Mend that and give the same command again, for what is done is kept; or leave it out, with another --out.",
        )
    if code < 0 or code > 128:
        raise UserError(f"The cell '{cell.name}' was stopped from outside.", "The same command goes on from there.")
    raise RuntimeError("\n".join([f"the cell {cell.name} ended with {code}:", *lines[-LAST_LINES:]]))
