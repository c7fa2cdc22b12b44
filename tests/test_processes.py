"""One process and two: every loss, through a growing batch, longer sequences, the finish, and a resume."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import train_on_the_cpu
from rendezvous import torchrun, two_ranks, wait_for_step
from safetensors.torch import load_file
from warm_python import surroundings

from daybreak.commands import pretrain
from daybreak.commands.prepare import prepare
from daybreak.core.files import read_json, read_json_lines, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.recipe import Recipe, load_recipe, resolved
from daybreak.schemas.run import Change, Decisions
from daybreak.training.clock import read_trace
from daybreak.training.objectives.finish import Finish
from daybreak.training.optim.muon import Muon
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.phases import SecondPhase
from daybreak.training.schedule import Ramp

STEPS = 40
TOLERANCE = 1e-5
"""Nats that the losses of a step may differ by: only the order of summation differs."""
EVERY_STEP = """
import dataclasses
from daybreak.commands import pretrain
from daybreak.commands.prepare import prepare
from daybreak.training import loop
pretrain.fit = lambda training, progress: loop.fit(dataclasses.replace(training, record_seconds=0.0), progress)
pretrain.finish = lambda *_: None
"""
"""A sitecustomize that logs every step and skips what follows the last one."""
Line = dict[str, Any]
Start = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("ungated")


def recipe_of(optimizer: Any, steps: int) -> Recipe:
    """Everything that the number of processes could affect, in steps of milliseconds: two share 3, 6 and 9 rows."""
    tiny = load_recipe("tiny")
    return replace(
        tiny,
        tokenizer=replace(tiny.tokenizer, vocabulary=400),
        model=replace(tiny.model, layers=1, hidden_size=32, heads=2, intermediate_size=32),  # type: ignore[call-arg]
        optimizer=optimizer,
        length=16,
        batch=9,
        microbatch=2,
        ramp=Ramp(fraction=0.3, batch_multiple=3),
        phase2=SecondPhase(start=0.5, length=32),
        finish=Finish(start=0.8, length=16, batch=9, shortest=4, longest=8, ordinary=0.0),
        precision="float32",
        compile="off",
        budget=f"{steps}steps",
    )


def steps_of(run: Path) -> list[Line]:
    return [line for line in read_json_lines(run / "metrics.jsonl") if line["type"] == "step"]


def apart(left: list[Line], right: list[Line]) -> dict[str, Any]:
    """Differences between two runs, from their logged steps."""
    exact = ("step", "progress", "tokens", "targets", "stage", "learning_rate")
    same = len(left) == len(right) and all(one[name] == two[name] for one, two in zip(left, right) for name in exact)
    losses = [abs(one["loss"] - two["loss"]) for one, two in zip(left, right)]
    norms = [abs(one["gradient_norm"] / two["gradient_norm"] - 1) for one, two in zip(left, right)]
    return {"agree": same and max(losses) <= TOLERANCE, "same_steps": same, "loss": max(losses), "norm": max(norms)}


@pytest.mark.parametrize("optimizer", [AdamW(lr=3e-3), Muon(lr=3e-3, adam_lr=3e-3)], ids=["AdamW", "Muon"])
def test_two_processes_have_the_losses_of_one(
    optimizer: Any, start: Start, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, file, two = recipe_of(optimizer, STEPS), tmp_path / "recipe.json", tmp_path / "two"
    write_json(file, resolved(recipe))
    words = ["pretrain", file, "--data", data, "--out", two]
    ranks = two_ranks(start, *words, **surroundings(tmp_path / "patch", EVERY_STEP))
    said = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    train_on_the_cpu(monkeypatch, record_every_step=True)
    monkeypatch.setattr(pretrain, "finish", lambda *_: None)
    pretrain.pretrain(recipe, data=data, out=tmp_path / "one")
    lines = steps_of(two)
    found = apart(steps_of(tmp_path / "one"), lines)
    assert found["agree"], found
    assert found["norm"] <= 1e-4  # which a wrong divisor changes, and AdamW hardly feels
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)) and lines[-1]["dropped"] == 0
    decisions = read_json(two / "decisions.json", Decisions)
    assert (decisions.world_size, decisions.microbatch) == (2, 2)
    read = [now["tokens"] - before["tokens"] for before, now in zip([{"tokens": 0}, *lines], lines)]
    assert list(dict.fromkeys(read)) == [3 * 16, 6 * 16, 9 * 16, 9 * 32]
    assert list(dict.fromkeys(line["stage"] for line in lines)) == ["causal", "masked"]
    assert [line["step"] for line in lines if line["contrastive"]] == list(range(33, STEPS + 1))
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.2  # so far that a wrong step would have shown


def test_stopped_on_two_processes_a_run_goes_on_with_one(
    start: Start, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the batch still grows, by the rows that 2 processes handled at a time."""
    recipe = replace(recipe_of(AdamW(lr=3e-3), 240), batch=10, ramp=Ramp(fraction=1.0), phase2=SecondPhase())
    file, run = tmp_path / "recipe.json", tmp_path / "run"
    write_json(file, resolved(recipe))
    ranks = two_ranks(start, "pretrain", file, "--data", data, "--out", run)
    wait_for_step(run, 29, ranks[0], patience=600)
    for rank in ranks:
        rank.send_signal(signal.SIGTERM)
    _, said = ranks[0].communicate(timeout=120)
    ranks[1].communicate(timeout=120)
    saved = len(read_trace(run / "trace.jsonl"))
    assert 30 <= saved < 240 and (run / "checkpoints" / f"step-{saved:09d}" / "progress.json").is_file()
    assert "the same command resumes" in " ".join(said.split())
    assert read_json(run / "decisions.json", Decisions).changes == []

    train_on_the_cpu(monkeypatch)
    summary = pretrain.pretrain(recipe, data=data, out=run)
    decisions = read_json(run / "decisions.json", Decisions)
    assert (decisions.world_size, decisions.microbatch) == (2, 2)
    why = "resumed on 1 instead of 2 processes"
    assert decisions.changes == [Change(step=saved, why=why, microbatch=2, world_size=1, threads=1)]
    assert [record.step for record in read_trace(run / "trace.jsonl")] == list(range(240))
    assert summary and summary.resumes == 1

    # One process in one go, with an explicit unit of batch growth.
    unbroken = replace(recipe, ramp=Ramp(fraction=1.0, batch_multiple=4))
    alone = pretrain.pretrain(unbroken, data=data, out=tmp_path / "alone")
    assert alone and (summary.tokens, summary.rows) == (alone.tokens, alone.rows)
    assert alone.rows == 96 * 4 + 144 * 8
    assert abs(summary.validation.loss - alone.validation.loss) <= 1e-5
    ours, theirs = (load_file(RunFolder(each).model / "model.safetensors") for each in (run, tmp_path / "alone"))
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) <= 1e-5


# ---------------------------------------------------------------- processes of different hosts


def one_by_one(start: Start, *ranks: tuple[list[object], dict[str, str]]) -> tuple[list[int], str]:
    """Start each rank with its own arguments and environment; return the exit codes and what the first one said."""
    variables = torchrun(len(ranks))
    started = [start(*words, **variables, **own, RANK=str(rank)) for rank, (words, own) in enumerate(ranks)]
    said = [process.communicate(timeout=120) for process in started]
    return [process.returncode for process in started], " ".join("".join(said[0]).split())


def test_a_restart_after_a_crash_on_another_host_does_not_delete_the_run(
    start: Start, finished: Path, data: Path, shape: list[str], tmp_path: Path
) -> None:
    """torchrun counts a restart only on the host whose process failed. The hosts share the disk of the run."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    words = ["pretrain", "tiny", "--data", data, "--out", run, "--budget", "40steps", "--overwrite", *shape]
    counts = [{"TORCHELASTIC_RESTART_COUNT": count} for count in "10"]
    codes, said = one_by_one(start, *((words, count) for count in counts))
    assert codes == [0, 0] and "--overwrite is ignored" in said and "is finished" in said
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("what", ["options", "data"])
def test_processes_with_different_options_or_data_are_refused(
    what: str, start: Start, data: Path, corpus: Path, shape: list[str], tmp_path: Path
) -> None:
    """They would read other sequences of the text than the first process means."""
    theirs, more = data, ["--seed", "1"]
    if what == "data":  # the same documents, prepared in another order
        (tmp_path / "turned.jsonl").write_text("".join(corpus.read_text().splitlines(keepends=True)[::-1]))
        theirs, more = tmp_path / "turned", []
        prepare([tmp_path / "turned.jsonl"], theirs, tokenizer=Existing(folder=str(data)))
    words = ["pretrain", "tiny", "--out", tmp_path / "run", "--budget", "40steps", *shape, "--data"]
    codes, said = one_by_one(start, ([*words, data], {}), ([*words, theirs, *more], {}))
    assert codes == [2, 2] and "have different options or different data" in said
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- the comparison itself


def lines_of(*losses: float) -> list[Line]:
    return [
        {"step": step, "progress": 0.0, "tokens": 9 * step, "targets": step, "stage": "masked", "learning_rate": 1.0,
         "loss": loss, "gradient_norm": 2.0}
        for step, loss in enumerate(losses, 1)
    ]  # fmt: skip


def test_a_single_step_that_differs_is_found() -> None:
    one = lines_of(3.0, 2.0, 1.0, 0.5)
    assert apart(one, one)["agree"]
    found = apart(one, lines_of(3.0, 2.0, 1.0 + 2e-5, 0.5))
    assert not found["agree"] and found["same_steps"]
    assert found["loss"] == pytest.approx(2e-5)
    assert not apart(one, lines_of(3.0, 2.0, 1.0))["agree"]
    other = lines_of(3.0, 2.0, 1.0, 0.5)
    other[1]["tokens"] += 9
    assert not apart(one, other)["same_steps"] and not apart(one, other)["agree"]
