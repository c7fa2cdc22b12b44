"""results.json: what is new takes the place of what is older, also where nobody can hold the file alone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from small_tasks import result, run

from daybreak.core.files import read_json, write_json
from daybreak.core.serialization import to_dict
from daybreak.evaluation.finetuning.results import merge_result, read_results
from daybreak.schemas.tasks import FinetuningRun, TaskResult


def scored(task: str, score: float) -> TaskResult:
    return result(task, {"accuracy": [score]})


def test_results_of_earlier_weights_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    old = [
        result("cola", {"mcc": [0.6]}, weights="old"),
        result("cola", {"mcc": [0.1]}, weights="old", model="untrained"),
        result("rte", {"accuracy": [0.7]}),
        result("rte", {"accuracy": [0.7]}, model_name="b", weights="other"),
    ]
    for each in old:
        merge_result(path, each)
    assert capsys.readouterr().out == ""
    new = result("sst2", {"accuracy": [0.8]}, weights="new")
    merge_result(path, new)
    assert read_results(path) == [*old[1:], new]
    assert "its earlier results are no longer in 'results.json' (cola under quick)" in capsys.readouterr().out


@pytest.mark.parametrize("locks", [True, False])
def test_a_newer_result_takes_the_place_of_the_older(
    locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if not locks:  # as on some file systems of clusters
        monkeypatch.setattr("fcntl.flock", refuse)
    path = tmp_path / "results.json"
    for each in (scored("cola", 0.6), scored("rte", 0.7), scored("cola", 0.8)):
        merge_result(path, each)
    assert [(each.task, each.mean) for each in read_results(path)] == [("rte", 0.7), ("cola", 0.8)]


def test_a_damaged_file_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    path.write_text('[{"task": "cola"}]')
    assert read_results(path) == [] and not path.exists()
    assert (tmp_path / "results.json.damaged").read_text() == '[{"task": "cola"}]'
    assert "finished fine-tunings are reused" in capsys.readouterr().out


def test_files_of_earlier_versions_are_read_and_kept(tmp_path: Path) -> None:
    path, new = tmp_path / "results.json", scored("cola", 0.6)
    old = to_dict(new) | {"scores": {"accuracy": [0.6], "surprise": [0.5], "test_surprise": [0.4]}}
    later = "model_name weights test_rows mismatched_rows leaked_rows labels settings_tried".split()
    later += "bag_of_words bag_of_words_rows lead combined combined_lead".split()
    write_json(path, [{name: value for name, value in old.items() if name not in later}])
    merge_result(path, new)
    found, kept = read_results(path)
    assert (found.model_name, list(found.scores)) == ("", ["accuracy", "nll", "test_nll"]) and kept == new
    assert (found.bag_of_words, found.bag_of_words_part) == ({}, "")
    assert found.best_baseline == ("constant answer", 0.5)
    former = {"judged": {"dev": [[0.0, 1.0]]}, "hidden": {"CoLA": [1.0]}, "hidden_rows": "d"}
    names = ("scored_rows", "predictions", "unlabeled_digest")
    told = {name: value for name, value in to_dict(run(scores={})).items() if name not in names}
    write_json(tmp_path / "run.json", told | former | {"scores": {"surprise": 0.5}})
    read = read_json(tmp_path / "run.json", FinetuningRun)
    assert (read.scores, read.scored_rows) == ({"nll": 0.5}, {"dev": [[0.0, 1.0]]})
    assert (read.predictions, read.unlabeled_digest) == ({"CoLA": [1.0]}, "d")
