"""What a run says of itself while it goes on."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from small_records import step_record

from daybreak.recipe import Origin, load_recipe, smaller_than
from daybreak.training.monitoring.monitors import Live, Plateau, plateau_advice

PLATEAU = 7.0


def output(capsys: pytest.CaptureFixture[str], *seen: tuple[float, str, float]) -> list[str]:
    """Messages for records of (progress, stage, loss), one after the other."""
    monitor = Plateau(PLATEAU)
    lines = []
    for number, (progress, stage, loss) in enumerate(seen):
        monitor.on_step(step_record(number, progress=progress, stage=stage, loss=loss))
        lines.append(capsys.readouterr().out)
    return lines


def test_a_run_on_the_plateau_is_warned_once_and_after_a_fifth(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, (0.01, "masked", 8.0), (0.19, "masked", 7.0), (0.2, "masked", 6.9), (0.3, "masked", 6.9))
    assert [bool(line) for line in lines] == [False, False, True, False]
    assert "at 20% of the budget the loss is 6.90" in lines[2] and "a smaller model" not in lines[2]


@pytest.mark.parametrize(
    ("name", "words"), [("tiny", ""), ("mini", "recipe tiny"), ("base", "recipe tiny"), ("bert-2018", "--size tiny")]
)
def test_a_smaller_model_is_advised_where_there_is_one(name: str, words: str) -> None:
    smaller = smaller_than(load_recipe(name))
    assert smaller == words
    assert (f"a smaller model ({words})" in plateau_advice(smaller)) == bool(words)
    assert smaller_than(dataclasses.replace(load_recipe(name), origin=Origin(init="a model"))) == ""  # it has its shape


def test_the_live_line_needs_no_glossary() -> None:
    shown = []
    work = SimpleNamespace(show=lambda share, note: shown.append(note))
    live = Live(work, None, PLATEAU)
    for loss in (7.55, 6.0):
        live.on_step(step_record(loss=loss))
    assert "masked loss 7.550" in shown[0] and "0.55 above the unigram baseline" in shown[0]
    assert "masked loss 6.000" in shown[1] and "1.00 below the unigram baseline" in shown[1]


def test_a_run_off_the_plateau_gets_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any(output(capsys, (0.01, "causal", 7.2), (0.2, "causal", 6.5), (0.4, "masked", 7.3)))


def test_a_run_that_goes_on_in_its_masked_stage_has_time_to_settle(capsys: pytest.CaptureFixture[str]) -> None:
    assert not any(output(capsys, (0.46, "causal", 7.3), (0.49, "masked", 7.3), (0.6, "masked", 6.8)))
    lines = output(capsys, (0.46, "causal", 7.3), (0.49, "masked", 7.3), (0.6, "masked", 7.0))
    assert [bool(line) for line in lines] == [False, False, True]
