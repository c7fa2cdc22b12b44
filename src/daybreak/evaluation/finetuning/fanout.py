"""Cells side by side: processes of this machine, one a GPU, or the workers of a cluster that joblib knows.

On a CPU every process has its share of the cores: small models are faster as several processes of one thread than as
one of several. Threads change the last bits of a sum, so their number follows from the cells that were asked for, never
from those that are left or from a clock: an evaluation that was killed ends with the table that it would have had.

A process takes seconds to begin, most of them for imports, so little work stays in this one.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from daybreak.core.errors import Interrupted, UserError
from daybreak.core.process import usable_cores
from daybreak.core.terminal import Work
from daybreak.evaluation.finetuning.cells import Job, fill
from daybreak.evaluation.finetuning.pools import POOLS
from daybreak.schemas.tasks import Cell

BACKENDS = tuple(POOLS)
BYTES_PER_PARAMETER = 24
"""Of a fine-tuning in float32: weight, gradient, two moments, and as much again for what a batch leaves behind."""
PROCESS_BYTES = 1.5e9
"""Of a worker before it has a model."""
LITTLE = 1e11
"""Training rows, counted once an epoch, times parameters: a minute of two cores. Up to here other processes do not pay.
"""


def worker_count(cells: int, rows: int, parameters: int, asked: int | None, backend: str) -> int:
    """How many cells run at once: one a GPU; without one, one a core, as far as the memory goes; one if all is LITTLE.

    Of a cluster this machine says nothing: there it is the number that was asked for.

    Args:
        cells: all that were asked for, finished ones too.
        rows: that they train on, counted once an epoch.
        parameters: of the model.
        asked: the user's own number, which is obeyed.
        backend: one of BACKENDS.

    Raises:
        UserError: fewer were asked for than can be, or none for a cluster.
    """
    if asked is not None and asked < 1:
        raise UserError(f"{asked} workers are too few.", "Use at least 1.")
    if backend != "processes":
        if asked is None:
            raise UserError(
                f"--backend {backend} spreads over a cluster whose size is not known here.",
                "Say how many fine-tunings run at a time with --workers.",
            )
        if backend == "ray" and asked == 1:  # joblib would fill the cells in this process
            raise UserError("--backend ray needs 2 workers or more.", "Use more --workers, or leave --backend out.")
        return asked
    if asked is not None:
        return min(asked, cells)
    if rows * parameters <= LITTLE:
        return 1
    if torch.cuda.is_available():
        return min(torch.cuda.device_count(), cells)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.6
    fitting = int(memory // (PROCESS_BYTES + BYTES_PER_PARAMETER * parameters))
    return max(1, min(usable_cores(), cells, fitting))


def thread_count(workers: int, backend: str) -> int:
    """Threads of each worker on a CPU; one on a cluster, whose workers are counted by cores."""
    return max(1, usable_cores() // workers) if backend == "processes" else 1


@contextmanager
def obeying_signals() -> Iterator[None]:
    """SIGINT and SIGTERM unwind what is inside, so that no worker outlives it; finished cells are on disk by then.

    Raises:
        Interrupted: one of them came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread listen
        return
    received = signal.SIGINT

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = signal.Signals(number)
        raise KeyboardInterrupt  # no Exception: libraries swallow those

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(received) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_jobs(jobs: Sequence[Job], workers: int, backend: str, work: Work) -> Iterator[Cell]:
    """Fill the cells, and yield them in the order of ``jobs``; each is on disk as soon as it is done.

    Args:
        workers: processes; with one the cells are filled in this process, unless a cluster was asked for.
        backend: one of BACKENDS.

    Raises:
        UserError: a cell cannot be filled, the backend is not installed or not there, or memory or disk ran out.
    """
    done = {job.file: cell for job in jobs if (cell := job.finished()) is not None}
    left = [job for job in jobs if job.file not in done]
    apart = bool(left) if backend != "processes" else min(workers, len(left)) > 1
    filled = _side_by_side(left, workers, backend, work) if apart else _one_by_one(left, work)
    try:
        for job in jobs:
            yield done[job.file] if job.file in done else next(filled)
    finally:
        filled.close()


def _one_by_one(jobs: Sequence[Job], work: Work) -> Generator[Cell]:
    total = sum(job.setting.epochs for job in jobs)
    before = 0
    for number, job in enumerate(jobs, start=1):

        def show(share: float, loss: float, job: Job = job, number: int = number, before: int = before) -> None:
            place = f"{number}/{len(jobs)}  {job.task.name}, {job.setting}, seed {job.seed}"
            work.show((before + share * job.setting.epochs) / total, f"{place}  loss {loss:.3f}")

        with telling(job):
            cell = fill(job, show)
        yield cell
        before += job.setting.epochs


def _side_by_side(jobs: Sequence[Job], workers: int, backend: str, work: Work) -> Generator[Cell]:
    import joblib

    work.show(0.0, f"{len(jobs)} fine-tunings, {workers} at a time")
    with POOLS[backend](workers) as settings, joblib.parallel_config(**settings):
        parallel = joblib.Parallel(
            return_as="list" if backend == "ray" else "generator",
            batch_size=1,
            pre_dispatch=workers if backend == "dask" else "2*n_jobs",  # dask itself has no limit but this
        )
        outcomes = _outcomes(parallel, jobs)
        try:
            for number, outcome in enumerate(outcomes, start=1):
                if not isinstance(outcome, Cell):
                    raise UserError(*outcome)
                work.show(number / len(jobs), f"{number}/{len(jobs)} fine-tunings, {workers} at a time")
                yield outcome
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a generator that is left before its end, which is meant here
                outcomes.close()


def _outcomes(parallel: Any, jobs: Sequence[Job]) -> Generator[Cell | tuple[str, str]]:
    """What joblib returns, a list or a generator, as a generator that can be closed."""
    import joblib

    yield from parallel(joblib.delayed(_outcome)(job) for job in jobs)


def _outcome(job: Job) -> Cell | tuple[str, str]:
    """The cell, or what the user must be told: a UserError is not fit for a journey between processes."""
    try:
        with telling(job):
            return fill(job)
    except UserError as error:
        return error.sentence, error.remedy


@contextmanager
def telling(job: Job) -> Iterator[None]:
    """What this machine lacks for a job, in one sentence.

    Raises:
        UserError: the memory of the GPU or the disk is full.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError(
            f"The GPU has no memory left for a batch of {job.setting.batch}.",
            "Use another GPU or a smaller model; a batch is part of the protocol.",
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"Cannot write '{job.file}': {os.strerror(error.errno).lower()}.",
            "Make room, then the same command goes on.",
        ) from None
