"""results.json: what is new takes the place of what is older, also where nobody can hold the file alone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from daybreak.core.files import read_json, write_json
from daybreak.core.serialization import to_dict
from daybreak.evaluation.finetuning.results import merge_result, read_results
from daybreak.schemas.tasks import FinetuningRun, TaskResult


def scored(task: str, score: float) -> TaskResult:
    return TaskResult(
        protocol="quick", task=task, model="pretrained", model_name="mini", kind="classification", metric="accuracy",
        scores={"accuracy": [score]}, seeds=[0], mean=score, spread=0.0, selection="", train_rows=10, dev_rows=10,
        baseline=0.5, settings={}, seconds=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("locks", [True, False])
def test_a_newer_result_takes_the_place_of_the_older(
    locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if not locks:  # as on some file systems of clusters
        monkeypatch.setattr("fcntl.flock", refuse)
    path = tmp_path / "results.json"
    for result in (scored("cola", 0.6), scored("rte", 0.7), scored("cola", 0.8)):
        merge_result(path, result)
    assert [(result.task, result.mean) for result in read_results(path)] == [("rte", 0.7), ("cola", 0.8)]


def test_a_damaged_file_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    path.write_text('[{"task": "cola"}]')
    assert read_results(path) == [] and not path.exists()
    assert (tmp_path / "results.json.damaged").read_text() == '[{"task": "cola"}]'
    assert "finished fine-tunings are reused" in capsys.readouterr().out


def test_names_of_earlier_versions_are_read(tmp_path: Path) -> None:
    old = to_dict(scored("cola", 0.6)) | {"scores": {"accuracy": [0.6], "surprise": [0.5], "test_surprise": [0.4]}}
    write_json(tmp_path / "results.json", [old])
    (result,) = read_results(tmp_path / "results.json")
    assert list(result.scores) == ["accuracy", "nll", "test_nll"]
    run = {
        "fingerprint": "f", "protocol": "quick", "task": "cola", "model": "pretrained", "model_name": "mini",
        "epochs": 1, "learning_rate": 1e-3, "batch": 16, "seed": 0, "scores": {"surprise": 0.5}, "threads": 1,
        "judged": {"dev": [[0.0, 1.0]]}, "hidden": {"CoLA": [1.0]}, "hidden_rows": "d", "seconds": 1.0,
    }  # fmt: skip
    write_json(tmp_path / "run.json", run)
    read = read_json(tmp_path / "run.json", FinetuningRun)
    assert (read.scores, read.scored_rows) == ({"nll": 0.5}, {"dev": [[0.0, 1.0]]})
    assert (read.predictions, read.unlabelled_digest) == ({"CoLA": [1.0]}, "d")
