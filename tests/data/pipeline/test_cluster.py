"""Tasks of a cluster, done here: the same shards, bit for bit; what fails is told, and what cannot be is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from datatrove.executor import LocalPipelineExecutor
from fake_clusters import SMALL, failing_step, hurry
from small_texts import Contents, contents, left_over

from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.data.pipeline import cluster
from daybreak.data.pipeline.cluster import (
    ERRORS,
    PLAN,
    TASK,
    Cluster,
    ClusterPlan,
    Slurm,
    chosen_workers,
    map_parts_on,
)
from daybreak.data.pipeline.cluster_tasks import Parts, job_number, leave_error, read_plan
from daybreak.data.pipeline.preprocessing import Preprocessing
from daybreak.data.pipeline.workers import WorkerLost, write_task


class Backwards(LocalPipelineExecutor):
    """datatrove's for one machine, the last task first."""

    def get_incomplete_ranks(self, *rest: object, **more: object) -> list[int]:
        return list(reversed(super().get_incomplete_ranks(*rest, **more)))


def done_here(folder: Path) -> SimpleNamespace:
    """Do all tasks; return a job that has ended."""
    with contextlib.suppress(WorkerLost):  # it is in the folder
        Backwards([Parts(folder)], tasks=read_plan(folder).tasks, workers=1, logging_dir=str(folder)).run()
    return SimpleNamespace(
        name="This machine", begin=lambda: None, running=lambda: False, state=lambda: "", end=lambda patience: True
    )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setitem(cluster.JOBS, "slurm", done_here)  # type: ignore[arg-type]
    monkeypatch.setattr(Cluster, "check", lambda self: None)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # tasks set it; not beyond this test


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("workers", "cpus"), [(1000, 1), (2, 2)])
def test_the_number_of_tasks_changes_nothing(
    records: Path, as_here: Contents, tmp_path: Path, workers: int, cpus: int
) -> None:
    prepare([records], tmp_path / "data", tokenizer=SMALL, workers=Cluster("slurm", workers, Slurm(cpus=cpus)))
    assert contents(tmp_path / "data") == as_here and len(as_here) >= 9
    assert left_over(tmp_path) == []


@pytest.mark.usefixtures("here")
def test_a_case_that_reads_once_more_reads_there_too(records: Path, tmp_path: Path) -> None:
    asked = Preprocessing(preset="crammed")
    for name, workers in (("here", 1), ("there", Cluster("slurm", 3))):
        prepare([records], tmp_path / name, tokenizer=SMALL, preprocessing=asked, workers=workers)
    assert contents(tmp_path / "here") == contents(tmp_path / "there")


def fill(results: Path, number: int) -> None:
    (results / f"{number:05d}").mkdir(parents=True)


@pytest.mark.usefixtures("here")
def test_what_is_there_is_not_asked_for(tmp_path: Path) -> None:
    results = tmp_path / "results"
    fill(results, 3)
    found = list(map_parts_on(Cluster("slurm", 2), partial(fill, results), range(5), results))  # 3 twice would raise
    assert found == [3, 0, 1, 2, 4]
    assert list(tmp_path.iterdir()) == [results]


def fail(error: Exception, number: int) -> None:
    raise error


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("error", "sentence", "remedy"),
    [
        (MemoryError(), "its memory was full", "Give each core more with --slurm.memory; finished parts stay."),
        (OSError(errno.EIO, "Input/output error"), "Input/output error", "Make sure that every machine has the text"),
    ],
)
def test_the_fault_of_a_task_is_reported_and_what_is_done_kept(
    tmp_path: Path, error: Exception, sentence: str, remedy: str
) -> None:
    with pytest.raises(WorkerLost) as caught:
        list(map_parts_on(Cluster("slurm", 1), partial(fail, error), range(2), tmp_path / "results"))
    assert sentence in caught.value.sentence and remedy in caught.value.remedy


@pytest.mark.usefixtures("here")
def test_what_a_task_fails_by_is_reported_as_without_a_cluster(records: Path, tmp_path: Path) -> None:
    said, steps = [], failing_step(tmp_path)
    for workers in (1, Cluster("slurm", 1)):
        with pytest.raises(UserError) as caught:
            prepare([records], tmp_path / "data", tokenizer=SMALL, preprocessing=steps, workers=workers)
        said.append((caught.value.sentence, caught.value.remedy))
    assert said[0] == said[1] and "failing.py' failed on document 1 of" in said[0][0]


class Strange(Exception):
    """Can be written down, but not read."""

    def __init__(self, one: str, two: str):
        super().__init__(one)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), OSError, "No space left"),
        (ZeroDivisionError("ours"), ZeroDivisionError, "ours"),
        (Strange("this", "that"), RuntimeError, "Strange: this"),
    ],
)
def test_other_errors_come_as_they_were(tmp_path: Path, error: Exception, kind: type[Exception], words: str) -> None:
    (tmp_path / ERRORS).mkdir()
    leave_error(tmp_path, "00000", error)
    with pytest.raises(kind, match=words) as caught:
        cluster._refuse_failed(tmp_path)
    assert getattr(caught.value, "errno", None) == getattr(error, "errno", None)


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / ERRORS).mkdir()
    write_task(partial(fill, tmp_path / "results"), tmp_path / TASK)
    plan = ClusterPlan(Cluster("slurm", 1), (0,), 1, str(tmp_path), os.getpid(), version="0.0")
    (tmp_path / PLAN).write_bytes(pickle.dumps(plan))
    with pytest.raises(WorkerLost, match=r"Daybreak is .* on the machine .*, and 0\.0 where the command was given"):
        Parts(tmp_path).run()
    assert not (tmp_path / "results").exists()


def test_the_number_of_a_job() -> None:
    assert job_number("Welcome!\nSubmitted batch job 71 on cluster east\n") == "71"
    with pytest.raises(ValueError, match="no job number"):
        job_number("Queued.")


@pytest.mark.parametrize(
    ("on", "workers", "slurm", "words"),
    [
        ("slrum", 2, Slurm(), "--on cannot be 'slrum'. Did you mean 'slurm'?"),
        ("ray", 0, Slurm(), "--on ray needs the number of tasks that may run at once. Set it with --workers."),
        ("ray", 2, Slurm(cpus=2), "The --slurm flags do not apply to --on ray."),
        ("local", 2, Slurm(partition="cpu"), "The --slurm flags do not apply to --on local. Add --on slurm"),
    ],
)
def test_what_cannot_be_meant(on: str, workers: int, slurm: Slurm, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        chosen_workers(on, workers, slurm)


def test_who_reads() -> None:
    assert chosen_workers("local", 0, Slurm()) == 0
    assert chosen_workers("slurm", 8, Slurm(cpus=4)) == Cluster("slurm", 8, Slurm(cpus=4))
    for wrong in ({"cpus": 0}, {"memory": -1}):
        with pytest.raises(UserError, match=r"Give --slurm\.(cpus|memory) 1 or more"):
            Slurm(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "lacking", "remedy"),
    [
        ("slurm", "datatrove", "pip install 'datatrove>=0.10'"),
        ("ray", "datatrove", "pip install 'datatrove>=0.10'"),
        ("ray", "ray", "pip install ray."),
        ("slurm", "", "Give the command on a login node."),
    ],
)
def test_what_is_not_there(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, lacking: str, remedy: str
) -> None:
    if lacking:
        monkeypatch.setitem(sys.modules, lacking, None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError) as caught:
        prepare([records], tmp_path / "data", tokenizer=SMALL, workers=Cluster(kind, 2))
    assert remedy in caught.value.remedy and left_over(tmp_path) == []
