"""Labels turned into targets, rows held out, and rows that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.evaluation.tasks.task_file import read_task_file


def tsv(folder: Path, name: str, *rows: str) -> None:
    (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tsv(
        tmp_path,
        "train.tsv",
        "a\tb\tlabel\tscore",
        *(f"x{i}\ty{i}\t{'yes' if i % 3 else 'no'}\t{i}" for i in range(20)),
    )
    tsv(tmp_path, "dev.tsv", "a\tb\tlabel\tscore", "x\ty\tyes\t1.5")
    return tmp_path


def described(folder: Path, toml: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(toml, encoding="utf-8")
    return path


GOOD = 'train = "train.tsv"\ndev = "dev.tsv"\ntext = "a"\nlabel = "label"\n'


def test_defaults_of_a_task_file(folder: Path) -> None:
    data = load_task(read_task_file(described(folder, GOOD)))
    assert (data.task.name, data.task.kind, data.task.metric, data.labels) == (
        "mine",
        "classification",
        "accuracy",
        ("no", "yes"),
    )
    assert data.train.texts[1] == ("x1",)
    assert data.dev.targets == [1]
    assert data.test is None


def test_pairs_numbers_and_no_header(folder: Path) -> None:
    tsv(folder, "bare.tsv", "0\tp\tq", "1\tr\ts", "10\tt\tu", "2\tv\tw")
    path = described(
        folder, 'name = "n"\ntrain = "bare.tsv"\ndev = "bare.tsv"\ntext = [2, 1]\nlabel = 0\nheader = false'
    )
    data = load_task(read_task_file(path))
    assert data.train.texts[0] == ("q", "p")
    assert data.labels == ("0", "1", "2", "10"), "numbers are ordered by value"


def test_regression_and_a_test_file(folder: Path) -> None:
    toml = GOOD.replace('"label"', '"score"') + 'kind = "regression"\ntest = "dev.tsv"'
    data = load_task(read_task_file(described(folder, toml)))
    assert (data.task.metric, data.labels, data.train.targets[3]) == ("spearman", (), 3.0)
    assert data.test is not None
    assert data.test.targets == [1.5]


def test_without_dev_a_seeded_tenth_is_held_out(folder: Path) -> None:
    path = described(folder, GOOD.replace('dev = "dev.tsv"\n', ""))
    first, second = load_task(read_task_file(path)), load_task(read_task_file(path))
    assert first == second
    assert (len(first.train), len(first.dev)) == (18, 2)
    assert sorted(first.train.texts + first.dev.texts) == sorted((f"x{i}",) for i in range(20))


@pytest.mark.parametrize(
    ("rows", "more", "fault"),
    [
        (["x\ty\tmaybe\t1"], "", "Line 2 of"),
        (["x\ty\tmaybe\t1"], "", "label 'maybe', which is none of 'no', 'yes'"),
        (["x\ty\tyes\tfew"], 'kind = "regression"', "label 'few', which is not a number"),
        (["x\ty\tyes\tnan"], 'kind = "regression"', "label 'nan', which is not a number"),
        ([], "", "holds no rows"),
    ],
)
def test_rows_that_are_refused(folder: Path, rows: list[str], more: str, fault: str) -> None:
    tsv(folder, "dev.tsv", "a\tb\tlabel\tscore", *rows)
    toml = GOOD.replace('"label"', '"score"') if more else GOOD
    with pytest.raises(UserError) as caught:
        load_task(read_task_file(described(folder, toml + more)))
    assert fault in caught.value.sentence


@pytest.mark.parametrize("metric", ["f1", "auc"])
def test_some_metrics_need_two_labels(folder: Path, metric: str) -> None:
    tsv(folder, "train.tsv", "a\tlabel", "x\tyes", "y\tno", "z\tperhaps")
    with pytest.raises(UserError, match=f"metric {metric} is for two labels"):
        load_task(read_task_file(described(folder, GOOD + f'metric = "{metric}"')))
