"""The command: a model folder and tasks go in, results.json, a saved classifier and a new card come out."""

from __future__ import annotations

import errno
import io
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from daybreak.commands.evaluate import EvaluateOptions, evaluate
from daybreak.commands.options import parse
from daybreak.commands.report import report
from daybreak.core import terminal
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import REFUSED
from daybreak.core.task_pairs import pair_results
from daybreak.evaluation.finetuning.results import read_results
from daybreak.evaluation.model_source import find_model
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.evaluation.tasks.task_file import read_task_file
from daybreak.schemas.tasks import TaskResult

WriteTask = Callable[..., Path]
ROWS = [("sun", "a"), ("rain", "b")] * 20


def test_a_full_disk_at_the_last_copy_of_a_model_keeps_the_fine_tuning(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    asked: dict[str, Any] = {"seeds": 1, "out": tmp_path / "out", "save": tmp_path / "kept", "rows": 20, "epochs": 1}
    with monkeypatch.context() as disk, pytest.raises(UserError, match=r"kept' \(No space left on device\)"):
        disk.setattr("daybreak.evaluation.finetuning.task_evaluation.copy_files", full)
        evaluate(encoder, [str(weather)], **asked)
    assert not list(tmp_path.glob("*kept*"))
    evaluate(encoder, [str(weather)], **asked)
    assert (tmp_path / "kept" / "model.safetensors").is_file() and "were finished" in capsys.readouterr().out


def test_dev_rows_that_are_training_rows_are_told(
    encoder: Path, write_task: WriteTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = write_task(ROWS, [("sun", "a"), ("snow", "b")], name="leaky")
    evaluate(encoder, [str(task)], seeds=1, epochs=1, out=tmp_path / "out")
    assert "1 of 2 dev rows are also training rows" in " ".join(capsys.readouterr().out.split())
    task.write_text(task.read_text() + 'test = "leaky-train.tsv"\n')
    evaluate(encoder, [str(task)], seeds=1, epochs=1, out=tmp_path / "out")
    told = " ".join(capsys.readouterr().out.split())
    assert "40 of 40 test rows are also training rows" in told and re.search(r", test [01]\.\d{3}, ", told)


def test_numbers_that_are_all_equal_are_refused(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    task = write_task([("sun", "2.5"), ("rain", "2.5")], [("sun", "1")], 'kind = "regression"', name="flat")
    with pytest.raises(UserError, match=r"has the number 2\.5\. Give training rows of at least two numbers"):
        evaluate(encoder, [str(task)], seeds=1, epochs=1, out=tmp_path / "out")


def test_a_separable_task_is_learned_recorded_and_saved_as_a_stock_model(
    encoder: Path, weather: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    kept = tmp_path / "kept"
    results = evaluate(encoder, [str(weather)], seeds=2, out=tmp_path / "out", save=kept)
    (result,) = results
    assert result.mean > 0.9
    assert (result.task, result.model, result.metric, result.seeds) == ("weather", "pretrained", "accuracy", [0, 1])
    assert result.labels == ["rainy", "sunny"]
    assert (result.train_rows, result.dev_rows) == (640, 101)
    assert result.baseline == pytest.approx(50 / 101)
    assert result.settings["learning_rate"] == 5e-4
    assert result.settings["length"] == 64, "the model takes no more"
    assert read_json(tmp_path / "out/results.json", list[TaskResult]) == results
    said = capsys.readouterr().out
    assert "weather (pretrained): accuracy" in said and "+-" in said and "were finished" not in said
    assert f"Classifier: {kept}  (" in said and "trust_remote_code" not in said

    model = AutoModelForSequenceClassification.from_pretrained(kept).eval()
    tokenizer = AutoTokenizer.from_pretrained(kept)
    assert model.config.id2label == {0: "rainy", 1: "sunny"}
    assert model.config.problem_type == "single_label_classification"
    assert json.loads((kept / "tokenizer.json").read_text())["truncation"] is None
    data = load_task(read_task_file(weather))
    right = 0
    for (text,), target in zip(data.dev.texts, data.dev.targets):
        with torch.inference_mode():
            right += int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) == target
    assert right / len(data.dev) == result.scores["accuracy"][0]
    assert sorted(p.name for p in tmp_path.iterdir() if "kept" in p.name) == ["kept"], "nothing half-written stays"

    evaluate(str(encoder), str(weather), seeds=1, out=str(tmp_path / "out"))  # paths may be text, a task may be alone
    assert evaluate(encoder, [weather], seeds=1, out=tmp_path / "out")
    said = capsys.readouterr().out
    assert "all fine-tunings were finished (" in said and "1 seed," in said and "+-" not in said


def stock_encoder(encoder: Path, folder: Path, kind: str) -> Path:
    """A small encoder of another family, with weights of 16 bits and the toy tokenizer."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=200, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    damaged(encoder, folder, model__safetensors=None)
    getattr(transformers, f"{kind}ForMaskedLM")(config).half().save_pretrained(folder)
    return folder


def test_a_terminal_shows_that_the_fine_tunings_are_timed(
    encoder: Path, weather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "console", Console(file=screen, force_terminal=True, color_system=None))
    evaluate(encoder, [weather], seeds=1, epochs=1, rows=64, out=tmp_path / "out")
    assert screen.getvalue().index("Timing the fine-tunings") < screen.getvalue().index("1 fine-tuning: about")


def test_other_families_are_fine_tuned_and_stand_side_by_side(encoder: Path, weather: Path, tmp_path: Path) -> None:
    kinds = ["Bert", "Roberta", "DistilBert", "Electra", "DebertaV2"]
    for kind in kinds:
        folder = stock_encoder(encoder, tmp_path / kind, kind)
        (result,) = evaluate(folder, [str(weather)], seeds=1, epochs=1, rows=64, out=tmp_path / "out")
        assert all(math.isfinite(value) for values in result.scores.values() for value in values), kind
    assert [result.model_name for result in read_results(tmp_path / "out/results.json")] == kinds


def test_results_merge_by_protocol_task_and_model(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    one = write_task(ROWS, ROWS[:7], name="one")
    two = write_task(ROWS, ROWS[:8], 'test = "one-dev.tsv"', name="two")
    model = tmp_path / "model"
    shutil.copytree(encoder, model)
    evaluate(model, [str(one), str(two)], seeds=1, save=tmp_path / "kept")
    evaluate(model, [str(one)], seeds=1, untrained=True)
    evaluate(model, [str(one)], seeds=2)
    found = read_results(model / "results.json")
    assert [(r.task, r.model, len(r.seeds)) for r in found] == [
        ("two", "pretrained", 1),
        ("one", "untrained", 1),
        ("one", "pretrained", 2),
    ]
    assert set(found[0].scores) >= {"accuracy", "test_accuracy"}
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == ["one", "two"]


def test_two_models_of_one_name_share_a_folder(encoder: Path, weather: Path, tmp_path: Path) -> None:
    for place in ("a", "b"):
        shutil.copytree(encoder, tmp_path / place / "net")
    with (tmp_path / "b/net/config.json").open("a") as config:
        config.write(" ")  # another digest
    options: dict[str, Any] = {"epochs": 1, "rows": 20, "seeds": 1, "out": tmp_path / "out"}
    for place in ("a", "b", "a", "b"):
        evaluate(tmp_path / place / "net", [str(weather)], **options)
    names = [each.model_name for each in read_results(tmp_path / "out/results.json")]
    assert names[0] == "net" and re.fullmatch(r"net-[0-9a-f]{6}", names[1]) and len(names) == 2
    assert len(list((tmp_path / "out").rglob("*-seed-0.json"))) == 2


def test_results_on_corrected_labels_are_not_compared_with_older_ones(
    encoder: Path, weather: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"epochs": 1, "rows": 20, "seeds": 1, "out": tmp_path / "out"}
    evaluate(encoder, [str(weather)], **options, untrained=True)
    evaluate(encoder, [str(weather)], **options)
    assert len(pair_results(read_results(tmp_path / "out/results.json"))) == 1
    rows = tmp_path / "weather-train.tsv"
    rows.write_text(rows.read_text().replace("sunny", "rainy", 1))
    capsys.readouterr()
    evaluate(encoder, [str(weather)], **options)
    assert "was measured on other rows and is replaced" in " ".join(capsys.readouterr().out.split())
    assert [pair.gain for pair in pair_results(read_results(tmp_path / "out/results.json"))] == [None, None]
    report([tmp_path / "out"], tmp_path / "page.html")


def test_a_saved_classifier_is_not_fine_tuned_again(
    encoder: Path, weather: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved"
    options: dict[str, Any] = {"epochs": 1, "rows": 20, "seeds": 1, "out": tmp_path / "out", "save": saved}
    evaluate(encoder, [str(weather)], **options)
    time = (saved / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    evaluate(encoder, [str(weather)], **options)
    assert "all fine-tunings were finished" in capsys.readouterr().out
    assert (saved / "model.safetensors").stat().st_mtime_ns == time
    (saved / "NOTES.txt").write_text("mine")
    with pytest.raises(UserError, match=r"an earlier classifier and 'NOTES\.txt', which would be deleted"):
        evaluate(encoder, [str(weather)], **options)
    (saved / "NOTES.txt").unlink()
    other = weather.with_name("other.toml")
    other.write_text(weather.read_text().replace('name = "weather"', 'name = "other"'))
    with pytest.raises(UserError, match="holds the classifier of the task 'weather'"):
        evaluate(encoder, [str(other)], **options)
    evaluate(encoder, [str(weather)], **{**options, "rows": 24})
    assert (saved / "model.safetensors").stat().st_mtime_ns > time


def test_a_model_keeps_its_name_and_its_fine_tunings_after_its_folder_was_renamed(
    encoder: Path, weather: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, options = Path(shutil.copytree(encoder, tmp_path / "old")), {"epochs": 1, "rows": 20, "seeds": 1}
    evaluate(model, [str(weather)], **options)
    moved = model.rename(tmp_path / "new")
    evaluate(moved, [str(weather)], **options, untrained=True)
    capsys.readouterr()
    evaluate(moved, [str(weather)], **options)
    assert "all fine-tunings were finished" in capsys.readouterr().out
    assert [(each.model_name, each.model) for each in read_results(moved / "results.json")] == [
        ("old", "pretrained"),
        ("old", "untrained"),
    ]
    evaluate(moved, [str(weather)], **options, out=tmp_path / "both")
    assert [each.model_name for each in read_results(tmp_path / "both/results.json")] == ["new"]


def test_a_run_folder_gets_results_and_a_new_card(encoder: Path, weather: Path, write_run: Callable[..., Path]) -> None:
    run = write_run()
    shutil.copytree(encoder, run / "model", dirs_exist_ok=True)
    before = len(read_results(run / "results.json"))
    (result,) = evaluate(run, [str(weather)], seeds=1, epochs=1, rows=64)
    assert len(read_results(run / "results.json")) == before + 1
    assert not (run / "model/results.json").exists()
    rows = [line for line in (run / "model/README.md").read_text().splitlines() if "weather" in line]
    assert any(f"{100 * result.mean:.1f}" in row or f"{result.mean:.2f}" in row for row in rows)


def test_a_run_without_a_model_is_refused(write_run: Callable[..., Path], weather: Path) -> None:
    with pytest.raises(UserError, match="has no model yet"):
        evaluate(write_run(ended=False), [str(weather)])


def test_a_model_that_the_parity_check_refused_is_named(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(encoder, folder)
    find_model(folder)
    assert capsys.readouterr().out == ""
    (folder / REFUSED).write_text("the logits differ")
    find_model(folder)
    assert "failed its parity check" in " ".join(capsys.readouterr().out.split())


def damaged(encoder: Path, folder: Path, **files: str | None) -> Path:
    """A copy of the encoder's folder in which some files have other contents, or are gone."""
    shutil.copytree(encoder, folder)
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.unlink() if text is None else path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"config__json": None}, "is not a model folder: it has no config.json"),
        ({"config__json": "{"}, "cannot load the config"),
        ({"config__json": '{"model_type": "nonesuch"}'}, "cannot load the config"),
        ({"model__safetensors": None}, "cannot load the model"),
        ({"model__safetensors": "torn"}, "but its weights are 4 bytes"),
        ({"tokenizer__json": None}, "holds no tokenizer"),
        ({"tokenizer__json": "{"}, "cannot load the tokenizer"),
    ],
)
def test_folders_that_are_no_model(
    encoder: Path, weather: Path, tmp_path: Path, files: dict[str, str | None], fault: str
) -> None:
    folder = damaged(encoder, tmp_path / "model", **files)
    with pytest.raises(UserError) as caught:
        evaluate(folder, [str(weather)], seeds=1)
    assert fault in caught.value.sentence
    assert caught.value.remedy
    assert not (folder / "results.json").exists()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"model": "nowhere"}, "There is no model folder"),
        ({"protocol": "quik"}, "There is no protocol 'quik'. Did you mean 'quick'?"),
        ({"seeds": 0}, "0 seeds are too few"),
        ({"seeds": 10**9}, "1000000000 seeds are too many"),
        ({"seeds": "3"}, "seeds is '3', which is no whole number"),
        ({"epochs": 1.5}, "epochs is 1.5, which is no whole number"),
        ({"epochs": 0}, "0 epochs are too few"),
        ({"rows": -1}, "-1 training rows are too few"),
        ({"rate": float("nan")}, "learning rate nan is out of range"),
        ({"tasks": ["sci-cite"]}, "needs the files of SciBERT, and no folder was given"),
        ({"tasks": []}, "No task was named"),
        ({"tasks": ["colla"]}, "There is no task 'colla'. Did you mean 'cola'?"),
        ({"tasks": ["my rows.csv"]}, "'my rows.csv' is a table, not a task"),
        ({"tasks": ["glue5"]}, "needs the files of GLUE, and no folder was given"),
        ({"tasks": ["nowhere.toml"]}, "Cannot read the task file 'nowhere.toml'"),
        ({"out": "file"}, "is not a folder"),
        ({"out": "file/below"}, "is not a folder"),
        ({"save": "full"}, "is not empty and holds no classifier saved by this version"),
        ({"save": "file"}, "is not a folder"),
        ({"out": "here", "save": "here"}, "contains results"),
    ],
)
def test_bad_input_is_refused_before_any_training(
    encoder: Path, weather: Path, tmp_path: Path, change: dict[str, object], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("kept")
    monkeypatch.setattr("daybreak.evaluation.finetuning.task_evaluation.TaskEvaluation", None)
    arguments = {"model": encoder, "tasks": [str(weather)], "out": tmp_path / "out", **change}
    for name in {"model", "out", "save"} & set(change):
        arguments[name] = tmp_path / str(change[name])
    with pytest.raises(UserError) as caught:
        evaluate(**arguments)  # type: ignore[arg-type]
    assert fault in caught.value.sentence
    assert caught.value.remedy
    assert (tmp_path / "full/letter.txt").read_text() == "kept"


def test_commas_separate_tasks_and_may_be_in_the_path_of_one(tmp_path: Path) -> None:
    mine = str(tmp_path / "bills, old.toml")
    Path(mine).touch()
    for typed, names in ((mine, (mine,)), ("cola, rte,", ("cola", "rte")), ("a.toml,b.toml", ("a.toml", "b.toml"))):
        assert parse(EvaluateOptions, "evaluate", ["model", "--tasks", typed]).tasks == names


def test_two_tasks_of_one_name_are_refused(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    tasks = [write_task(ROWS, ROWS, 'name = "same"', name=name) for name in ("one", "two")]
    with pytest.raises(UserError, match="Two tasks have the name 'same'"):
        evaluate(encoder, [str(task) for task in tasks], out=tmp_path)
