"""Run one task on many parts, in this process or in several; results depend only on the parts."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from daybreak.core.errors import UserError
from daybreak.core.process import WORKERS, end_with

Result = TypeVar("Result")


class WorkerLost(UserError):
    """A worker process was killed. Finished parts are kept, so the preparation can be resumed."""


def map_parts(
    task: Callable[[int], Result], numbers: Sequence[int], workers: int, folder: Path | None = None
) -> Iterator[Result]:
    """Yield ``task(number)`` for all numbers, in order of completion.

    Args:
        task: picklable if there are several workers. It must contain all that it needs from this process.
        folder: where ``task`` is stored for the workers, by default the system's temporary folder. Each worker reads it
            once, because it may contain the names of a hundred thousand files.
        workers: processes. With 1, or with a single number, everything runs in this process.

    Raises:
        UserError: raised by a task, or a worker was killed.
    """
    if workers <= 1 or len(numbers) <= 1:
        yield from map(task, numbers)
        return
    # loky starts new interpreters, not copies of this one with its threads, and does not import the caller's script.
    import joblib

    parallel = joblib.Parallel(
        n_jobs=min(workers, len(numbers)), backend="loky", return_as="generator_unordered",
        initializer=end_with, initargs=(os.getpid(),),
    )  # fmt: skip
    descriptor, place = tempfile.mkstemp(prefix="task-", dir=folder)
    try:
        os.close(descriptor)
        write_task(task, Path(place))
        yield from parallel(joblib.delayed(_in_worker)(place, number) for number in numbers)
    except BrokenProcessPool:
        raise WorkerLost(
            "A worker process was killed, most likely because the memory was full.",
            "Use fewer with --workers: what is done is kept.",
        ) from None
    finally:
        Path(place).unlink(missing_ok=True)


@contextmanager
def workers_ended() -> Iterator[None]:
    """End the worker processes on exit; otherwise they stay idle for minutes and keep their memory.

    Another thread that needs workers waits until then.
    """
    with WORKERS:
        try:
            yield
        finally:
            if "joblib.externals.loky" in sys.modules:
                from joblib.externals.loky import get_reusable_executor

                get_reusable_executor().shutdown(wait=True, kill_workers=True)


def write_task(task: Callable[[int], object], place: Path) -> None:
    """Write ``task`` to a file, for other processes."""
    # joblib bundles cloudpickle, which also takes functions that cannot be imported by name.
    from joblib.externals.loky.backend.reduction import dump

    with place.open("wb") as file:
        dump(task, file)


@functools.lru_cache(maxsize=1)
def read_task(place: str) -> Callable[[int], object]:
    """Read the task from a file; every task has a file name of its own."""
    with open(place, "rb") as file:
        task: Callable[[int], object] = pickle.load(file)
    return task


def _in_worker(place: str, number: int) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the worker processes use all cores already
    return read_task(place)(number)
