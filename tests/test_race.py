"""The race beside tuned peers: what evaluates them, what is kept of it, and what it comes to. Nothing here is timed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmark_scripts import LENGTH, SHAPE, VOCABULARY, beside, script

from daybreak.core.batch import Batch
from daybreak.core.budget import Budget
from daybreak.core.process import uptime
from daybreak.core.world import World
from daybreak.training.validation import Validation

__all__ = ["beside"]  # a fixture


class Still:
    """A model that validation can ask: every word is equally likely."""

    def logits(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*positions.shape, VOCABULARY)

    def eval(self) -> None:
        pass

    def train(self) -> None:
        pass


def test_an_evaluation_happens_at_its_marks_and_takes_no_time() -> None:
    judged = script("judged")
    batch = Batch(input_ids=np.random.default_rng(0).integers(5, VOCABULARY, (3, LENGTH)))
    validation = Validation(batch, np.ones(VOCABULARY, np.uint64), torch.device("cpu"))
    watch = judged.Stopwatch()
    evaluate = judged.Judge(validation, judged.marks_of(10.0, 2), watch)
    for seconds in (0.0, 1.0, 4.9, 11.0, 12.0):
        evaluate.look(Still(), seconds, step=int(seconds), tokens=0)
    assert [point["seconds"] for point in evaluate.curve] == [0.0, 11.0]  # 5 and 10 are passed at once
    assert evaluate.curve[0]["loss"] == pytest.approx(np.log(VOCABULARY))
    with watch.pause():
        assert watch.now() == watch.now()
    assert watch._paused > 0 and not judged.Judge(validation, judged.marks_of(10.0, 0), watch).wanted


def test_a_clock_does_not_charge_for_the_evaluation() -> None:
    judged = script("judged")
    clock = judged.JudgedClock(Budget.parse("100s"), World(), started=uptime() - 10.0)
    before = clock.elapsed()
    with clock.watch.pause():
        assert clock.elapsed() == clock.elapsed() < 100
    assert before <= clock.elapsed() < before + 5 and clock.tick(0, 0).elapsed >= 10.0


def test_time_to_a_loss_and_ratios() -> None:
    report = script("race_report")
    curve = [{"seconds": 0.0, "loss": 8.0}, {"seconds": 10.0, "loss": 6.0}, {"seconds": 20.0, "loss": 7.0}]
    assert report.time_to(curve, 7.0) == 5.0 and report.time_to(curve, 5.9) is None
    slow, fast = report.invented("reference", 1.0), report.invented("ours", 3.0)
    (budget,) = report.summarize([slow], [slow, fast])["budgets"]
    first, *_, last = budget["times"]
    assert first["what"] == "the reference's end" and first["ratios"]["ours"] == {"ratio": 3.0, "at_least": False}
    assert last["seconds"]["reference "] is None and last["ratios"]["ours"]["at_least"]
    shorter = {**report.invented("ours", 3.0), "seconds": 30.0, "curve": fast["curve"][:4]}
    another = {**shorter, "variant": "another", "curve": fast["curve"][:2]}
    summary = report.summarize([slow], [slow, fast, shorter, another])
    assert [(line["side"], line["seconds"], line["at"]) for line in summary["reached"]["sides"]] == [
        ("ours", 30.0, 20.0), ("another", 30.0, None), ("ours", 60.0, 20.0)
    ]  # fmt: skip
    assert [line["ratio"] for line in summary["reached"]["sides"]] == [3.0, None, 3.0]
    assert "reached after" in report.render(summary)
    with pytest.raises(SystemExit):
        report.summarize([slow], [{**fast, "positions": "others"}])


def test_the_reference_is_asked_what_it_would_answer_itself() -> None:
    reference, stock = script("reference"), script("stock_trainer")
    model = stock.stock_bert(SHAPE, VOCABULARY, LENGTH, 0.0)
    ids, positions = torch.randint(5, VOCABULARY, (2, LENGTH)), torch.tensor([[1, 5], [0, LENGTH - 1]])
    asked = reference.Asked(model)
    asked.eval()
    every = model(input_ids=ids).logits
    expected = every.gather(1, positions[:, :, None].expand(-1, -1, VOCABULARY))
    assert torch.allclose(asked.logits(ids, positions), expected, atol=1e-5)
    assert reference.linear(0.0, 0.06) == reference.linear(1.0, 0.06) == 0.0
    assert reference.linear(0.06, 0.06) == pytest.approx(1.0)


def test_equal_parameters() -> None:
    race, stock = script("race"), script("stock_trainer")
    bert = stock.stock_bert(SHAPE, VOCABULARY, LENGTH)
    theirs = sum(parameter.numel() for parameter in bert.parameters())
    assert race.parameters_of_bert(SHAPE, VOCABULARY, LENGTH) == theirs
    assert race.parameters_of_ours(SHAPE, VOCABULARY) == SHAPE.build(VOCABULARY).parameter_count()
    equal = replace(SHAPE, intermediate_size=race.equal_inner(SHAPE, VOCABULARY, LENGTH))
    assert abs(race.parameters_of_ours(equal, VOCABULARY) - theirs) <= 4 * 3 * SHAPE.layers * SHAPE.hidden_size


def race_flags(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["race.py", "--work", "unused", "--threads", "1", *words])
    chosen = script("race").parse()
    chosen.held = "these data"
    return chosen


def test_a_race_takes_turns_and_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    race, chosen = script("race"), race_flags(monkeypatch, "--budgets", "3m,15m", "--seeds", "2,1")
    runs = race.racing(chosen, ["--rate 1", "--rate 2", "--rate 3"], 8192)
    assert [run.variant for run in runs[:4]] == [run.variant for run in runs[4:8]][::-1]
    long = [run for run in runs if run.seconds == 900]
    assert [run.setting for run in long if run.variant == "reference"] == ["--rate 1", "--rate 2"]
    assert len({run.name for run in runs}) == len(runs) == 13
    run, asked = runs[0], []

    def pretend(command: list[str], log: Path) -> float:
        asked.append(command)
        curve = {"curve": [{"loss": 5.0}], "steps": 3}
        Path(command[command.index("--out") + 1]).write_text(json.dumps(curve), encoding="utf-8")
        return 0.0

    monkeypatch.setattr(script("measure"), "run", pretend)
    monkeypatch.setattr(script("measure").Watch, "facts", lambda watch, threads: {"void": len(asked) < 2})
    assert race.made(run, chosen, tmp_path, tmp_path)["void"] and race.done(run, chosen, tmp_path) is None
    assert not race.made(run, chosen, tmp_path, tmp_path)["void"] and len(asked) == 2
    race.made(run, chosen, tmp_path, tmp_path)
    assert len(asked) == 2  # finished ones are kept
    chosen.held = "other data"
    with pytest.raises(SystemExit):
        race.done(run, chosen, tmp_path)
