"""Cells in other processes are the same cells; whatever ends an evaluation, what is done stays and nobody lives on."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import joblib
import psutil
import pytest
import torch

from daybreak.core.errors import Interrupted, UserError
from daybreak.evaluation.finetuning import fanout, pools
from daybreak.evaluation.finetuning.cells import Job, fill
from daybreak.evaluation.finetuning.fanout import obeying_signals, run_jobs, thread_count, worker_count
from daybreak.evaluation.finetuning.finetune import Show
from daybreak.evaluation.finetuning.forecast import forecast_line, waiting_seconds
from daybreak.schemas.tasks import Cell

MUCH = 10**12


def elsewhere(job: Job) -> Job:
    return replace(job, file=job.file.with_name(f"again-{job.file.name}"))


def test_processes_fill_the_same_cells(jobs: list[Job], notes: Any) -> None:
    apart = run_jobs([elsewhere(job) for job in jobs], 2, "processes", notes)
    first = next(apart)
    assert elsewhere(jobs[0]).finished() is not None, "on disk before the others are done"
    cells = [first, *apart]
    assert len(notes.notes) == 5
    assert "4/4 fine-tunings, 2 at a time" in notes.notes[-1]
    assert not [child for child in psutil.Process().children() if "popen_loky" in " ".join(child.cmdline())]
    for job, cell in zip(jobs, cells, strict=True):
        here = fill(job)
        assert replace(cell, seconds=0.0) == replace(here, seconds=0.0)


def test_finished_cells_need_no_process(jobs: list[Job], monkeypatch: pytest.MonkeyPatch, notes: Any) -> None:
    for job in (jobs[0], *jobs[2:]):
        fill(job)
    monkeypatch.setattr(fanout, "_side_by_side", None)
    assert [cell.seed for cell in run_jobs(jobs, 2, "processes", notes)] == [0, 1, 2, 3]
    assert [cell.seed for cell in run_jobs(jobs, 2, "dask", notes)] == [0, 1, 2, 3]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend of threads under the name of dask: for what our code makes of what comes back."""
    from joblib._parallel_backends import ThreadingBackend

    @contextmanager
    def pool(workers: int) -> Iterator[dict[str, object]]:
        yield {"backend": ThreadingBackend(), "n_jobs": workers}

    monkeypatch.setitem(pools.POOLS, "dask", pool)


def test_what_a_worker_has_to_say_arrives_as_it_was(
    jobs: list[Job],
    threads: None,
    monkeypatch: pytest.MonkeyPatch,
    notes: Any,
) -> None:
    real = fanout.fill

    def filled(job: Job) -> Cell:
        if job.seed == 1:
            raise UserError("It diverged.", "Mend it.")
        return real(job)

    monkeypatch.setattr(fanout, "fill", filled)
    cells = run_jobs(jobs, 2, "dask", notes)
    assert next(cells).seed == 0
    with pytest.raises(UserError) as caught:
        next(cells)
    assert (caught.value.sentence, caught.value.remedy) == ("It diverged.", "Mend it.")
    assert jobs[0].finished() is not None


@pytest.mark.parametrize("backend", ["processes", "dask"])
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "The GPU has no memory left for a batch of 16."),
        (OSError(errno.ENOSPC, "No space left on device"), "Cannot write '{file}': no space left on device."),
    ],
)
def test_a_full_gpu_and_a_full_disk_are_one_sentence(
    jobs: list[Job],
    threads: None,
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    error: Exception,
    sentence: str,
    notes: Any,
) -> None:
    real = fanout.fill

    def filled(job: Job, *rest: Show) -> Cell:
        if job.seed == 1:
            raise error
        return real(job, *rest)

    monkeypatch.setattr(fanout, "fill", filled)
    cells = run_jobs(jobs, 1 if backend == "processes" else 2, backend, notes)
    assert next(cells).seed == 0
    with pytest.raises(UserError) as caught:
        next(cells)
    assert caught.value.sentence == sentence.format(file=jobs[1].file)
    assert jobs[0].finished() is not None


def test_another_error_of_the_system_stays_what_it_is(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch, notes: Any
) -> None:
    def filled(job: Job, show: Show) -> Cell:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fanout, "fill", filled)
    with pytest.raises(OSError, match="Input/output error"):
        next(run_jobs(jobs, 1, "processes", notes))


def test_a_process_that_the_system_killed(jobs: list[Job], monkeypatch: pytest.MonkeyPatch, notes: Any) -> None:
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    def killed(*rest: object, **more: object) -> Callable[..., Iterator[Cell]]:
        def gone(todo: object) -> Iterator[Cell]:
            yield fill(jobs[0])
            raise TerminatedWorkerError("exit codes: {SIGKILL(-9)}")

        return gone

    monkeypatch.setattr(joblib, "Parallel", killed)
    cells = run_jobs(jobs, 2, "processes", notes)
    next(cells)
    with pytest.raises(UserError, match="memory runs out"):
        next(cells)


def worker_counts(monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: float, gpus: int) -> None:
    monkeypatch.setattr(fanout, "usable_cores", lambda: cores)
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": int(gigabytes * 1e9 / 4096)}
    monkeypatch.setattr(fanout.os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize(
    ("cores", "gigabytes", "gpus", "cells", "parameters", "workers"),
    [
        (8, 64, 0, 30, 10**7, 8),
        (8, 64, 0, 3, 10**7, 3),
        (8, 16, 0, 30, 10**7, 5),
        (8, 16, 0, 30, 110 * 10**6, 2),
        (8, 1, 0, 30, 10**7, 1),
        (8, 64, 4, 30, 10**7, 4),
        (8, 64, 4, 3, 10**7, 3),
        (64, 64, 1, 30, 10**7, 1),
    ],
)
def test_workers_follow_gpus_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: float, gpus: int, cells: int, parameters: int, workers: int
) -> None:
    worker_counts(monkeypatch, cores, gigabytes, gpus)
    assert worker_count(cells, MUCH, parameters, None, "processes") == workers


def test_little_work_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_counts(monkeypatch, 8, 64, 0)
    assert worker_count(3, 30_000, 1_500_000, None, "processes") == 1
    assert worker_count(3, 300_000, 1_500_000, None, "processes") == 3
    assert worker_count(3, 30_000, 1_500_000, 2, "processes") == 2, "a number that is asked for is obeyed"
    assert worker_count(3, MUCH, 10**7, 9, "processes") == 3
    with pytest.raises(UserError, match="0 workers are too few"):
        worker_count(3, MUCH, 10**7, 0, "processes")


def test_this_machine_does_not_count_for_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_counts(monkeypatch, 8, 64, 4)
    for backend in ("ray", "dask"):
        assert worker_count(30, MUCH, 10**7, 20, backend) == 20
        assert thread_count(2, backend) == 1
        with pytest.raises(UserError) as caught:
            worker_count(30, MUCH, 10**7, None, backend)
        assert caught.value.sentence == f"--backend {backend} spreads over a cluster whose size is not known here."
        assert caught.value.remedy == "Say how many fine-tunings run at a time with --workers."
        with pytest.raises(UserError, match="0 workers are too few"):
            worker_count(30, MUCH, 10**7, 0, backend)
    assert worker_count(30, MUCH, 10**7, 1, "dask") == 1
    with pytest.raises(UserError, match="2 workers or more"):
        worker_count(30, MUCH, 10**7, 1, "ray")


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_counts(monkeypatch, 8, 64, 0)
    assert [thread_count(workers, "processes") for workers in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_unwinds_and_says_which(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    unwound = []
    with pytest.raises(Interrupted) as stop, obeying_signals():
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            unwound.append(number)
    assert (stop.value.signal_number, unwound) == (number, [number])
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_thread_that_may_not_listen_goes_on() -> None:
    found = []

    def inside() -> None:
        with obeying_signals():
            found.append("done")

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == ["done"]


def test_the_forecast_tells_time_and_cost() -> None:
    assert forecast_line(3600.0, 6, 1, None) == "6 fine-tunings: about 1h 00m."
    assert forecast_line(3600.0, 6, 1, 1.5) == "6 fine-tunings: about 1h 00m, cost about 1.50."
    assert (
        forecast_line(waiting_seconds(3600.0, 6, 3), 6, 3, 0.9)
        == "6 fine-tunings, 3 at a time: about 20m 10s, cost about 0.30."
    )
    assert forecast_line(waiting_seconds(3600.0, 2, 6), 2, 6, None) == "2 fine-tunings, 6 at a time: about 30m 10s.", (
        "the longest decides"
    )
    assert forecast_line(30.0, 1, 1, 0.0) == "1 fine-tuning: about 30s, cost about 0.00."


@pytest.mark.parametrize("price", [-0.5, float("nan"), float("inf")])
def test_a_price_that_is_none(price: float) -> None:
    with pytest.raises(UserError, match="is no price"):
        forecast_line(3600.0, 6, 1, price)
