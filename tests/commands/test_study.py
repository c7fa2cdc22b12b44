"""``daybreak study``: what it refuses before anything trains, and a real one that is killed and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_studies import SMALL, fake_cells

from daybreak.commands.study import read_variant, study
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.pretraining.setup import VALIDATION_LENGTH
from daybreak.recipe import Origin, load_recipe, resolved
from daybreak.reporting.studies import study_text
from daybreak.schemas.run import Summary
from daybreak.schemas.studies import Study
from daybreak.studies.cell_runner import StudyFolder
from daybreak.studies.experiment import Variant, heldout_sets, settled
from daybreak.training.phases import SecondPhase

# ---------------------------------------------------------------- what is refused, before anything trains


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny",), "A study compares two variants or more."),
        (("tiny", "tiny"), "The name of the variant 'tiny' is not unique."),
        (("tiny", "tinny"), "The variant 'tinny': There is no recipe 'tinny'. Did you mean 'tiny'?"),
        (("tiny", "mini --lenght 64"), "--length"),
        (("tiny", "b=tiny --seed 3"), "The variant 'b' cannot have --seed: the study sets it."),
        (("tiny", "b=tiny --budget=3h"), "cannot have --budget"),
        (("tiny", "b="), "has no recipe"),
        (("tiny", "b='tiny"), "Correct its quotes."),
        (
            ("tiny", "b=tiny --max-grad-norm -1"),
            "The variant 'b': --max-grad-norm and --optimizer.lr must be positive.",
        ),
        (("tiny", "b=tiny --length 64"), "their losses are not comparable. Give all the same --length."),
        (("tiny", "b=crammed --size tiny --rows.order stops"), "is not a sequence order"),
        (("tiny", "b=tiny --batch 8", "--budget", "often"), "'often' is not a budget"),
        (("tiny", "b=tiny --batch 8", "--budget", "5steps"), "too short for 20 steps"),
        (("tiny", "b=tiny --batch 8", "--threads", "999"), "would wait for each other"),
        (("tiny", "b=tiny --batch 8", "--seeds", "0"), "0 seeds are too few."),
        (("tiny", "b=tiny --batch 8", "--log", "nowhere/log.md"), "'nowhere/log.md' cannot be written."),
        (("tiny", "b=tiny --batch 8", "--data", "nowhere"), "'nowhere' contains no prepared data."),
    ],
)
def test_a_variant_that_cannot_train_ends_the_study_at_once(
    arguments: tuple[str, ...], words: str, refused: Callable[..., str], data: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    more = [] if "--budget" in arguments else ["--budget", "3m"]
    more += [] if "--data" in arguments else ["--data", str(data)]
    assert words in " ".join(refused("study", *arguments, *more, "--out", "out").split())
    assert not (tmp_path / "out" / "cells").exists()


def test_shorter_rows_first_are_judged_on_the_rows_that_follow(data: Path) -> None:
    """Where a recipe only begins with short rows, its loss is comparable with that of the long ones."""
    long = replace(SMALL, length=96)
    short = replace(SMALL, length=32, phase2=SecondPhase(start=0.7, length=96))
    judged = heldout_sets([Variant(name="long", recipe=long), Variant(name="short", recipe=short)], data)
    assert [validation.length for validation in judged] == [96, 96]
    for mine, theirs in zip(judged[0].cases(), judged[1].cases(), strict=True):
        assert mine.equal(theirs)
    longer = replace(short, phase2=replace(short.phase2, length=512))
    assert heldout_sets([Variant(name="longer", recipe=longer)], data)[0].length == VALIDATION_LENGTH


def test_runs_from_different_starts_are_not_compared() -> None:
    begun = replace(SMALL, origin=Origin(init="a model"))
    with pytest.raises(UserError, match=r"RULES.md compares only runs from the same start. Give all the same --init"):
        settled([Variant(name="a", recipe=SMALL), Variant(name="b", recipe=begun)], "3m", 1, 1)


def test_a_variant_is_read_as_pretrain_reads_it(tmp_path: Path) -> None:
    found = read_variant("high=mini --optimizer.lr 2e-3 --batch 8", tmp_path)
    mini = load_recipe("mini")
    assert found.name == "high" and found.words == ("mini", "--optimizer.lr", "2e-3", "--batch", "8")
    assert found.recipe == replace(mini, batch=8, optimizer=replace(mini.optimizer, lr=2e-3))
    assert read_variant("mini --optimizer.lr=2e-3", tmp_path).name == "mini --optimizer.lr=2e-3"
    assert read_variant("bert-8gb --size mini", tmp_path).recipe == load_recipe("bert-8gb", size="mini")


# ---------------------------------------------------------------- goes on


def test_a_study_goes_on_with_more_seeds_but_not_with_another_budget(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = StudyFolder(out=tmp_path / "out", budget="60s", threads=1)
    ran = fake_cells(place, monkeypatch, {})
    monkeypatch.setattr("daybreak.commands.study.report", lambda runs, out, study: out)
    two = [Variant(name="a", recipe=SMALL), Variant(name="b", recipe=replace(SMALL, batch=4))]
    asked: dict[str, Any] = {"data": data, "out": place.out, "budget": "60s", "threads": 1}
    study(two, seeds=1, **asked)
    found = study(two, seeds=3, **asked, log=tmp_path / "log.md", question="Which batch?")
    assert ran == ["a-seed-0", "b-seed-0", "b-seed-1", "a-seed-1", "a-seed-2", "b-seed-2"]
    assert read_json(place.out / "study.json", Study) == found and found.finished and found.settings.equal_clock
    assert "Which batch?" in (tmp_path / "log.md").read_text().splitlines()[2]
    assert (place.out / "study.md").read_text() == study_text(found) + "\n"
    assert read_json(place.out / "recipes" / "b.json") == resolved(two[1].recipe)
    for change, words in (
        ({"budget": "61s"}, "another budget"),
        ({"variants": [two[0], replace(two[1], recipe=SMALL)]}, "other variants"),
    ):
        told = {"variants": two, **asked, **change}
        with pytest.raises(UserError, match=words):
            study(told.pop("variants"), **told)
    assert len(ran) == 6


# ---------------------------------------------------------------- a real one


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_a_killed_study_goes_on_within_its_cell(
    start: Callable[..., subprocess.Popen[str]], data: Path, shape: list[str], tmp_path: Path
) -> None:
    out, small = tmp_path / "out", " ".join(shape)
    variants = [f"low=tiny {small} --optimizer.lr 1e-5", f"high=tiny {small}"]
    asked = ["study", *variants, "--data", data, "--budget", "150steps", "--seeds", "1", "--threads", "1"]
    asked += ["--out", out, "--log", tmp_path / "log.md"]
    low, high = (RunFolder(out / "cells" / f"{name}-seed-0") for name in ("low", "high"))
    killed = start(*asked)
    wait_for(high.heartbeat, killed)
    kept = low.summary.stat().st_mtime_ns
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not read_json(out / "study.json", Study).finished and not high.summary.exists()
    done = start(*asked)
    told, complaints = done.communicate(timeout=600)
    assert done.returncode == 0, complaints
    assert "1 of them done" in told
    found = read_json(out / "study.json", Study)
    assert found.finished and low.summary.stat().st_mtime_ns == kept
    assert [(one.variant, one.resumes, len(one.loads), one.threads) for one in found.cells] == [
        ("low", 0, 1, 1), ("high", 1, 2, 1)
    ]  # fmt: skip
    summary: Summary = read_json(high.summary, Summary)
    last = found.cells[1]
    assert (last.loss, last.steps, last.tokens) == (summary.validation.loss, 150, summary.tokens)
    assert last.curve[-1].loss == last.loss and len(last.curve) > 3
    assert last.loss < found.cells[0].loss and found.comparisons[0].difference == last.loss - found.cells[0].loss
    assert (out / "report.html").exists() and "in one run" in (tmp_path / "log.md").read_text()
