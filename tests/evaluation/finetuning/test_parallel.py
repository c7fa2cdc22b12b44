"""Jobs in worker processes give the same runs; however an evaluation ends, finished runs stay and no worker remains."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import psutil
import pytest
import torch
from needs import needs
from safetensors import SafetensorError

from daybreak.core import process
from daybreak.core.errors import Interrupted, UserError
from daybreak.evaluation.finetuning import parallel
from daybreak.evaluation.finetuning.finetune import Show
from daybreak.evaluation.finetuning.jobs import FinetuningJob, run_job
from daybreak.evaluation.finetuning.parallel import interruptible, run_jobs, start_worker, thread_count, worker_count
from daybreak.evaluation.finetuning.task_evaluation import forecast
from daybreak.schemas.tasks import FinetuningRun
from daybreak.training import calibration

MUCH = 10**12


def elsewhere(job: FinetuningJob) -> FinetuningJob:
    return replace(job, file=job.file.with_name(f"again-{job.file.name}"))


def test_processes_fill_the_same_cells(jobs: list[FinetuningJob], notes: Any) -> None:
    apart = run_jobs([elsewhere(job) for job in jobs], 2, "processes", notes)
    first = next(apart)
    assert elsewhere(jobs[0]).finished() is not None, "on disk before the others are done"
    cells = [first, *apart]
    assert len(notes.notes) == 5
    assert "4/4 fine-tunings, 2 at a time" in notes.notes[-1]
    assert not [child for child in psutil.Process().children() if "popen_loky" in " ".join(child.cmdline())]
    for job, cell in zip(jobs, cells, strict=True):
        here = run_job(job)
        assert replace(cell, seconds=0.0) == replace(here, seconds=0.0)


def test_finished_cells_need_no_process(jobs: list[FinetuningJob], monkeypatch: pytest.MonkeyPatch, notes: Any) -> None:
    for job in (jobs[0], *jobs[2:]):
        run_job(job)
    monkeypatch.setattr(parallel, "_run_in_parallel", None)
    assert [cell.seed for cell in run_jobs(jobs, 2, "processes", notes)] == [0, 1, 2, 3]
    assert [cell.seed for cell in run_jobs(jobs, 2, "ray", notes)] == [0, 1, 2, 3]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend of threads under the name of Ray: for what our code makes of what comes back."""
    from joblib._parallel_backends import ThreadingBackend

    @contextmanager
    def pool(workers: int) -> Iterator[dict[str, object]]:
        yield {"backend": ThreadingBackend(), "n_jobs": workers}

    monkeypatch.setitem(parallel._POOLS, "ray", pool)


@pytest.mark.parametrize("backend", ["processes", "ray"])
@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (UserError("It diverged.", "Mend it."), "It diverged."),
        (torch.OutOfMemoryError("CUDA out of memory."), "The GPU has no memory left for a batch of 16."),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), "The GPU has no memory left for a batch of 16."),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "The machine has no memory left for a batch of 16.",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "Cannot write '{file}': no space left on device."),
        (
            SafetensorError("No space left on device"),
            "The fine-tuned model of '{file}' cannot be written (No space left on device).",
        ),
    ],
)
@pytest.mark.usefixtures("threads")
def test_what_a_worker_has_to_say_arrives_as_it_was_and_full_devices_are_one_sentence(
    jobs: list[FinetuningJob],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    error: Exception,
    sentence: str,
    notes: Any,
) -> None:
    real = parallel.run_job

    def filled(job: FinetuningJob, *rest: Show) -> FinetuningRun:
        if job.seed == 1:
            raise error
        return real(job, *rest)

    monkeypatch.setattr(parallel, "run_job", filled)
    cells = run_jobs(jobs, 1 if backend == "processes" else 2, backend, notes)
    assert next(cells).seed == 0
    with pytest.raises(UserError) as caught:
        next(cells)
    assert caught.value.sentence == sentence.format(file=jobs[1].file) and caught.value.remedy
    assert jobs[0].finished() is not None


def test_a_process_that_the_system_killed(
    jobs: list[FinetuningJob], monkeypatch: pytest.MonkeyPatch, notes: Any
) -> None:
    from concurrent.futures.process import BrokenProcessPool

    def killed(*rest: object, **more: object) -> Callable[..., Iterator[FinetuningRun]]:
        def gone(todo: object) -> Iterator[FinetuningRun]:
            yield run_job(jobs[0])
            raise BrokenProcessPool("exit codes: {SIGKILL(-9)}")

        return gone

    monkeypatch.setattr(joblib, "Parallel", killed)
    cells = run_jobs(jobs, 2, "processes", notes)
    next(cells)
    with pytest.raises(UserError, match="memory runs out"):
        next(cells)


def worker_counts(monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: float, gpus: int) -> None:
    monkeypatch.setattr(parallel, "usable_cores", lambda: cores)
    monkeypatch.setattr(parallel, "machine_memory", lambda: (int(gigabytes * 1e9), 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize(("limit", "memory"), [("16000000000\n", (16e9, 16e9)), ("max\n", (256e9, 200e9))])
def test_the_limit_of_a_container_is_the_memory(
    limit: str, memory: tuple[float, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers and microbatches that fill the machine would be killed in it."""
    (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(process, "CGROUP_LIMIT", tmp_path / "memory.max")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=256 * 10**9, available=200 * 10**9))
    assert parallel.machine_memory() == calibration.machine_memory() == memory


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
    assert worker_count(30, MUCH, 10**7, 20, "ray") == 20
    assert thread_count(2, "ray") == 1
    with pytest.raises(UserError, match="--backend ray needs the number of workers"):
        worker_count(30, MUCH, 10**7, None, "ray")
    with pytest.raises(UserError, match="0 workers are too few"):
        worker_count(30, MUCH, 10**7, 0, "ray")
    with pytest.raises(UserError, match="2 workers or more"):
        worker_count(30, MUCH, 10**7, 1, "ray")


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_counts(monkeypatch, 8, 64, 0)
    assert [thread_count(workers, "processes") for workers in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_unwinds_and_says_which(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    unwound = []
    with pytest.raises(Interrupted) as stop, interruptible():
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            unwound.append(number)
    assert (stop.value.signal_number, unwound) == (number, [number])
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def told(seconds: float, count: int, workers: int, price: float | None) -> str:
    planned: Any = SimpleNamespace(seconds=seconds, remaining=count)
    return forecast([planned], workers, price, None)


def test_the_forecast_tells_time_and_cost() -> None:
    assert told(3600.0, 6, 1, None) == "6 fine-tunings: about 1h 00m."
    assert told(3600.0, 6, 1, 1.5) == "6 fine-tunings: about 1h 00m, cost about 1.50."
    assert told(3600.0, 6, 3, 0.9) == "6 fine-tunings, 3 at a time: about 20m 10s, cost about 0.30."
    assert told(3600.0, 2, 6, None) == "2 fine-tunings, 6 at a time: about 30m 10s.", "the longest decides"
    assert told(30.0, 1, 1, 0.0) == "1 fine-tuning: about 30s, cost about 0.00."
    assert told(0.0, 0, 1, None) == ""


def test_ray_that_is_not_installed_is_one_sentence(
    jobs: list[FinetuningJob], monkeypatch: pytest.MonkeyPatch, notes: Any
) -> None:
    for name in ("ray", "ray.util.joblib"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"--backend ray needs the package ray. Run: pip install ray."):
        next(run_jobs(jobs, 2, "ray", notes))


@needs("ray: make test-all", "ray")
def test_ray_fills_the_same_cells(jobs: list[FinetuningJob], monkeypatch: pytest.MonkeyPatch, notes: Any) -> None:
    import ray

    monkeypatch.setenv("RAY_ADDRESS", "local")  # never a cluster of somebody who runs the tests
    # Its CPUs are what it is settings. joblib gives one worker nothing to do: hence two.
    ray.init(num_cpus=2, logging_level="ERROR", log_to_driver=False)
    try:
        monkeypatch.setattr(parallel, "run_job", None)  # of this process; a worker has its own
        for job, cell in zip(jobs, run_jobs(jobs[:2], 2, "ray", notes)):
            assert job.finished() == cell, "a worker wrote it"
            assert replace(cell, seconds=0.0) == replace(run_job(elsewhere(job)), seconds=0.0)
        assert notes.notes[-1] == "2/2 fine-tunings, 2 at a time"
        nowhere = replace(jobs[3], folder=jobs[3].folder / "nowhere")
        with pytest.raises(UserError, match="nowhere"):
            list(run_jobs([jobs[2], nowhere], 2, "ray", notes))
        assert jobs[2].finished() is not None
        with pytest.raises(UserError, match="room for 2 fine-tunings at a time, not for 3"):
            list(run_jobs(jobs[3:], 3, "ray", notes))
        assert ray.is_initialized(), "it was there before"
    finally:
        ray.shutdown()


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str | None, int]]:
    """Return ``claim(devices)``: begin as a worker does; the GPU that it has then, and its hold on it.

    A lock belongs to an open file, so that several in one process stand for one each in several.
    """
    monkeypatch.setattr(parallel.signal, "signal", lambda *rest: None)
    monkeypatch.setattr(parallel, "end_with", lambda parent: None)
    held: list[int] = []
    real = os.open

    def opened(*rest: int, **more: int) -> int:
        held.append(real(*rest, **more))
        return held[-1]

    monkeypatch.setattr(parallel.os, "open", opened)

    def begin(devices: str) -> tuple[str | None, int]:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        start_worker(str(tmp_path), devices.split(), os.getpid())
        return os.environ.get("CUDA_VISIBLE_DEVICES"), held[-1] if held else 0

    return begin


def test_every_worker_has_a_gpu_of_its_own(claim: Callable[[str], tuple[str | None, int]]) -> None:
    devices = "0 1 MIG-GPU-a/1/0"
    names, holds = zip(*(claim(devices) for _ in range(3)))
    assert list(names) == devices.split()
    assert [claim(devices)[0] for _ in range(4)] == ["0", "1", "MIG-GPU-a/1/0", "0"], "more workers than GPUs share"
    os.close(holds[1])  # as the end of the process does
    assert claim(devices)[0] == "1", "who takes a dead worker's place takes its GPU"


def test_gpus_are_those_that_the_user_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for listed, devices in (("0, 1,GPU-abc", ["0", "1", "GPU-abc"]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        assert first_arguments() == (devices, os.getpid())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert first_arguments() == (["0", "1"], os.getpid())


def test_workers_get_the_memory_that_this_process_reserved_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: released.append(True))
    with parallel._POOLS["processes"](2):
        assert released == [True]


def first_arguments() -> tuple[list[str], int]:
    """What a worker process is settings: the GPUs, and its parent."""
    with parallel._POOLS["processes"](2) as settings:
        claims, devices, parent = settings["initargs"]
        assert not list(Path(claims).iterdir())
    assert not Path(claims).exists()
    return devices, parent
