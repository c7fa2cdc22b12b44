"""A deadline for all of it: what pretraining gets, and what is left out when it becomes late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.commands import evaluate, run
from daybreak.core.budget import Budget, Deadline
from daybreak.core.errors import TooLate, UserError
from daybreak.core.files import write_json
from daybreak.core.run_folder import RunFolder
from daybreak.evaluation.finetuning import task_evaluation

COLA = run.FineTuning(tasks=("cola",), task_dir=None, protocol="quick", seeds=3)


def ahead(seconds: float) -> Deadline:
    return Deadline(datetime.now() + timedelta(seconds=seconds))


def test_pretraining_gets_what_is_left_but_for_the_rest(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    alone, beside = (Budget.parse(run._budget_by(ahead(36_000), folder, tasks)).amount for tasks in (False, True))
    assert alone == pytest.approx(36_000 * (1 - run.END_FRACTION), abs=2)
    assert beside == pytest.approx(alone * (1 - run.TASKS_FRACTION), abs=2)
    assert Budget.parse(run._budget_by(ahead(300), folder, False)).amount == pytest.approx(300 - 45, abs=2)
    with pytest.raises(UserError, match="Give a later --deadline"):
        run._budget_by(ahead(30), folder, False)


def test_a_run_that_has_begun_keeps_its_budget(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_json(folder.recipe, {"budget": "1234s"})
    assert run._budget_by(ahead(60), folder, True) == "1234s"


def test_seeds_are_left_out_when_it_becomes_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[int, bool]] = []

    def fine_tune(folder: Path, tasks: Any, *, seeds: int, untrained: bool, within: float, **_: Any) -> None:
        assert 0 < within < 600 / run.FORECAST_MARGIN
        if seeds == 2 and untrained:
            raise TooLate("2 fine-tunings take about 9m and 4m are left.", "Evaluate later.")
        asked.append((seeds, untrained))

    monkeypatch.setattr(evaluate, "evaluate", fine_tune)
    COLA.evaluate_by(ahead(600), RunFolder(tmp_path))
    assert asked == [(1, False), (1, True), (2, False)]
    assert "Fine-tuning stops after 1 of 3 seeds." in capsys.readouterr().out


def test_no_baselines_reaches_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(evaluate, "evaluate", lambda *_, baselines, **__: asked.append(baselines))
    without = replace(COLA, seeds=1, baselines=False)
    without.evaluate_by(ahead(600), RunFolder(tmp_path))
    without.evaluate(RunFolder(tmp_path))
    assert asked == [False] * 4


def test_what_does_not_fit_is_not_begun() -> None:
    class Planned:
        remaining, seconds = 3, 600.0

    told: Callable[..., str] = task_evaluation.forecast
    assert "3 fine-tunings: about 10m" in told([Planned()], 1, None, 601.0)
    assert told([Planned()], 1, None, None) == told([Planned()], 1, None, 1e9)
    with pytest.raises(TooLate, match="10m 00s and 9m 59s are left"):
        told([Planned()], 1, None, 599.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--corpus", "x.txt", "--deadline", "07:00", "--budget", "5m"], "Give one of them"),
        (["--deadline", "07:00"], "needs a corpus"),
        (["--corpus", "x.txt", "--deadline", "7 o'clock"], "is not a time"),
    ],
)
def test_what_contradicts_itself(words: list[str], said: str, refused: Callable[..., str]) -> None:
    assert said in refused("run", "tiny", *words)


def test_a_text_and_a_time_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is chosen, told, and kept when the same command is given again."""
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def size_for(budget: Budget) -> str:
        asked.append(budget.text)
        return "daybreak-mini"

    monkeypatch.setattr("daybreak.pretraining.planning.size_for", size_for)
    words = ["--corpus", "x.txt", "--budget", "20m"]
    assert run._with_size(words) == (["mini", *words], Path("runs/chosen")) and asked == ["20m"]
    (tmp_path / "runs" / "chosen").mkdir(parents=True)
    write_json(tmp_path / "runs" / "chosen" / "recipe.json", {})
    assert run._with_size(words) == (["runs/chosen", *words], Path("runs/chosen")) and asked == ["20m"]
    again = [*words, "--overwrite"]
    assert run._with_size(again)[0][0] == "mini"
    for mine in (
        ["tiny", *words],
        [*words, "--size", "tiny"],
        ["--corpus", "x.txt"],
        ["--budget", "3m"],
        [*words, "--help"],
    ):
        assert run._with_size(mine) == (mine, None)
    steps = ["--corpus", "x.txt", "--budget", "100steps", "--out", "elsewhere"]
    assert run._with_size(steps) == (steps, None)
