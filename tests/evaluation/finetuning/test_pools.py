"""Real clusters where their libraries are installed; without them, what a worker process does first."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from daybreak.core.errors import UserError
from daybreak.evaluation.finetuning import fanout, pools
from daybreak.evaluation.finetuning.cells import Job, fill
from daybreak.evaluation.finetuning.fanout import run_jobs
from daybreak.evaluation.finetuning.pools import start_worker
from daybreak.schemas.tasks import Cell


def elsewhere(job: Job) -> Job:
    return replace(job, file=job.file.with_name(f"again-{job.file.name}"))


@pytest.mark.parametrize(("backend", "package"), [("ray", "ray"), ("dask", "dask[distributed]")])
def test_a_cluster_that_is_not_installed(
    jobs: list[Job],
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    package: str,
    notes: Any,
) -> None:
    for name in ("ray", "ray.util.joblib", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError) as caught:
        next(run_jobs(jobs, 2, backend, notes))
    assert caught.value.sentence == f"--backend {backend} needs {package}."
    assert caught.value.remedy == f"Install it: pip install '{package}'."


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a real dask cluster: one worker, a process of one thread."""
    pytest.importorskip("distributed")
    from distributed import LocalCluster

    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with LocalCluster(processes=True, n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def as_in_this_process(jobs: list[Job]) -> Callable[[list[Cell]], None]:
    """Return a check that these are the cells of the first jobs, and that this process did not fill them."""

    def check(found: list[Cell]) -> None:
        for job, cell in zip(jobs[: len(found)], found, strict=True):
            kept = job.finished()
            assert kept == cell, "a worker wrote it"
            assert replace(cell, seconds=0.0) == replace(fill(elsewhere(job)), seconds=0.0)

    return check


def test_dask_fills_the_same_cells(
    jobs: list[Job],
    scheduler: str,
    as_in_this_process: Callable[[list[Cell]], None],
    monkeypatch: pytest.MonkeyPatch,
    notes: Any,
) -> None:
    from distributed import Client

    monkeypatch.setattr(fanout, "fill", None)  # of this process; a worker has its own
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", scheduler)
    as_in_this_process(list(run_jobs(jobs[:2], 1, "dask", notes)))
    assert notes.notes[-1] == "2/2 fine-tunings, 1 at a time"
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS")
    with pytest.raises(UserError, match="needs a cluster, and none is named"):
        next(run_jobs(jobs[2:], 1, "dask", notes))
    with Client(scheduler):
        cells = run_jobs(jobs[2:], 1, "dask", notes)
        assert next(cells).seed == 2, "the current client's cluster"
        cells.close()


def test_a_dask_worker_has_its_say_in_one_sentence(
    jobs: list[Job],
    scheduler: str,
    monkeypatch: pytest.MonkeyPatch,
    notes: Any,
) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", scheduler)
    nowhere = replace(jobs[1], folder=jobs[1].folder / "nowhere")
    cells = run_jobs([jobs[0], nowhere, *jobs[2:]], 1, "dask", notes)
    assert next(cells).seed == 0
    with pytest.raises(UserError, match="nowhere"):
        next(cells)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere"])
def test_a_dask_scheduler_that_is_not_there(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch, address: str, notes: Any
) -> None:
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", address)
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), pytest.raises(UserError) as caught:
        next(run_jobs(jobs, 1, "dask", notes))
    assert address in caught.value.sentence


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    ray: ModuleType = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # never a cluster of somebody who runs the tests
    return ray


def test_ray_fills_the_same_cells(
    jobs: list[Job],
    local_ray: ModuleType,
    as_in_this_process: Callable[[list[Cell]], None],
    monkeypatch: pytest.MonkeyPatch,
    notes: Any,
) -> None:
    # Its CPUs are what it is told. joblib gives one worker nothing to do: hence two.
    local_ray.init(num_cpus=2, logging_level="ERROR", log_to_driver=False)
    try:
        monkeypatch.setattr(fanout, "fill", None)  # of this process; a worker has its own
        as_in_this_process(list(run_jobs(jobs[:2], 2, "ray", notes)))
        assert notes.notes[-1] == "2/2 fine-tunings, 2 at a time"
        nowhere = replace(jobs[3], folder=jobs[3].folder / "nowhere")
        with pytest.raises(UserError, match="nowhere"):
            list(run_jobs([jobs[2], nowhere], 2, "ray", notes))
        assert jobs[2].finished() is not None
        with pytest.raises(UserError, match="room for 2 fine-tunings at a time, not for 3"):
            list(run_jobs(jobs[3:], 3, "ray", notes))
        assert local_ray.is_initialized(), "it was there before"
    finally:
        local_ray.shutdown()


def test_ray_begins_and_ends_a_cluster_of_this_machine(jobs: list[Job], local_ray: ModuleType, notes: Any) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs 2 cores")
    obeyed = signal.getsignal(signal.SIGTERM)
    cells = run_jobs(jobs[:2], 2, "ray", notes)
    assert next(cells).seed == 0
    assert signal.getsignal(signal.SIGTERM) is obeyed
    assert next(cells).seed == 1
    assert not list(cells)
    assert not local_ray.is_initialized()


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str | None, int]]:
    """Return ``claim(devices)``: begin as a worker does; the GPU that it has then, and its hold on it.

    A lock belongs to an open file, so that several in one process stand for one each in several.
    """
    monkeypatch.setattr(pools.signal, "signal", lambda *rest: None)
    monkeypatch.setattr(pools, "_end_with", lambda parent: None)
    held: list[int] = []
    real = os.open

    def opened(*rest: int, **more: int) -> int:
        held.append(real(*rest, **more))
        return held[-1]

    monkeypatch.setattr(pools.os, "open", opened)

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
        assert first_arguments() == (devices, os.getpid())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert first_arguments() == (["0", "1"], os.getpid())


def first_arguments() -> tuple[list[str], int]:
    """What a worker process is told: the GPUs, and its parent."""
    with pools.POOLS["processes"](2) as told:
        claims, devices, parent = told["initargs"]
        assert not list(Path(claims).iterdir())
    assert not Path(claims).exists()
    return devices, parent
