"""Run fine-tuning jobs: in this process, in one process per GPU or CPU core, or on a Ray cluster.

On a CPU each process gets an equal number of threads. Several processes of one thread train small models faster than
one process of several threads. The number of threads changes the last bits of a sum, so it depends only on the number
of requested jobs, never on how many are left: a resumed evaluation ends with the same table.

On a Ray cluster the workers need Daybreak, and every path must have the same name as here. Ray reads RAY_ADDRESS;
without it, Ray starts a cluster on this machine.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import math
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError

from daybreak.core.errors import Interrupted, UserError, reason
from daybreak.core.process import WORKERS, end_with, machine_memory, usable_cores
from daybreak.core.terminal import Work
from daybreak.evaluation.finetuning.jobs import FinetuningJob, run_job
from daybreak.schemas.tasks import FinetuningRun
from daybreak.training.step import memory_is_full

BYTES_PER_PARAMETER = 24
"""Memory of a float32 fine-tuning: weight, gradient, two moments, and about as much again for activations."""
PROCESS_BYTES = 1.5e9
"""Memory of a worker process before it loads a model."""
SMALL_WORK = 1e11
"""Training rows times epochs times parameters below which one process is faster than several: a minute on two cores."""


# ---------------------------------------------------------------- how many workers


def worker_count(jobs: int, rows: int, parameters: int, requested: int | None, backend: str) -> int:
    """Return how many jobs run at the same time.

    The default is one per GPU, or without a GPU one per core as far as memory allows, or one if the work is small.

    Args:
        jobs: number of requested jobs, finished ones included.
        rows: training rows of all jobs, counted once per epoch.
        requested: the user's number, which takes precedence.
    """
    if requested is not None and requested < 1:
        raise UserError(f"{requested} workers are too few.", "Use at least 1.")
    if backend == "ray":
        if requested is None:
            raise UserError("--backend ray needs the number of workers.", "Add --workers N.")
        if requested == 1:  # joblib would run the jobs in this process
            raise UserError("--backend ray needs 2 workers or more.", "Use more --workers, or leave --backend out.")
        return requested
    if requested is not None:
        return min(requested, jobs)
    if rows * parameters <= SMALL_WORK:
        return 1
    if torch.cuda.is_available():
        return min(torch.cuda.device_count(), jobs)
    fitting = int(0.6 * machine_memory()[0] // (PROCESS_BYTES + BYTES_PER_PARAMETER * parameters))
    return max(1, min(usable_cores(), jobs, fitting))


def thread_count(workers: int, backend: str) -> int:
    """Return the CPU threads of each worker: an equal share of the cores, or one on a cluster."""
    return max(1, usable_cores() // workers) if backend == "processes" else 1


# ---------------------------------------------------------------- running jobs


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into ``Interrupted``, so that worker processes end; finished jobs are on disk by then.

    Raises:
        Interrupted: one of the signals arrived.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    received = signal.SIGINT

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = signal.Signals(number)
        raise KeyboardInterrupt  # not an Exception: libraries swallow those

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(received) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run_jobs(jobs: Sequence[FinetuningJob], workers: int, backend: str, work: Work) -> Iterator[FinetuningRun]:
    """Run the jobs that are not finished, and yield all runs in the order of ``jobs``.

    Each run is written to disk as soon as it ends. With one worker the jobs run in this process unless ``backend``, one
    of BACKENDS, is a cluster.
    """
    finished = {job.file: run for job in jobs if (run := job.finished()) is not None}
    remaining = [job for job in jobs if job.file not in finished]
    parallel = bool(remaining) if backend != "processes" else min(workers, len(remaining)) > 1
    runs = _run_in_parallel(remaining, workers, backend, work) if parallel else _run_here(remaining, work)
    try:
        for job in jobs:
            yield finished[job.file] if job.file in finished else next(runs)
    finally:
        runs.close()


def _run_here(jobs: Sequence[FinetuningJob], work: Work) -> Generator[FinetuningRun]:
    total = sum(job.setting.epochs for job in jobs)
    epochs = 0
    for number, job in enumerate(jobs, start=1):

        def show(
            fraction: float, loss: float, job: FinetuningJob = job, number: int = number, epochs: int = epochs
        ) -> None:
            label = f"{number}/{len(jobs)}  {job.task.name}, {job.setting}, seed {job.seed}"
            work.show((epochs + fraction * job.setting.epochs) / total, f"{label}  loss {loss:.3f}")

        with resource_errors(job):
            run = run_job(job, show)
        yield run
        epochs += job.setting.epochs


def _run_in_parallel(jobs: Sequence[FinetuningJob], workers: int, backend: str, work: Work) -> Generator[FinetuningRun]:
    import joblib

    work.show(0.0, f"{len(jobs)} fine-tunings, {workers} at a time")
    with _POOLS[backend](workers) as settings, joblib.parallel_config(**settings):
        # joblib returns the results of Ray only as a list.
        parallel = joblib.Parallel(return_as="list" if backend == "ray" else "generator", batch_size=1)
        outcomes = parallel(joblib.delayed(_outcome)(job) for job in jobs)
        try:
            for number, outcome in enumerate(outcomes, start=1):
                if isinstance(outcome, UserError):
                    raise outcome
                work.show(number / len(jobs), f"{number}/{len(jobs)} fine-tunings, {workers} at a time")
                yield outcome
        finally:
            if not isinstance(outcomes, list):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # joblib warns about a generator that is closed early
                    outcomes.close()


def _outcome(job: FinetuningJob) -> FinetuningRun | UserError:
    """Return the run, or the UserError instead of raising it: backends wrap what is raised, each in its own way."""
    try:
        with resource_errors(job):
            return run_job(job)
    except UserError as error:
        return error


@contextmanager
def resource_errors(job: FinetuningJob) -> Iterator[None]:
    """Turn a full memory or disk into a UserError."""
    try:
        yield
    except RuntimeError as error:
        if not memory_is_full(error):
            raise
        place = "machine" if "can't allocate memory" in str(error) else "GPU"
        raise UserError(
            f"The {place} has no memory left for a batch of {job.setting.batch}.",
            f"Use fewer --workers, another {place} or a smaller model; the batch size is part of the protocol.",
        ) from None
    except SafetensorError as error:
        raise UserError(
            f"The fine-tuned model of '{job.file}' cannot be written ({reason(error)}).",
            "Free some disk space, then run the same command again.",
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"Cannot write '{job.file}': {os.strerror(error.errno).lower()}.",
            "Free some disk space, then run the same command again.",
        ) from None


# ---------------------------------------------------------------- worker pools: contexts that yield joblib's settings


@contextmanager
def _processes(workers: int) -> Iterator[dict[str, Any]]:
    from joblib.externals.loky import get_reusable_executor

    # A pretraining or a forecast in this process leaves its memory reserved on the first GPU, which the workers need.
    torch.cuda.empty_cache()
    with WORKERS, tempfile.TemporaryDirectory() as claims:
        # Count the GPUs here: a process that has initialized CUDA can no longer choose one.
        start = (claims, _visible_devices(), os.getpid())
        try:
            yield {"backend": "loky", "n_jobs": workers, "initializer": start_worker, "initargs": start}
        except BrokenProcessPool:
            raise UserError(
                "A worker process was killed; the system does this when memory runs out.",
                "Use fewer --workers and run the same command again; finished fine-tunings are kept.",
            ) from None
        finally:
            get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


@contextmanager
def _ray(workers: int) -> Iterator[dict[str, Any]]:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise UserError("--backend ray needs the package ray.", "Run: pip install ray.") from None
    register_ray()
    starts = not ray.is_initialized()
    try:
        if starts:
            handler = signal.getsignal(signal.SIGTERM)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # ray.init replaces the handler
        resources = ray.cluster_resources()
        room = int(min(resources.get("CPU", 0), resources.get("GPU", math.inf)))
        if room < workers:  # Ray would wait forever
            raise UserError(
                f"The ray cluster has room for {room} fine-tunings at a time, not for {workers}.",
                "Use fewer --workers, or a larger cluster.",
            )
        yield {"backend": "ray", "n_jobs": workers, "ray_remote_args": {"num_gpus": 1 if "GPU" in resources else 0}}
    except (OSError, ray.exceptions.RayError) as error:
        raise UserError(
            f"The ray cluster fails: {reason(error)}.",
            "Check RAY_ADDRESS and the workers, then run the same command again.",
        ) from None
    finally:
        if starts:
            ray.shutdown()


_POOLS: dict[str, Callable[[int], AbstractContextManager[dict[str, Any]]]] = {"processes": _processes, "ray": _ray}
BACKENDS = tuple(_POOLS)


def start_worker(claims: str, devices: Sequence[str], parent: int) -> None:
    """Give this worker process one GPU before CUDA starts; joblib assigns none.

    A worker claims a GPU by locking a file. The lock ends with the process, so a replacement worker gets the same GPU.
    If there are more workers than GPUs, they share the GPUs evenly.

    Args:
        claims: an empty folder for the locks.
        devices: names as in CUDA_VISIBLE_DEVICES.
        parent: id of the parent process; the worker exits when that process dies.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    end_with(parent)
    if not devices:
        return
    for turn, device in ((turn, device) for turn in itertools.count() for device in devices):
        lock = os.open(Path(claims, f"{device.replace('/', '-')}.{turn}"), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        return


def _visible_devices() -> list[str]:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]
