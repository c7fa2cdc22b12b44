"""Several settings: dev chooses by SciBERT's rule, test is reported, everything that was tried is written down."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from small_tasks import run

from daybreak.commands.evaluate import evaluate
from daybreak.core.files import read_json
from daybreak.evaluation.finetuning.jobs import FinetuningJob
from daybreak.evaluation.finetuning.task_evaluation import select_setting, selection_words
from daybreak.evaluation.protocols.protocol import Setting
from daybreak.schemas.tasks import FinetuningRun, SettingTried, TaskResult, spread

WriteTask = Callable[..., Path]


def tried(*dev: tuple[int, float, list[float]]) -> list[SettingTried]:
    return [
        SettingTried(
            epochs=epochs, learning_rate=rate, dev=values, mean=statistics.fmean(values), spread=spread(values)
        )
        for epochs, rate, values in dev
    ]


@pytest.mark.parametrize(
    ("dev", "expected"),
    [
        # one deviation (0.1) below the best mean (0.8) is near enough, and two epochs are fewest
        ([(2, 1e-5, [0.7, 0.7]), (3, 1e-5, [0.75, 0.75]), (4, 1e-5, [0.729289, 0.870711])], (2, 1e-5)),
        # just outside
        ([(2, 1e-5, [0.69, 0.69]), (3, 1e-5, [0.75, 0.75]), (4, 1e-5, [0.729289, 0.870711])], (3, 1e-5)),
        # the deviation that counts is the best one's, not the candidate's
        ([(2, 1e-5, [0.2, 1.2]), (4, 1e-5, [0.8, 0.8])], (4, 1e-5)),
        # of several with the fewest epochs the best, then the first
        ([(2, 1e-5, [0.7, 0.7]), (2, 2e-5, [0.75, 0.75]), (4, 1e-5, [0.7, 0.9])], (2, 2e-5)),
        ([(2, 1e-5, [0.7, 0.7]), (2, 2e-5, [0.7, 0.7]), (4, 1e-5, [0.6, 0.9])], (2, 1e-5)),
        # one seed has no spread: the best, and on a tie the fewest epochs
        ([(2, 1e-5, [0.7]), (5, 1e-5, [0.8]), (3, 5e-5, [0.8])], (3, 5e-5)),
    ],
)
def test_the_fewest_epochs_within_one_deviation_of_the_best(
    dev: list[tuple[int, float, list[float]]], expected: tuple[int, float]
) -> None:
    assert dev[select_setting(tried(*dev), "shortest")][:2] == expected


def test_the_best_is_simply_the_best() -> None:
    dev = tried((2, 1e-5, [0.7, 0.7]), (3, 1e-5, [0.75, 0.75]), (4, 1e-5, [0.6, 1.0]), (5, 1e-5, [0.8, 0.8]))
    assert dev[select_setting(dev, "best")].epochs == 4, "of equal means the first"
    assert dev[select_setting(dev, "shortest")].epochs == 2


def test_the_sentence_names_the_setting_and_the_rule() -> None:
    words = selection_words(Setting(4, 2e-5, 32), 16, 3, "shortest")
    assert words.startswith("4 epochs, rate 2e-5: of 16 settings the fewest epochs within one deviation of the best")
    assert "dev" in words
    assert "3 seeds" in words
    assert selection_words(Setting(3, 2e-5, 32), 4, 1, "best").startswith(
        "3 epochs, rate 2e-5: of 4 settings the best on dev"
    )
    assert selection_words(Setting(5, 2e-5, 32), 1, 3, "best") == "after the last epoch"


def rows(count: int, seed: int) -> list[tuple[str, str]]:
    chance = random.Random(seed)
    return [
        (" ".join(chance.choices("the day was very and it".split(), k=3) + [word]), label)
        for word, label in [("sun", "a"), ("rain", "b"), ("storm", "c")] * (count // 3)
    ]


@pytest.fixture
def task(write_task: WriteTask, tmp_path: Path) -> str:
    write_task(rows(33, 3), rows(33, 4), name="other")
    return str(write_task(rows(96, 1), rows(30, 2), 'test = "other-train.tsv"\nmetric = "macro_f1"', name="three"))


def test_dev_decides_and_test_is_reported(
    encoder: Path, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep on a stubbed fine-tuning, whose scores say which setting and seed they are of."""
    filled: list[tuple[Setting, int]] = []
    dev = {(e, r): 0.5 + e / 100 for e in (2, 3, 4, 5) for r in (5e-6, 1e-5, 2e-5, 5e-5)} | {(4, 2e-5): 0.9}

    def fill(job: FinetuningJob, show: Callable[[float, float], None] = lambda share, loss: None) -> FinetuningRun:
        value = dev[job.setting.epochs, job.setting.rate] + job.seed / 1000
        filled.append((job.setting, job.seed))
        if job.keep is not None:
            job.keep.mkdir(parents=True)
            (job.keep / "config.json").write_text(f'{{"of": "{job.setting}, seed {job.seed}"}}')
        return run(seed=job.seed, scores={"macro_f1": value, "test_macro_f1": 1.0 - value})

    monkeypatch.setattr("daybreak.evaluation.finetuning.parallel.run_job", fill)
    monkeypatch.setattr("daybreak.evaluation.finetuning.task_evaluation.run_job", fill)
    monkeypatch.setattr("daybreak.evaluation.finetuning.task_evaluation.job_seconds", lambda job, rows: 1.0)
    (result,) = evaluate(encoder, [task], protocol="scibert", seeds=3, out=tmp_path, save=tmp_path / "kept", workers=1)
    assert len(filled) == 16 * 3 + 1
    assert len(set(filled)) == 16 * 3
    assert read_json(tmp_path / "kept/config.json") == {"of": "4 epochs, rate 2e-5, seed 0"}
    assert (result.settings["epochs"], result.settings["learning_rate"]) == (4, 2e-5)
    assert (result.metric, result.reported, result.reported_rows) == ("test_macro_f1", "test", 33)
    assert result.mean == pytest.approx(1 - 0.901)
    assert result.scores["macro_f1"] == pytest.approx([0.9, 0.901, 0.902])
    assert len(result.settings_tried) == 16
    assert result.settings_tried[0].dev == pytest.approx([0.52, 0.521, 0.522])
    assert result.settings_tried[0].spread == pytest.approx(0.001)
    assert "4 epochs, rate 2e-5" in result.selection
    assert result.protocol == "scibert"
    assert read_json(tmp_path / "results.json", list[TaskResult]) == [result]


def test_one_stated_setting_of_scibert(encoder: Path, task: str, tmp_path: Path) -> None:
    (result,) = evaluate(encoder, [task], protocol="scibert", epochs=1, rate=5e-3, seeds=1, out=tmp_path, workers=1)
    assert (result.protocol, result.settings_tried) == ("scibert, 1 epoch, rate 5e-3", [])
    assert (result.train_rows, result.settings["batch"], result.settings["dropout"]) == (96, 32, 0.1)
    assert "most_train_rows" not in result.settings
    assert result.metric == "test_macro_f1"
    assert result.baseline == pytest.approx(1 / 6), "macro F1 of a constant answer on three equal labels"
