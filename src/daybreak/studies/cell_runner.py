"""Run the cells of a study: each is one pretraining in its own process, with a fixed number of threads.

    OUT/cells/NAME-seed-0/            the run folder
    OUT/cells/NAME-seed-0.log         the output of the process
    OUT/cells/NAME-seed-0.load.jsonl  the load of the machine, a line every few seconds
    OUT/.lock                         held by the study and by its running cell

The process runs ``daybreak pretrain``, so its budget includes the start of the interpreter and the imports. If the
study is killed, its cell saves a checkpoint and exits; the same command resumes it.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
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
from daybreak.core.files import is_empty, make_folder
from daybreak.core.locks import PATIENCE, locked
from daybreak.core.other_processes import OtherProcesses, note
from daybreak.core.run_folder import RunFolder
from daybreak.schemas.studies import DATA_STUDY_FILE, STUDY_FILE
from daybreak.training.signals import Signals

POLL_SECONDS = 0.25
SAMPLE_SECONDS = 5.0
"""Seconds between two samples of the load."""
LAST_LINES = 15
LEAST_ROOM = 1 << 20
"""Bytes of free space below which a disk counts as full."""
PR_SET_PDEATHSIG = 1
"""Constant of prctl(2)."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One variant with one seed."""

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
class StudyFolder:
    """The folder of a study, and the budget and threads of its cells."""

    out: Path
    budget: str
    threads: int

    def folder(self, cell: Cell) -> Path:
        return self.out / "cells" / cell.name

    def beside(self, cell: Cell, suffix: str) -> Path:
        return self.out / "cells" / f"{cell.name}{suffix}"


def slug(name: str) -> str:
    """Return a variant's name as a folder name."""
    return re.sub(r"[^A-Za-z0-9_.+]+", "-", name).strip("-.")


# ---------------------------------------------------------------- a study holds its folder


@contextmanager
def lock_study(out: Path, file: str = STUDY_FILE) -> Iterator[TextIO]:
    """Lock the folder ``out`` and yield the lock file, which running cells inherit.

    Args:
        file: name of the study's file, which tells its kind.

    Raises:
        UserError: ``out`` holds a run, a study of the other kind or other files, or another study is using it.
    """
    other = DATA_STUDY_FILE if file == STUDY_FILE else STUDY_FILE
    for path, what in ((RunFolder(out).recipe, "a run"), (out / other, "a study of another kind")):
        if path.exists():
            raise UserError(f"'{out}' holds {what}.", "Choose another --out.")
    make_folder(out)
    begun = any((out / name).exists() for name in (file, "cells", ".lock"))
    if not begun and not is_empty(out):
        raise UserError(f"'{out}' is not empty and holds no study.", "Choose another --out.")
    with (out / ".lock").open("a") as lock:
        if not locked(lock.fileno(), PATIENCE, "Waiting until a cell of a killed study has saved its checkpoint."):
            raise UserError(
                f"Another study, or a cell of a killed study, is using '{out}'.",
                "Wait for it, or choose another --out.",
            )
        yield lock


# ---------------------------------------------------------------- one cell


def train_cell(cell: Cell, study: StudyFolder, lock: TextIO) -> None:
    """Train one cell, or resume it.

    Raises:
        UserError: the command was refused, or another process stopped it.
        Interrupted: a signal arrived; the cell saved a checkpoint.
    """
    if RunFolder(study.folder(cell)).summary.exists():
        return
    make_folder(study.folder(cell).parent)
    loads, log = study.beside(cell, ".load.jsonl"), study.beside(cell, ".log")
    if not study.folder(cell).exists():
        loads.unlink(missing_ok=True)  # of a cell that the user deleted
    with Signals() as signals:
        note(loads, "start")
        started, others = time.monotonic(), OtherProcesses()
        code = run_child(command(cell, study), log, study.threads, lock, signals, look=lambda: note(loads, "look"))
        note(loads, "end", seconds=round(time.monotonic() - started, 3), others=others.cores())
    check_ended(code, signals, cell, log)


def run_child(
    words: Sequence[str], log: Path, threads: int, lock: TextIO, signals: Signals, look: Callable[[], None]
) -> int:
    """Run a command of one cell and return its exit status; signals are forwarded.

    Args:
        log: the file to which the output of the command is appended.
        threads: value of ``OMP_NUM_THREADS`` and ``MKL_NUM_THREADS``.
        lock: the lock of the study, which the command inherits.
        look: called every SAMPLE_SECONDS.
    """
    count = str(threads)
    with log.open("ab") as printed:
        process = subprocess.Popen(
            words,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # only this process gets the terminal's signals, and forwards them once
            pass_fds=[lock.fileno()],
            preexec_fn=_exit_with_parent() if threading.current_thread() is threading.main_thread() else None,
        )
        try:
            _watch(process, look, signals)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    return process.returncode


def command(cell: Cell, study: StudyFolder) -> list[str]:
    """Return the command line of a cell; the variants of a study share their data and with them the tokenizer."""
    fixed = {"--data": cell.data, "--out": study.folder(cell), "--budget": study.budget, "--seed": cell.seed}
    flags = [str(word) for pair in fixed.items() for word in pair]
    return [sys.executable, "-m", "daybreak", "pretrain", *cell.words, *flags, "--accept-tokenizer"]


def _exit_with_parent() -> Callable[[], None] | None:
    """Return a function for the child that asks the kernel to end it when this process dies; None if not on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)

    return ask_kernel


def _watch(process: subprocess.Popen[bytes], look: Callable[[], None], signals: Signals) -> None:
    """Wait until the process ends, and forward a signal once."""
    forwarded, next_look = False, time.monotonic() + SAMPLE_SECONDS
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        if signals.received and not forwarded:
            forwarded = True
            process.send_signal(signal.SIGTERM)
        if time.monotonic() >= next_look:
            next_look += SAMPLE_SECONDS
            look()


def check_ended(code: int, signals: Signals, cell: Cell, log: Path) -> None:
    """Raise the error of a cell's command that failed.

    Raises:
        UserError: the command was refused, or another process stopped it.
        Interrupted: a signal arrived.
    """
    if signals.received:
        raise Interrupted(signals.received)
    if code == 0:
        return
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    messages = [line.removeprefix("daybreak: ") for line in lines[-LAST_LINES:] if line.startswith("daybreak: ")]
    if code == 2 and messages:
        raise UserError(
            f"The cell '{cell.name}' failed: {messages[-1]}",
            "Then run the same command again, which keeps finished cells, or leave the variant out.",
        )
    if code < 0 or code > 128:
        raise UserError(f"The cell '{cell.name}' was stopped from outside.", "Repeat the command, which resumes it.")
    if shutil.disk_usage(log.parent).free < LEAST_ROOM:  # then the log may lack the message
        raise UserError(
            f"The cell '{cell.name}' ended with {code}, and the disk of '{log.parent}' is full.",
            "Free disk space and run the same command again.",
        )
    raise RuntimeError("\n".join([f"the cell {cell.name} ended with {code}:", *lines[-LAST_LINES:]]))
