"""The command predict: its answers to the dev rows have the scores that evaluate recorded."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr

from daybreak.commands.evaluate import evaluate
from daybreak.commands.predict import predict
from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.evaluation.tasks.task_file import read_task_file

WriteTask = Callable[..., Path]


def write_new_rows(path: Path, task: Path) -> tuple[Path, list[Any]]:
    """The texts of the dev rows as a table without labels, and the targets."""
    data = load_task(read_task_file(task))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([data.task.text, *data.dev.texts])
    return path, data.dev.targets


@pytest.mark.parametrize("protocol", ["quick", "distilled"])
def test_labels_are_those_of_evaluate(encoder: Path, weather: Path, tmp_path: Path, protocol: str) -> None:
    saved = tmp_path / "saved"
    options: dict[str, Any] = {"epochs": 1, "rows": 100, "seeds": 1, "workers": 1}
    (result,) = evaluate(encoder, [str(weather)], protocol=protocol, out=tmp_path / "out", save=saved, **options)
    rows, targets = write_new_rows(tmp_path / "new.csv", weather)
    for together, expected in ((False, result.scores["accuracy"][0]), (True, result.combined[0])):
        out = tmp_path / "new" / f"predictions-{together}.csv"
        found = predict(saved, rows, weather, out=out, bag_of_words=together)
        with out.open(newline="", encoding="utf-8") as file:
            read = list(csv.DictReader(file))
        assert [row["label"] for row in read] == [row["label"] for row in found]
        assert [float(row["probability"]) for row in read] == [row["probability"] for row in found]
        right = [result.labels.index(row["label"]) == target for row, target in zip(found, targets, strict=True)]
        assert sum(right) / len(right) == pytest.approx(expected)
        assert all(0.5 <= row["probability"] <= 1 for row in found)


def test_numbers_are_those_of_evaluate(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    rows = [
        (f"sun {'warm ' * (n % 4)}", f"rain {'cold ' * (n % 3)}", str((n % 4) * (n % 3) + n % 5)) for n in range(80)
    ]
    task, saved = write_task(rows, rows[:30], 'kind = "regression"', name="degrees"), tmp_path / "saved"
    (result,) = evaluate(encoder, [str(task)], protocol="small", seeds=1, out=tmp_path / "out", save=saved, workers=1)
    new, targets = write_new_rows(tmp_path / "new.csv", task)
    for together, expected in ((False, result.scores["spearman"][0]), (True, result.combined[0])):
        found = predict(saved, new, task, out=tmp_path / "out.csv", bag_of_words=together)
        assert spearmanr([row["prediction"] for row in found], targets).statistic == pytest.approx(expected, abs=2e-3)
        assert all(math.isfinite(row["prediction"]) for row in found)


def test_small_numbers_keep_their_digits(encoder: Path, write_task: WriteTask, tmp_path: Path) -> None:
    rows = [(f"sun {'warm ' * (n % 4)}", str((1 + n % 4) * 1e-8)) for n in range(40)]
    task, saved = write_task(rows, rows[:20], 'kind = "regression"', name="small"), tmp_path / "saved"
    (result,) = evaluate(encoder, [str(task)], protocol="small", seeds=1, out=tmp_path / "out", save=saved, workers=1)
    new, targets = write_new_rows(tmp_path / "new.csv", task)
    found = [row["prediction"] for row in predict(saved, new, task, out=tmp_path / "out.csv")]
    assert spearmanr(found, targets).statistic == pytest.approx(result.combined[0], abs=2e-3)
    assert result.combined[0] > 0.5


def test_rows_with_the_ending_of_the_training_rows_have_their_format(
    encoder: Path, weather: Path, tmp_path: Path
) -> None:
    """Such as a .csv file with tabs, for which ``init-task`` writes the format tsv."""
    (tmp_path / "weather-train.tsv").rename(tmp_path / "rows.csv")
    weather.write_text(weather.read_text().replace("weather-train.tsv", "rows.csv") + 'format = "tsv"\n')
    saved, new, out = tmp_path / "saved", tmp_path / "new.csv", tmp_path / "a new folder" / "predictions.csv"
    evaluate(encoder, [str(weather)], epochs=1, rows=20, seeds=1, out=tmp_path / "out", save=saved, workers=1)
    new.write_text("id\ttext0\n1\tthe sun, warm\n2\train\n")
    assert len(predict(saved, new, weather, out=out)) == 2 and out.is_file()
    with pytest.raises(UserError, match="a new folder' is a folder"):
        predict(saved, new, weather, out=out.parent)
    with pytest.raises(UserError, match="reads rows from a file"):
        predict(saved, ["the sun"], weather, out=out)  # type: ignore[arg-type]
    new.write_text("id\ttext0\n1\n2\train\n")
    with pytest.raises(UserError, match=r"Line 2 of .* lacks a value .* Give every row a value"):
        predict(saved, new, weather, out=out)


def test_what_does_not_fit_is_said_in_one_sentence(
    encoder: Path, weather: Path, write_task: WriteTask, tmp_path: Path
) -> None:
    saved, out = tmp_path / "saved", tmp_path / "predictions.csv"
    evaluate(encoder, [str(weather)], epochs=1, rows=20, seeds=1, out=tmp_path / "out", save=saved, workers=1)
    rows, _ = write_new_rows(tmp_path / "new.csv", weather)
    other = write_task([("sun", "x"), ("rain", "y")] * 4, [("sun", "x")], name="other")
    labels = load_task(read_task_file(weather)).labels
    pairs = write_task([("sun", "rain", label) for label in labels] * 4, [("sun", "a", labels[0])], name="pairs")
    choice = tmp_path / "choice.toml"
    choice.write_text(weather.read_text().replace("text = ", 'kind = "choice"\nchoices = ["a", "b"]\ntext = '), "utf-8")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("sentence\nthe sun\n")
    for folder, table, task, message in (
        (saved, rows, other, "was not fine-tuned on the task 'other'"),
        (saved, rows, pairs, "was not fine-tuned on the task 'pairs'"),
        (encoder, rows, weather, "holds no classifier saved by this version"),
        (tmp_path / "nowhere", rows, weather, "holds no classifier saved by this version"),
        (saved, rows, choice, "The kind of the task is choice, which predict does not support"),
        (saved, tmp_path / "new.txt", weather, "is not a table"),
        (saved, tmp_path / "gone.csv", weather, "Cannot read"),
        (saved, wrong, weather, "column"),
    ):
        with pytest.raises(UserError, match=message):
            predict(folder, table, task, out=out)
    with pytest.raises(UserError, match=r"cannot be written as \.jsonl"):
        predict(saved, rows, weather, out=tmp_path / "out.jsonl")
    twin = write_task([("sun", label) for label in labels] * 4, [("sun", labels[0])], name="twin")
    with pytest.raises(UserError, match="was not fine-tuned on the task 'twin'"):
        predict(saved, rows, twin, out=out)
    assert not out.exists()
    more = tmp_path / "more.tsv"
    more.write_text("no column of this name\n")
    weather.write_text(weather.read_text() + 'unlabeled = "more.tsv"\n')
    for read in (rows, tmp_path / "weather-train.tsv", more, weather, saved / "config.json"):
        before = read.read_bytes()
        with pytest.raises(UserError, match="is part of the input and would be overwritten"):
            predict(saved, rows, weather, out=read)
        assert read.read_bytes() == before
    assert len(predict(saved, rows, weather, out=tmp_path / "others.csv")) > 0, "rows without labels are not read"
    with pytest.raises(UserError, match=f"'{saved}' is a folder"):
        predict(saved, rows, weather, out=saved)
    config = saved / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": "a"'))
    with pytest.raises(UserError, match="cannot load the"):
        predict(saved, rows, weather, out=out)
