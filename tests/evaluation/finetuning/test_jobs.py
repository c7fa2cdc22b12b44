"""A cell is filled once, and again as soon as anything that decides its numbers is another."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from small_tasks import evaluation_of

from daybreak.core.files import read_json, write_json
from daybreak.evaluation.finetuning import fingerprints, jobs
from daybreak.evaluation.finetuning.fingerprints import fingerprint, model_digest, task_digest, unlabeled_digest
from daybreak.evaluation.finetuning.jobs import FinetuningJob, run_job
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.protocols.protocol import Own, Protocol, Setting
from daybreak.evaluation.tasks.task import Task, UnlabeledFile
from daybreak.evaluation.tasks.task_file import read_task_file

PROTOCOL = PROTOCOLS["quick"].changed(epochs=1, rows=32)
ROWS = [("sun", "a"), ("rain", "b")] * 10


@pytest.fixture
def model(encoder: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(encoder, tmp_path / "model")


@pytest.fixture
def task(write_task: Callable[..., Path]) -> Task:
    return read_task_file(write_task(ROWS, ROWS[:7]))


def job_of(model: Path, task: Task, **changes: object) -> FinetuningJob:
    return evaluation_of(model, task, model.parent / "cells", protocol=PROTOCOL, **changes).all_jobs()[0]


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text("utf-8")), "utf-8")


def test_a_filled_cell_is_read_and_not_filled_again(model: Path, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(model, task)
    cell = run_job(job)
    written = job.file.stat().st_mtime_ns
    monkeypatch.setattr(jobs, "fine_tune", None)
    again = run_job(job_of(model, task))
    assert job.file.stat().st_mtime_ns == written
    assert (again.scores, again.seconds, again.threads) == (cell.scores, cell.seconds, 1)
    assert again.scored_rows == cell.scored_rows


def test_scores_can_be_counted_again_from_the_file(model: Path, task: Task) -> None:
    cell = run_job(job_of(model, task))
    kind = jobs.kind_of(task)
    assert kind.score(np.array(cell.scored_rows["dev"]), ["a", "b"]) == pytest.approx(cell.scores, abs=1e-5)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_another_model_makes_a_cell_unusable(model: Path, task: Task, name: str) -> None:
    run_job(job_of(model, task))
    (model / "README.md").write_text("a card decides nothing")
    (model / "results.json").write_text("[]")
    (model / "train_budget_hours_2.json").write_text("{}")
    assert job_of(model, task).finished() is not None
    with (model / name).open("ab") as file:
        file.write(b" ")
    assert job_of(model, task).finished() is None


def test_weights_that_are_not_used_decide_nothing(model: Path) -> None:
    before = model_digest(model, random=True)
    (model / "model.safetensors").write_bytes(b"others")
    assert model_digest(model, random=True) == before
    (model / "config.json").write_text("{}")
    assert model_digest(model, random=True) != before


def test_the_part_that_a_file_is_counts(task: Task) -> None:
    digests = {
        task_digest(task),
        task_digest(replace(task, dev=task.train, train=task.dev or task.train)),
        task_digest(replace(task, dev=None, test=task.dev)),
        task_digest(replace(task, dev=None, mismatched=task.dev)),
    }
    assert len(digests) == 4
    assert task_digest(replace(task, name="other", metric="f1", family="cola")) == task_digest(task)


def test_unlabeled_files_count_for_themselves_alone(task: Task) -> None:
    files = [
        UnlabeledFile("A", task.train, ("text0",)),
        UnlabeledFile("A", task.train, ("label",)),
        UnlabeledFile("B", task.train, ("text0",)),
        UnlabeledFile("A", task.dev or task.train, ("text0",)),
    ]
    asked = [replace(task, unlabeled=(file,)) for file in files]
    assert len({unlabeled_digest(task), *map(unlabeled_digest, asked)}) == 5
    assert {task_digest(each) for each in asked} == {task_digest(task)}


DECIDING = {
    "train_rows": 31, "length": 99, "warmup": 0.2, "weight_decay": 0.5, "max_grad_norm": None, "dropout": 0.3,
    "frozen": True,
    "shape": "cosine", "betas": (0.9, 0.98), "eps": 1e-6, "layer_decay": ((0, 0.9),), "drop_last": True,
    "heads": (("pair", "segments"),), "distillation": (("pair", 0.5),), "precision": "fast",
}  # fmt: skip
TOLD = {
    "name": "other", "epochs": (7,), "batch": 99, "rates": ((0, (1.0,)),), "own": (("rte", Own(epochs=9)),),
    "reported": "test", "selection": "shortest", "starts": (("rte", "mnli"),), "seeds": 9,
}  # fmt: skip


def test_a_protocol_counts_by_what_decides_numbers_and_no_further() -> None:
    assert {*DECIDING, *TOLD} == {field.name for field in dataclasses.fields(Protocol)}, "say which kind a new one is"

    def of(**changes: object) -> str:
        protocol = replace(PROTOCOL, **changes)  # type: ignore[arg-type]
        return fingerprint("model", "rows", protocol, Setting(1, 5e-4, 16), 0, False)

    for name, value in TOLD.items():
        assert of(**{name: value}) == of(), name
    assert len({of(), *(of(**{name: value}) for name, value in DECIDING.items())}) == len(DECIDING) + 1


def test_setting_seed_model_and_software_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(
        model: str = "m", epochs: int = 1, rate: float = 5e-4, batch: int = 16, seed: int = 0, un: bool = False
    ) -> str:
        return fingerprint(model, "rows", PROTOCOL, Setting(epochs, rate, batch), seed, un)

    assert len({of(), of("n"), of(epochs=2), of(rate=1e-4), of(batch=8), of(seed=1), of(un=True)}) == 7
    before = of()
    monkeypatch.setattr(torch, "__version__", "99")
    other_torch = of()
    monkeypatch.setattr(fingerprints, "__version__", "99")
    assert len({before, other_torch, of()}) == 3


def test_soft_targets_count_with_the_bag_of_words_and_its_metric(
    model: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(protocol: str, metric: str = "accuracy") -> str:
        changed = replace(task, metric=metric)
        evaluation = evaluation_of(model, changed, model.parent / "cells", protocol=PROTOCOLS[protocol])
        return evaluation.all_jobs()[0].fingerprint

    small, distilled = of("small"), of("distilled")
    assert of("small", "f1") == small and of("distilled", "f1") != distilled
    monkeypatch.setattr(fingerprints, "VERSION", 99)
    other_words = of("distilled")
    monkeypatch.setattr("sklearn.__version__", "99")
    assert len({distilled, other_words, of("distilled")}) == 3 and of("small") == small


DAMAGES: list[Callable[[str], str]] = [
    lambda text: text[: len(text) // 2],
    lambda text: "",
    lambda text: "[]",
    lambda text: "null",
    lambda text: text.replace('"scored_rows":{', '"scored_rows":{"test":5,'),
    lambda text: text.replace('"scores":{', '"scores":[{').replace('},"scored_rows"', '}],"scored_rows"'),
    lambda text: text.replace('"threads":1', '"threads":"one"'),
    lambda text: text.replace('"fingerprint":"', '"fingerprint":"0'),
]


def test_a_torn_or_changed_file_is_filled_again(model: Path, task: Task) -> None:
    job = job_of(model, task)
    cell = run_job(job)
    whole = job.file.read_text("utf-8")
    for number, damage in enumerate(DAMAGES):
        job.file.write_text(damage(whole), "utf-8")
        assert damage(whole) != whole and job.finished() is None, number
    assert run_job(job).scores == cell.scores
    assert job.finished() is not None


def test_answers_for_a_submission_are_made_when_they_are_asked_for(model: Path, task: Task) -> None:
    unlabeled = task.train.with_name("hidden.tsv")
    unlabeled.write_text("index\ttext0\n0\tsun sun\n1\train\n2\t\n")
    task = replace(task, unlabeled=(UnlabeledFile("W", unlabeled, ("text0",)),))
    without = run_job(job_of(model, task))
    assert without.predictions == {}
    job = job_of(model, task, unlabeled=True)
    assert job.finished() is None
    assert len(run_job(job).predictions["W"]) == 3
    assert job_of(model, task).finished() is not None, "more than is asked for is enough"


def test_a_cell_whose_model_is_wanted_has_it_beside_it(model: Path, task: Task) -> None:
    job = job_of(model, task)
    cell = run_job(job)
    kept = job.keeping_model()
    assert kept.finished() is None
    assert run_job(kept).scores == cell.scores
    assert kept.keep is not None and (kept.keep / "model.safetensors").is_file()
    assert kept.finished() is not None


def test_a_job_repeated_for_its_model_computes_with_as_many_threads(
    model: Path, task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number decides the order of sums, and another command may have fewer workers with more threads."""
    threads: list[int] = []
    job = job_of(model, task)
    run_job(job)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    run_job(replace(job, threads=job.threads + 1).keeping_model())
    assert threads[0] == job.threads and "as in the results" not in capsys.readouterr().out


def test_a_job_repeated_for_its_model_has_the_scores_of_the_cell(
    model: Path, task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another machine may compute other scores, which stand in no cell."""
    job = job_of(model, task)
    run_job(job)
    other = {name: 0.125 for name in read_json(job.file)["scores"]}
    write_json(job.file, {**read_json(job.file), "scores": other})
    assert run_job(job.keeping_model()).scores == other == read_json(job.file)["scores"]
    assert "and not 12.5 as in the results" in capsys.readouterr().out
    job.file.unlink()

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("daybreak.evaluation.finetuning.jobs.save_classifier", full)
    with pytest.raises(SafetensorError):
        run_job(job.keeping_model())
    assert job.finished() is not None  # only the model has to be made again
