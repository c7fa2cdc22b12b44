"""Cells side by side: processes of this machine, one a GPU, or the workers of a cluster that joblib knows.

On a CPU every process has its share of the cores: small models are faster as several processes of one thread than as
one of several. Threads change the last bits of a sum, so their number follows from the cells that were asked for, never
from those that are left or from a clock: an evaluation that was killed ends with the table that it would have had.

A process takes seconds to begin, most of them for imports, so little work stays in this one.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from daybreak.base.errors import Interrupted, UserError
from daybreak.base.task_records import Cell
from daybreak.base.terminal import Work, duration
from daybreak.evaluation.cells import Job, fill

BACKENDS = ("processes", "ray", "dask")
BYTES_PER_PARAMETER = 24
"""Of a fine-tuning in float32: weight, gradient, two moments, and as much again for what a batch leaves behind."""
PROCESS_BYTES = 1.5e9
"""Of a worker before it has a model."""
LITTLE = 1e11
"""Training rows, counted once an epoch, times parameters: a minute of two cores. Up to here other processes do not pay.
"""
START_SECONDS = 10
"""Until a worker has imported what it needs."""


def worker_count(cells: int, rows: int, parameters: int, asked: int | None) -> int:
    """How many cells run at once: one a GPU; without one, one a core, as far as the memory goes; one if all is LITTLE.

    Args:
        cells: all that were asked for, finished ones too.
        rows: that they train on, counted once an epoch.
        parameters: of the model.
        asked: the user's own number, which is obeyed.

    Raises:
        UserError: fewer than 1 were asked for.
    """
    if asked is not None:
        if asked < 1:
            raise UserError(f"{asked} workers are too few.", "Use at least 1.")
        return min(asked, cells)
    if rows * parameters <= LITTLE:
        return 1
    if torch.cuda.is_available():
        return min(torch.cuda.device_count(), cells)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.6
    fitting = int(memory // (PROCESS_BYTES + BYTES_PER_PARAMETER * parameters))
    return max(1, min(_cores(), cells, fitting))


def thread_count(workers: int) -> int:
    """Threads of each worker on a CPU."""
    return max(1, _cores() // workers)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        UserError: a cell cannot be filled, the backend is not installed, or memory ran out.
    """
    left = [job for job in jobs if job.finished() is None]
    waiting = {job.file for job in left}
    apart = bool(left) if backend != "processes" else min(workers, len(left)) > 1
    filled = _side_by_side(left, workers, backend, work) if apart else _one_by_one(left, work)
    try:
        for job in jobs:
            yield next(filled) if job.file in waiting else fill(job)
    finally:
        filled.close()


def _one_by_one(jobs: Sequence[Job], work: Work) -> Generator[Cell]:
    total = sum(job.setting.epochs for job in jobs)
    before = 0
    for number, job in enumerate(jobs, start=1):

        def show(share: float, loss: float, job: Job = job, number: int = number, before: int = before) -> None:
            place = f"{number}/{len(jobs)}  {job.task.name}, {job.setting}, seed {job.seed}"
            work.show((before + share * job.setting.epochs) / total, f"{place}  loss {loss:.3f}")

        yield fill(job, show)
        before += job.setting.epochs


def _side_by_side(jobs: Sequence[Job], workers: int, backend: str, work: Work) -> Generator[Cell]:
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    work.show(0.0, f"{len(jobs)} fine-tunings, {workers} at a time")
    with tempfile.TemporaryDirectory() as claims, joblib.parallel_config(**_backend(backend, workers, Path(claims))):
        parallel = joblib.Parallel(return_as="generator", batch_size=1, pre_dispatch="2*n_jobs")
        filled = parallel(joblib.delayed(_outcome)(job) for job in jobs)
        try:
            for number, outcome in enumerate(filled, start=1):
                if not isinstance(outcome, Cell):
                    raise UserError(*outcome)
                work.show(number / len(jobs), f"{number}/{len(jobs)} fine-tunings, {workers} at a time")
                yield outcome
        except TerminatedWorkerError:
            raise UserError(
                "A process that was fine-tuning is gone; a system kills the largest when memory runs out.",
                "The same command goes on from here; use fewer --workers.",
            ) from None
        finally:
            _end_workers(filled, backend)


def _outcome(job: Job) -> Cell | tuple[str, str]:
    """The cell, or what the user must be told: a UserError is not fit for a journey between processes."""
    try:
        return fill(job)
    except UserError as error:
        return error.sentence, error.remedy


def _end_workers(filled: Generator[object], backend: str) -> None:
    """Now, not when the garbage is collected or they have been idle for minutes: they hold memory and GPUs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a generator that is left before its end, which is meant here
        filled.close()
    if backend == "processes":
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _backend(name: str, workers: int, claims: Path) -> dict[str, object]:
    """What joblib must be told."""
    if name == "processes":
        # Asked here: a process that has counted the GPUs may no longer be able to choose among them.
        start = (str(claims), _visible_devices(), os.getpid())
        return {"backend": "loky", "n_jobs": workers, "initializer": start_worker, "initargs": start}
    try:
        if name == "ray":
            from ray.util.joblib import register_ray

            register_ray()
        else:
            import distributed  # noqa: F401 - its import registers the backend
    except ImportError:
        package = "ray" if name == "ray" else "dask[distributed]"
        raise UserError(f"--backend {name} needs {package}.", f"Install it: pip install '{package}'.") from None
    return {"backend": name, "n_jobs": workers}


def start_worker(claims: str, devices: Sequence[str], parent: int) -> None:
    """Give this process one GPU of its own, before CUDA starts; joblib itself assigns none.

    A GPU is claimed by locking a file. The lock ends with the process, so that a worker that takes the place of another
    takes its GPU. Where workers outnumber GPUs, they share them evenly.

    Args:
        claims: an empty folder for the locks.
        devices: as CUDA_VISIBLE_DEVICES names them.
        parent: the process that ends its workers; should it be killed itself, they end too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal, and is the parent's
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if not devices:
        return
    for place, device in ((place, device) for place in itertools.count() for device in devices):
        lock = os.open(Path(claims, f"{device.replace('/', '-')}.{place}"), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        return


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _visible_devices() -> list[str]:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]


def forecast_line(seconds: float, fine_tunings: int, workers: int, price: float | None) -> str:
    """What is about to be spent, in words.

    Args:
        seconds: of all fine-tunings, one after the other.
        price: of an hour of this machine, in any currency.
    """
    if workers > 1:
        seconds = START_SECONDS + max(seconds / workers, seconds / fine_tunings)
    side = f", {workers} at a time" if workers > 1 else ""
    cost = "" if price is None else f", cost about {price * seconds / 3600:.2f}"
    return f"{fine_tunings} fine-tunings{side}: about {duration(seconds)}{cost}."
