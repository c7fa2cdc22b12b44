"""The same training on one process and on several: every loss, through a batch that grows, longer rows, and a resume.

The small form of benchmarks/processes.py, by the same code.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from daybreak.commands import pretrain
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.recipe import Recipe, resolved
from daybreak.schemas.changes import Change
from daybreak.schemas.run import Decisions
from daybreak.training.clock import read_trace
from daybreak.training.hardware import probe
from daybreak.training.objectives.finish import Finish
from daybreak.training.phases import SecondPhase
from daybreak.training.ramp import Ramp

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
STEPS = 40
Line = dict[str, Any]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, ungated: None) -> None:
    """On processors, whatever the machine has, and scripts find their neighbours."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(probe, "choose_device", lambda: torch.device("cpu"))


@pytest.fixture
def processes() -> Any:
    return __import__("processes")


def toy(recipe: Recipe) -> Recipe:
    """The benchmark's recipe in a shape whose steps take milliseconds; 2 processes share 3, 6 and 9 rows unevenly."""
    return dataclasses.replace(
        recipe,
        tokenizer=dataclasses.replace(recipe.tokenizer, vocabulary=400),
        model=dataclasses.replace(recipe.model, layers=1, hidden_size=32, heads=2, intermediate_size=32),  # type: ignore[call-arg]
        length=16,
        batch=9,
        microbatch=2,
        ramp=Ramp(fraction=0.3, batch_multiple=3),
        phase2=SecondPhase(start=0.5, length=32),
        finish=Finish(),
    )


@pytest.mark.parametrize("optimizer", ["AdamW at 3e-3", "Muon at 3e-3"])
def test_two_processes_have_the_losses_of_one(optimizer: str, processes: Any, data: Path, tmp_path: Path) -> None:
    recipe = toy(processes.recipe_of("tiny", optimizer, STEPS))
    file, two = tmp_path / "recipe.json", tmp_path / "two"
    write_json(file, resolved(recipe))
    processes.measure.run(processes.command(file, data, two, 2), tmp_path / "log.txt", timeout=120)
    with processes.every_step():
        pretrain.pretrain(recipe, data=data, out=tmp_path / "one")
    lines = processes.steps_of(two)
    found = processes.apart(processes.steps_of(tmp_path / "one"), lines)
    assert found["agree"] and found["same_steps"] and found["loss"] <= 1e-5, found
    assert found["gradient_norm_relative"] <= 1e-4  # which a wrong divisor changes, and AdamW hardly feels
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    seen = processes.facts(two)
    assert (seen["world_size"], seen["microbatch"], seen["dropped"]) == (2, 2, 0)
    assert seen["tokens_a_step"] == [3 * 16, 6 * 16, 9 * 16, 9 * 32]
    assert seen["stages"] == ["causal", "masked"]
    assert seen["last_loss"] < seen["first_loss"] - 0.2  # so far that a wrong step would have shown


def test_stopped_on_two_processes_a_run_goes_on_with_one(processes: Any, data: Path, tmp_path: Path) -> None:
    """While the batch still grows, by the rows that 2 processes handled at a time."""
    recipe = dataclasses.replace(
        toy(processes.recipe_of("tiny", "AdamW at 3e-3", 240)), batch=10, ramp=Ramp(fraction=1.0), phase2=SecondPhase()
    )
    file, run, log = tmp_path / "recipe.json", tmp_path / "run", tmp_path / "log.txt"
    write_json(file, resolved(recipe))
    words = ["-m", "daybreak", "pretrain", str(file), "--data", str(data), "--out", str(run)]
    saved = processes.stop_at(processes.launch(2, *words), run, 30, log)
    assert 30 < saved < 240
    assert "the same command resumes" in " ".join(log.read_text().split())
    assert read_json(run / "decisions.json", Decisions).changes == []

    summary = pretrain.pretrain(recipe, data=data, out=run)
    decisions = read_json(run / "decisions.json", Decisions)
    assert (decisions.world_size, decisions.microbatch) == (2, 2)
    why = "resumed on 1 instead of 2 processes"
    assert decisions.changes == [Change(step=saved, why=why, microbatch=2, world_size=1, threads=1)]
    assert [record.step for record in read_trace(run / "trace.jsonl")] == list(range(240))
    assert summary and summary.resumes == 1

    # One process in one go, with an explicit unit of batch growth.
    unbroken = dataclasses.replace(recipe, ramp=Ramp(fraction=1.0, batch_multiple=4))
    alone = pretrain.pretrain(unbroken, data=data, out=tmp_path / "alone")
    assert alone and (summary.tokens, summary.rows) == (alone.tokens, alone.rows)
    assert alone.rows == 96 * 4 + 144 * 8
    assert abs(summary.validation.loss - alone.validation.loss) <= 1e-5
    ours, theirs = (load_file(RunFolder(each).model / "model.safetensors") for each in (run, tmp_path / "alone"))
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) <= 1e-5


# ---------------------------------------------------------------- the comparison itself


def lines_of(*losses: float) -> list[Line]:
    return [
        {"step": step, "progress": 0.0, "tokens": 9 * step, "targets": step, "stage": "masked", "learning_rate": 1.0,
         "loss": loss, "gradient_norm": 2.0}
        for step, loss in enumerate(losses, 1)
    ]  # fmt: skip


def test_a_single_step_that_differs_is_found(processes: Any) -> None:
    one = lines_of(3.0, 2.0, 1.0, 0.5)
    assert processes.apart(one, one)["agree"]
    found = processes.apart(one, lines_of(3.0, 2.0, 1.0 + 2e-5, 0.5))
    assert not found["agree"] and found["same_steps"]
    assert found["loss"] == pytest.approx(2e-5) and found["loss_at_step"] == 3 and found["loss_in_first_half"] == 0
    assert not processes.apart(one, lines_of(3.0, 2.0, 1.0))["agree"]
    other = lines_of(3.0, 2.0, 1.0, 0.5)
    other[1]["tokens"] += 9
    assert not processes.apart(one, other)["same_steps"] and not processes.apart(one, other)["agree"]
