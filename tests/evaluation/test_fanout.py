"""Cells in other processes are the same cells; whatever ends an evaluation, what is done stays and nobody lives on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import joblib
import psutil
import pytest
import torch

from daybreak.base.errors import Interrupted, UserError
from daybreak.base.task_records import Cell
from daybreak.evaluate import evaluate
from daybreak.evaluation import fanout
from daybreak.evaluation.cells import Job, fill
from daybreak.evaluation.fanout import (
    forecast_line,
    obeying_signals,
    run_jobs,
    start_worker,
    thread_count,
    worker_count,
)
from daybreak.evaluation.kinds import load_task
from daybreak.evaluation.measure import Measurement
from daybreak.evaluation.protocols import PROTOCOLS
from daybreak.evaluation.task_file import read_task_file

ROWS = [("sun", "a"), ("rain", "b")] * 10
MUCH = 10**12


class Notes:
    """Stands for what the user sees."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def show(self, share: float, note: str = "") -> None:
        assert 0 <= share <= 1
        self.notes.append(note)


@pytest.fixture
def jobs(encoder: Path, write_task: Callable[..., Path], tmp_path: Path) -> list[Job]:
    """Four short fine-tunings."""
    task = load_task(read_task_file(write_task(ROWS, ROWS[:7])))
    return Measurement(
        folder=encoder, model_name="toy", data=task, protocol=PROTOCOLS["quick"].changed(epochs=2), seeds=4,
        untrained=False, threads=1, hidden=False, cells=tmp_path / "cells",
    ).jobs()  # fmt: skip


def elsewhere(job: Job) -> Job:
    return replace(job, file=job.file.with_name(f"again-{job.file.name}"))


def test_processes_fill_the_same_cells(jobs: list[Job]) -> None:
    notes = Notes()
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


def test_finished_cells_need_no_process(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    for job in (jobs[0], *jobs[2:]):
        fill(job)
    monkeypatch.setattr(fanout, "_side_by_side", None)
    assert [cell.seed for cell in run_jobs(jobs, 2, "processes", Notes())] == [0, 1, 2, 3]
    assert [cell.seed for cell in run_jobs(jobs, 2, "dask", Notes())] == [0, 1, 2, 3]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[int]]:
    """Give ``name`` a backend of threads, and return where it writes down how many it is asked for."""

    def register(name: str) -> list[int]:
        from joblib._parallel_backends import ThreadingBackend

        asked: list[int] = []

        class Counting(ThreadingBackend):
            def configure(self, n_jobs: int = 1, *rest: object, **more: object) -> int:
                asked.append(n_jobs)
                return super().configure(n_jobs, *rest, **more)

        monkeypatch.setitem(joblib.parallel.BACKENDS, name, Counting)
        if name == "dask":
            monkeypatch.setitem(sys.modules, "distributed", ModuleType("distributed"))
        else:
            ray = ModuleType("ray.util.joblib")
            ray.register_ray = lambda: None  # type: ignore[attr-defined]
            for module, content in (("ray", ModuleType("ray")), ("ray.util", ModuleType("ray.util"))):
                monkeypatch.setitem(sys.modules, module, content)
            monkeypatch.setitem(sys.modules, "ray.util.joblib", ray)
        return asked

    return register


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_cluster_fills_the_cells_through_joblib(
    jobs: list[Job], registered: Callable[[str], list[int]], backend: str
) -> None:
    asked = registered(backend)
    found = list(run_jobs(jobs[:2], 2, backend, Notes()))
    assert asked == [2]
    for job, cell in zip(jobs, found):
        assert replace(cell, seconds=0.0) == replace(fill(elsewhere(job)), seconds=0.0)


@pytest.mark.parametrize(("backend", "package"), [("ray", "ray"), ("dask", "dask[distributed]")])
def test_a_cluster_that_is_not_installed(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, package: str
) -> None:
    for name in ("ray", "ray.util.joblib", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError) as caught:
        evaluate(encoder, [str(weather)], seeds=1, rows=32, epochs=1, out=tmp_path / "out", backend=backend)
    assert caught.value.sentence == f"--backend {backend} needs {package}."
    assert caught.value.remedy == f"Install it: pip install '{package}'."


def test_what_a_worker_has_to_say_arrives_as_it_was(
    jobs: list[Job], registered: Callable[[str], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered("dask")
    real = fanout.fill

    def filled(job: Job) -> Cell:
        if job.seed == 1:
            raise UserError("It diverged.", "Mend it.")
        return real(job)

    monkeypatch.setattr(fanout, "fill", filled)
    cells = run_jobs(jobs, 2, "dask", Notes())
    assert next(cells).seed == 0
    with pytest.raises(UserError) as caught:
        next(cells)
    assert (caught.value.sentence, caught.value.remedy) == ("It diverged.", "Mend it.")
    assert jobs[0].finished() is not None


def test_a_process_that_the_system_killed(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    def killed(*rest: object, **more: object) -> Callable[..., Iterator[Cell]]:
        def gone(todo: object) -> Iterator[Cell]:
            yield fill(jobs[0])
            raise TerminatedWorkerError("exit codes: {SIGKILL(-9)}")

        return gone

    monkeypatch.setattr(joblib, "Parallel", killed)
    cells = run_jobs(jobs, 2, "processes", Notes())
    next(cells)
    with pytest.raises(UserError, match="memory runs out"):
        next(cells)


def worker_counts(monkeypatch: pytest.MonkeyPatch, cores: int, gigabytes: float, gpus: int) -> None:
    monkeypatch.setattr(fanout, "_cores", lambda: cores)
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
    assert worker_count(cells, MUCH, parameters, None) == workers


def test_little_work_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_counts(monkeypatch, 8, 64, 0)
    assert worker_count(3, 30_000, 1_500_000, None) == 1
    assert worker_count(3, 300_000, 1_500_000, None) == 3
    assert worker_count(3, 30_000, 1_500_000, 2) == 2, "a number that is asked for is obeyed"
    assert worker_count(3, MUCH, 10**7, 9) == 3
    with pytest.raises(UserError, match="0 workers are too few"):
        worker_count(3, MUCH, 10**7, 0)


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_counts(monkeypatch, 8, 64, 0)
    assert [thread_count(workers) for workers in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str | None, int]]:
    """Return ``claim(devices)``: begin as a worker does; the GPU that it has then, and its hold on it.

    A lock belongs to an open file, so that several in one process stand for one each in several.
    """
    monkeypatch.setattr(fanout.signal, "signal", lambda *rest: None)
    monkeypatch.setattr(fanout, "_end_with", lambda parent: None)
    held: list[int] = []
    real = os.open

    def opened(*rest: int, **more: int) -> int:
        held.append(real(*rest, **more))
        return held[-1]

    monkeypatch.setattr(fanout.os, "open", opened)

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


def test_a_worker_of_a_machine_without_gpus_claims_none(claim: Callable[[str], tuple[str | None, int]]) -> None:
    assert claim("")[0] is None


def test_gpus_are_those_that_the_user_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for listed, devices in (("0, 1,GPU-abc", ["0", "1", "GPU-abc"]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
        assert fanout._backend("processes", 2, Path("claims"))["initargs"] == ("claims", devices, os.getpid())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert fanout._backend("processes", 2, Path("claims"))["initargs"] == ("claims", ["0", "1"], os.getpid())


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
    assert forecast_line(3600.0, 6, 3, 0.9) == "6 fine-tunings, 3 at a time: about 20m 10s, cost about 0.30."
    assert forecast_line(3600.0, 2, 6, None) == "2 fine-tunings, 6 at a time: about 30m 10s.", "the longest decides"
