"""Cells side by side: processes of this machine, one a GPU, or the workers of a cluster that joblib knows.

On a CPU every process has its share of the cores: small models are faster as several processes of one thread than as
one of several. Threads change the last bits of a sum, so their number follows from the cells that were asked for, never
from those that are left or from a clock: an evaluation that was killed ends with the table that it would have had.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from daybreak.base.errors import UserError
from daybreak.base.task_records import Cell
from daybreak.base.terminal import Work, duration
from daybreak.evaluation.cells import Job, fill

BACKENDS = ("processes", "ray", "dask")
BYTES_PER_PARAMETER = 24
"""Of a fine-tuning in float32: weight, gradient, two moments, and as much again for what a batch leaves behind."""
PROCESS_BYTES = 1.5e9
"""Of a worker before it has a model."""


def worker_count(cells: int, parameters: int, asked: int | None) -> int:
    """How many cells run at once: one a GPU; without one, one a core, as far as the memory goes.

    Args:
        cells: all that were asked for, finished ones too.
        parameters: of the largest model.
        asked: the user's own number, which is obeyed.
    """
    if asked is not None:
        if asked < 1:
            raise UserError(f"{asked} workers are too few.", "Use at least 1.")
        return min(asked, cells)
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


def run_jobs(jobs: Sequence[Job], workers: int, backend: str, work: Work) -> Iterator[Cell]:
    """Fill the cells, and yield them in the order of ``jobs``; each is on disk as soon as it is done.

    Args:
        workers: processes; with one the cells are filled in this process, unless a cluster was asked for.
        backend: one of BACKENDS.

    Raises:
        UserError: a cell cannot be filled, or the backend is not installed.
    """
    if workers == 1 and backend == "processes":
        yield from _one_by_one(jobs, work)
        return
    import joblib

    with tempfile.TemporaryDirectory() as claims, joblib.parallel_config(**_backend(backend, workers, Path(claims))):
        parallel = joblib.Parallel(return_as="generator", batch_size=1, pre_dispatch="2*n_jobs")
        for number, cell in enumerate(parallel(joblib.delayed(fill)(job) for job in jobs), start=1):
            work.show(number / len(jobs), f"{number}/{len(jobs)} fine-tunings, {workers} at a time")
            yield cell


def _one_by_one(jobs: Sequence[Job], work: Work) -> Iterator[Cell]:
    total = sum(job.setting.epochs for job in jobs)
    before = 0
    for number, job in enumerate(jobs, start=1):

        def show(share: float, loss: float, job: Job = job, number: int = number, before: int = before) -> None:
            place = f"{number}/{len(jobs)}  {job.task.name}, {job.setting}, seed {job.seed}"
            work.show((before + share * job.setting.epochs) / total, f"{place}  loss {loss:.3f}")

        yield fill(job, show)
        before += job.setting.epochs


def _backend(name: str, workers: int, claims: Path) -> dict[str, object]:
    """What joblib must be told."""
    if name == "processes":
        return {"backend": "loky", "n_jobs": workers, "initializer": start_worker, "initargs": (str(claims),)}
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


def start_worker(claims: str) -> None:
    """Give this process one GPU of its own, before CUDA starts; joblib itself assigns none.

    A GPU is claimed by creating a file, which only one process can do.
    """
    for device in _visible_devices():
        try:
            os.close(os.open(Path(claims, device.replace("/", "-")), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.environ["CUDA_VISIBLE_DEVICES"] = device
        return


def _visible_devices() -> list[str]:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip()]
    # device_count asks the driver without starting CUDA in this process.
    return [str(number) for number in range(torch.cuda.device_count())]


def forecast_line(seconds: float, fine_tunings: int, workers: int, price: float | None) -> str:
    """What is about to be spent, in words; ``price`` is of an hour of this machine, in any currency."""
    side = f", {workers} at a time" if workers > 1 else ""
    cost = "" if price is None else f", cost about {price * seconds / 3600:.2f}"
    return f"{fine_tunings} fine-tunings{side}: about {duration(seconds)}{cost}."
