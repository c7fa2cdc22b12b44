"""The same work on many parts, in this process or in several: what comes out depends on the parts alone."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from daybreak.core.errors import UserError

Result = TypeVar("Result")


class WorkerLost(UserError):
    """A worker was killed; the others did nothing wrong, and what is done can be gone on with."""


WATCH_SECONDS = 1.0


def over_parts(
    task: Callable[[int], Result], numbers: Sequence[int], workers: int, folder: Path | None = None
) -> Iterator[Result]:
    """Yield ``task(number)`` for all numbers, as they are done.

    Args:
        task: picklable where there are several workers. What it needs of this process, it is given.
        folder: where ``task`` is laid down for the workers, each of which reads it once, for it may hold the names of a
            hundred thousand files; the system's for temporary files by default.
        workers: processes; with 1, or a single number, all is done here, and nothing is started.

    Raises:
        UserError: of a task; or a worker was killed.
    """
    if workers <= 1 or len(numbers) <= 1:
        yield from map(task, numbers)
        return
    # loky starts fresh interpreters, not copies of this one with its threads, and does not import the caller's script.
    import joblib
    from joblib.externals.loky.process_executor import BrokenProcessPool

    parallel = joblib.Parallel(
        n_jobs=min(workers, len(numbers)), backend="loky", return_as="generator_unordered",
        initializer=end_with, initargs=(os.getpid(),),
    )  # fmt: skip
    descriptor, place = tempfile.mkstemp(prefix="task-", dir=folder)
    try:
        os.close(descriptor)
        lay_down(task, Path(place))
        yield from parallel(joblib.delayed(_in_worker)(place, number) for number in numbers)
    except BrokenProcessPool:
        raise WorkerLost(
            "A worker process was killed, most likely because the memory was full.",
            "Use fewer with --workers: what is done is kept.",
        ) from None
    finally:
        Path(place).unlink(missing_ok=True)


@contextmanager
def released() -> Iterator[None]:
    """End the workers on leaving; otherwise they wait for minutes for more to do, with all their memory."""
    try:
        yield
    finally:
        if "joblib.externals.loky" in sys.modules:
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True, kill_workers=True)


def lay_down(task: Callable[[int], object], place: Path) -> None:
    """Write ``task`` to a file, for other processes."""
    from joblib.externals.loky.backend.reduction import dump

    with place.open("wb") as file:
        dump(task, file)


@functools.lru_cache(maxsize=1)
def laid_down(place: str) -> Callable[[int], object]:
    """The task in a file; of no two tasks has it the same name."""
    with open(place, "rb") as file:
        task: Callable[[int], object] = pickle.load(file)
    return task


def _in_worker(place: str, number: int) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes fill the cores already
    return laid_down(place)(number)


def end_with(parent: int) -> None:
    """See to it that this process ends when the process that started it does, even by kill -9."""

    def watch() -> None:
        while os.getppid() == parent:  # an orphan has another parent at once
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    if os.getppid() != parent:
        os._exit(1)

    threading.Thread(target=watch, name="end with the parent", daemon=True).start()


def is_alive(process: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
