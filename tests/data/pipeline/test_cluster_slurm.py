"""Parts as job arrays: the same shards as here. Slurm is a stand-in, whose tasks are processes of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import fake_slurm
import pytest
from fake_clusters import SMALL, hurry, kill_on_the_way, parts_of
from needs import takes_long
from small_texts import Contents, contents, left_over

from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.data.pipeline import cluster
from daybreak.data.pipeline.cluster import Cluster, Slurm, end_earlier
from daybreak.data.pipeline.workers import WorkerLost


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the jobs of a stand-in for Slurm; none of them may be left at work."""
    hurry(monkeypatch)
    made = fake_slurm.install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{tmp_path / 'slurm' / 'bin'}:{os.environ['PATH']}")
    yield made
    assert [job.name for job in made.iterdir() if not (job / "ended").exists()] == []


def test_slurm_prepares_the_same(
    records: Path, as_here: Contents, tmp_path: Path, jobs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = Slurm(partition="cpu", time="00:10:00", memory=2, setup=f"touch '{tmp_path}/setup'")
    prepare([records], tmp_path / "my data", tokenizer=SMALL, workers=Cluster("slurm", 2, given))
    assert contents(tmp_path / "my data") == as_here
    first, second = (fake_slurm.directives(job) for job in sorted(jobs.iterdir()))
    assert first.keys() == second.keys(), "and there is no third job"
    assert set(fake_slurm.states(jobs / "7")) == {"COMPLETED"}, "a task that has nothing left to do ends by itself"
    asked = {"partition": "cpu", "time": "00:10:00", "mem-per-cpu": "2G", "cpus-per-task": "1", "array": "0-1%2"}
    assert asked.items() <= first.items() and "qos" not in first and "requeue" in first
    assert (tmp_path / "setup").exists() and left_over(tmp_path) == []
    told = "".join(capfd.readouterr())
    assert "Slurm's job 7: " in told and "datatrove" not in told, told


def test_tasks_that_end_without_a_word(records: Path, as_here: Contents, tmp_path: Path, jobs: Path) -> None:
    dying = Cluster("slurm", 2, Slurm(setup="kill -9 $$"))
    with pytest.raises(WorkerLost) as caught:
        prepare([records], tmp_path / "data", tokenizer=SMALL, workers=dying)
    parts = len(parts_of(records))
    sentence = f"Slurm's job 7 has ended, and {parts} of {parts} parts are missing (2 FAILED)."
    assert caught.value.sentence == sentence
    unset = {"partition", "time", "mem-per-cpu", "qos"}
    assert fake_slurm.directives(jobs / "7").keys().isdisjoint(unset), "what is not set is left to the cluster"
    logs = re.search(r"See its logs in '(.+?)'", caught.value.remedy)
    assert logs and len(list(Path(logs[1]).glob("slurm_logs/*.out"))) == 2
    prepare([records], tmp_path / "data", tokenizer=SMALL, workers=1)  # goes on, here as there
    assert contents(tmp_path / "data") == as_here and left_over(tmp_path) == []


def test_what_slurm_refuses_is_reported_in_its_words(records: Path, tmp_path: Path) -> None:
    nowhere = Cluster("slurm", 2, Slurm(partition="nowhere"))
    with pytest.raises(WorkerLost) as caught:
        prepare([records], tmp_path / "data", tokenizer=SMALL, workers=nowhere)
    words = "sbatch refuses the job: Batch job submission failed: Invalid partition name specified."
    assert caught.value.sentence == words and "--slurm" in caught.value.remedy


@takes_long
def test_who_waits_is_killed_and_the_same_command_goes_on(
    records: Path, tmp_path: Path, jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preprocessing = kill_on_the_way(records, tmp_path, "slurm", 0.01)
    assert not (jobs / "7" / "ended").exists(), "the job does not know of it"
    prepare([records], tmp_path / "data", tokenizer=SMALL, preprocessing=preprocessing, workers=Cluster("slurm", 2))
    assert "CANCELLED by 0" in fake_slurm.states(jobs / "7")
    told = capsys.readouterr().out
    first = re.search(r"Slurm's job \d+: (\d+) parts", told)
    assert "Resuming the interrupted preparation" in told and first and int(first[1]) <= len(parts_of(records)) - 3
    (tmp_path / "delay").write_text("0")
    prepare([records], tmp_path / "here", tokenizer=SMALL, preprocessing=preprocessing, workers=1)
    assert contents(tmp_path / "data") == contents(tmp_path / "here")
    assert left_over(tmp_path) == []


def test_ctrl_c_ends_the_job(records: Path, tmp_path: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(folder: Path) -> None:
        if any(jobs.iterdir()):
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "_refuse_failed", pressed)
    waiting = Cluster("slurm", 1, Slurm(setup="sleep 100"))
    with pytest.raises(KeyboardInterrupt):
        prepare([records], tmp_path / "data", tokenizer=SMALL, workers=waiting)
    assert fake_slurm.states(jobs / "7") == ["CANCELLED by 0"]
    assert not list(tmp_path.glob(".data.preparing/*/tasks-*/job")), "nothing is left to end"


def test_a_job_that_cannot_be_ended_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "END_SECONDS", 0.1)
    monkeypatch.setenv("PATH", "")  # nobody answers
    note = tmp_path / "identity" / "tasks-1" / "job"
    note.parent.mkdir(parents=True)
    note.write_text("12")
    with pytest.raises(UserError, match=r"Slurm's job 12 of an earlier attempt may still be running\. End it"):
        end_earlier(tmp_path)
    assert note.exists()
