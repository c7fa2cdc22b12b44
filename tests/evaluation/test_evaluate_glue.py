"""The command on GLUE's own files: a submission that the checker takes, averages where they are complete, all rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from daybreak.commands.evaluate import evaluate, forecast_evaluation
from daybreak.core.errors import UserError
from daybreak.core.files import write_json
from daybreak.evaluation.finetuning.results import read_results
from daybreak.evaluation.glue_server.submission import FILES, check
from daybreak.evaluation.model_source import find_tasks
from daybreak.schemas.tasks import TaskResult

WriteTask = Callable[..., Path]


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """CoLA with a test file as long as the server's, its rows by turns like the acceptable and the other ones."""
    folder = tmp_path / "glue/CoLA"
    folder.mkdir(parents=True)
    good, bad = "the sun was warm", "rain the cold was"
    rows = "".join(f"gj04\t{i % 2}\t\t{good if i % 2 else bad}\n" for i in range(200))
    (folder / "train.tsv").write_text(rows)
    (folder / "dev.tsv").write_text(rows[: len(rows) // 4].rpartition("\n")[0] + "\n")
    hidden = "".join(f"{i}\t{good if i % 3 else bad}\n" for i in range(FILES["CoLA"].rows))
    (folder / "test.tsv").write_text("index\tsentence\n" + hidden)
    return folder.parent


def test_a_submission_answers_row_by_row_and_passes_the_check(
    encoder: Path, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "upload"
    (result,) = evaluate(encoder, ["cola"], task_dir=glue, seeds=2, out=tmp_path, workers=1, submission=folder)
    assert result.mean == 1.0
    assert check(folder) == check(folder / "submission.zip") == []
    lines = (folder / "CoLA.tsv").read_text().splitlines()
    assert lines == ["index\tprediction", *(f"{i}\t{int(i % 3 > 0)}" for i in range(FILES["CoLA"].rows))]
    told = capsys.readouterr().out
    assert "the best of 2 on dev" in told
    assert "WNLI.tsv is filler" in told
    assert "CoLA.tsv is filler" not in told


def test_a_submission_without_answers_or_with_two_is_refused_before_any_work(
    encoder: Path, weather: Path, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = tmp_path / "upload"
    with pytest.raises(UserError, match="None of these tasks has a GLUE test file"):
        evaluate(encoder, [str(weather)], out=tmp_path, submission=upload)
    (cola,) = find_tasks(["cola"], glue)
    part = replace(cola, name="cola-part", family="cola")
    monkeypatch.setattr("daybreak.evaluation.model_source.find_tasks", lambda *_: [cola, part])
    with pytest.raises(UserError, match="Both cola and cola-part predict the test file of cola"):
        evaluate(encoder, ["cola", "cola-part"], task_dir=glue, out=tmp_path, submission=upload)
    monkeypatch.undo()
    test = glue / "CoLA/test.tsv"
    test.write_text("".join(test.read_text().splitlines(keepends=True)[:9]))
    with pytest.raises(UserError, match=r"CoLA\.tsv takes 1,063 answers, and 8 are there"):
        evaluate(encoder, ["cola"], task_dir=glue, out=tmp_path, submission=upload)
    shutil.copy(glue / "CoLA/test.tsv", upload_file := glue / "CoLA/CoLA.tsv")
    monkeypatch.setattr("daybreak.evaluation.model_source.find_tasks", lambda *_: [replace(cola, dev=upload_file)])
    with pytest.raises(UserError, match=r"The submission would replace '.*CoLA\.tsv', a file of cola"):
        evaluate(encoder, ["cola"], task_dir=glue, out=tmp_path, submission=glue / "CoLA")
    assert not upload.exists() and not (tmp_path / "cells").exists()


def test_an_average_is_said_when_its_last_task_comes(
    encoder: Path, glue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven of the eight tasks stand in the file already; the call brings CoLA."""
    (cola,) = evaluate(encoder, ["cola"], task_dir=glue, seeds=1, out=tmp_path, workers=1)
    assert "Average" not in capsys.readouterr().out
    names = ("accuracy", "f1", "pearson", "spearman", "mismatched_accuracy")
    told = vars(cola) | {"scores": {name: [0.5] for name in names}, "metric": "accuracy"}
    others = [TaskResult(**(told | {"task": task})) for task in "sst2 mrpc stsb qqp mnli qnli rte".split()]
    write_json(tmp_path / "results.json", others)
    evaluate(encoder, ["cola"], task_dir=glue, seeds=1, out=tmp_path, workers=1)
    said = capsys.readouterr().out
    mean_of_nine, mean_of_eight = 100 * (8 * 0.5 + cola.mean) / 9, 100 * (7 * 0.5 + cola.mean) / 8
    assert f"Average as in cramming (pretrained): {mean_of_nine:.1f}, mean of 9 numbers" in said
    assert f"Average as in electra (pretrained): {mean_of_eight:.1f}, mean of 8 numbers" in said
    assert "leaderboard" not in said, "WNLI is not there"
    assert len(read_results(tmp_path / "results.json")) == 8


def test_a_task_without_its_start_is_refused_before_pretraining(encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "RTE").mkdir()
    rows = "".join(f"{i}\tthe sun\tthe rain\t{('', 'not_')[i % 2]}entailment\n" for i in range(9))
    for part in ("train", "dev"):
        (tmp_path / f"RTE/{part}.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
    with pytest.raises(UserError, match="rte starts from a model that learned mnli"):
        forecast_evaluation(encoder, ["rte"], task_dir=tmp_path, protocol="transfer", seeds=1)
