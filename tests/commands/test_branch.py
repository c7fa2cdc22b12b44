"""``--from RUN --extend``: a longer run from before another's decay, with the rate held up to a decay of its own."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import bits, command, exit_code
from small_models import small_recipe

from daybreak.commands import pretrain
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict
from daybreak.pretraining.starting_points import continue_model, extend_run
from daybreak.recipe import load_recipe
from daybreak.schemas.run import Decisions, StepRecord, Summary
from daybreak.training import checkpoint, loop
from daybreak.training.clock import read_trace
from daybreak.training.optim.muon import Muon
from daybreak.training.recovery import with_change
from daybreak.training.schedule import Trapezoid

pytestmark = pytest.mark.usefixtures("every_step_on_the_cpu", "ungated")


def kept(run: Path) -> checkpoint.Checkpoint:
    """The checkpoint from before the decay, which outlives the run."""
    found, torn = checkpoint.read_newest(RunFolder(run).branch)
    assert found and not torn
    return found


def steps(run: Path) -> list[StepRecord]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [from_dict(StepRecord, line) for line in lines if line.pop("type") == "step"]


@pytest.fixture
def branched(finished: Path, data: Path, tmp_path: Path) -> Path:
    run = tmp_path / "run2"
    command("pretrain", "--from", finished, "--extend", "60steps", "--data", data, "--out", run)
    return run


def test_it_begins_where_the_decay_would_have(finished: Path, data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Weights, moments and place in the text, bit for bit."""
    before = kept(finished)
    old = load_recipe(finished)
    decay_starts = old.schedule.decay_starts
    assert before.progress.branched_at == pytest.approx(decay_starts, abs=1 / 40)
    assert not (finished / "checkpoints").exists()
    began: list[tuple[checkpoint.Progress, dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    fit = loop.fit

    def watched(training: Any, progress: checkpoint.Progress) -> checkpoint.Progress:
        weights = {name: tensor.clone() for name, tensor in checkpoint.unique_state(training.model)}
        moments = {name: t.clone() for name, t in checkpoint.optimizer_tensors(training.optimizer).items()}
        began.append((progress, weights, moments))
        return fit(training, progress)

    monkeypatch.setattr(pretrain, "fit", watched)
    command("pretrain", "--from", finished, "--extend", "60steps", "--data", data, "--out", tmp_path / "run2")
    ((progress, weights, moments),) = began
    assert (progress.step, progress.tokens, progress.targets, progress.elapsed >= 0) == (0, 0, 0, True)
    assert progress.position == before.progress.position == before.progress.step * old.batch
    assert all(torch.equal(weights[name], before.weights[name]) for name in before.weights)
    assert moments.keys() == before.moments.keys()
    assert all(torch.equal(moments[name], before.moments[name]) for name in moments)


def test_its_rate_holds_and_then_falls(finished: Path, branched: Path) -> None:
    old, recipe = load_recipe(finished), load_recipe(branched)
    assert recipe.origin.branch == str(finished) and recipe.budget == "60steps"
    assert recipe.origin.begin == kept(finished).progress.branched_at
    assert isinstance(recipe.schedule, Trapezoid)
    assert recipe.schedule.warmup == 0.0
    assert recipe.schedule.decay_starts == pytest.approx(old.schedule.decay_starts)
    assert [record.step for record in read_trace(branched / "trace.jsonl")] == list(range(60))
    records, peak = steps(branched), recipe.optimizer.lr
    assert len(records) == 60 and {record.stage for record in records} == {"masked"}
    for record in records:
        left = (1.0 - record.progress) / (1.0 - old.schedule.decay_starts)
        assert record.learning_rate == pytest.approx(peak * min(1.0, left))
    assert records[0].learning_rate == peak == records[20].learning_rate > 10 * records[-1].learning_rate


def test_its_records_say_where_it_comes_from(finished: Path, branched: Path) -> None:
    summary = read_json(branched / "summary.json", Summary)
    assert (summary.parent, summary.steps, summary.forgetting) == (finished.name, 60, None)
    # Only the sequences of this run count; those of the finish are twice as long and half as many.
    assert summary.rows == 50 * 8 + 10 * 4 and summary.tokens == 60 * 8 * 32
    assert summary.rows_per_second == pytest.approx(summary.rows / 60 * summary.steps_per_second, rel=0.01)
    assert f"continued from {finished.name}" in (branched / "model" / "README.md").read_text()
    assert kept(branched).progress.position > kept(finished).progress.position


def test_a_branch_verifies_and_has_a_branch(
    finished: Path, branched: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    third = tmp_path / "run3"
    command("verify", branched, "--data", data)
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "the exported model: equal, 60 of 60 steps." in said
    assert f"Verified: steps 0 to 60 of '{branched}' are equal bit for bit" in said
    assert "(60 recorded gradient norms" in said and bits(branched) != bits(finished)
    command("pretrain", "--from", branched, "--extend", "20steps", "--data", data, "--out", third)
    begins = [load_recipe(run).origin.begin for run in (finished, branched, third)]
    assert begins == sorted(set(begins)) and begins[-1] < 1
    # Only what a run reads itself counts; an epoch of the finish is counted by the mean length of its spans.
    parent, own = (read_json(run / "summary.json", Summary) for run in (branched, third))
    assert own.tokens == parent.tokens / 3 and own.epochs == pytest.approx(parent.epochs / 3, rel=0.1)


def test_a_stopped_branch_goes_on(
    finished: Path, branched: Path, data: Path, tmp_path: Path, killed_at: Callable[..., AbstractContextManager[None]]
) -> None:
    """From its own checkpoint, not from its parent's again, and charges no rows of its parent."""
    run = tmp_path / "stopped"
    words = ["pretrain", "--from", finished, "--extend", "60steps", "--data", data, "--out", run]
    with killed_at(30, keep=25):
        assert exit_code(*words) == 130
    command(*words)
    assert bits(run) == bits(branched)
    ours, whole = (read_json(folder / "summary.json", Summary) for folder in (run, branched))
    assert (ours.rows, ours.steps, ours.resumes) == (whole.rows, 60, 1)


def test_a_branch_of_a_run_in_its_second_phase_stays_there(data: Path, tmp_path: Path) -> None:
    """Longer rows from the first step on, and the batch as large as it had grown."""
    recipe = small_recipe("crammed", budget="40steps")
    later = replace(recipe.phase2, start=0.5, length=64, batch=4)
    recipe = replace(recipe, phase2=later, ramp=replace(recipe.ramp, batch_multiple=2))
    pretrain.pretrain(recipe, data=data, out=tmp_path / "run", accept_tokenizer=True)
    words = ["pretrain", "--from", tmp_path / "run", "--extend", "20steps", "--data", data]
    command(*words, "--out", tmp_path / "run2")
    summary = read_json(tmp_path / "run2" / "summary.json", Summary)
    assert (summary.rows, summary.tokens) == (20 * 4, 20 * 4 * 64)
    command(*words, "--out", tmp_path / "run3", "--phase2.start", "1")  # unless it has no second phase any more
    summary = read_json(tmp_path / "run3" / "summary.json", Summary)
    assert (summary.rows, summary.tokens) == (20 * 8, 20 * 8 * 32)


def test_a_second_phase_to_come_keeps_its_place_before_the_finish(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that decays from 0.4 on, 0.85 and 0.9 are at 0.75 and 0.833 of what is left."""
    recipe = small_recipe(budget="40steps")
    later, finish = (
        replace(recipe.phase2, start=0.85, length=64, batch=2),
        replace(recipe.finish, length=32, longest=30),
    )
    pretrain.pretrain(replace(recipe, phase2=later, finish=finish), data=data, out=tmp_path / "run")
    capsys.readouterr()
    command("pretrain", "--from", tmp_path / "run", "--extend", "70steps", "--data", data, "--out", tmp_path / "run2")
    assert load_recipe(tmp_path / "run2").phase2.start == pytest.approx(0.75)
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "Second phase from 76% on" in said and "Finish from 84% on" in said
    lines = steps(tmp_path / "run2")
    read = [now.tokens - before.tokens for before, now in pairwise(lines[51:61])]
    assert read == [8 * 32] + [2 * 64] * 6 + [8 * 32] * 2


# ---------------------------------------------------------------- refusals


def test_what_cannot_be_gone_on_with_is_refused(
    finished: Path, run: Path, data: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "run2"
    rest = ("--extend", "40steps", "--data", data, "--out", out)
    assert "is not a run folder" in refused("pretrain", "--from", tmp_path / "nothing", *rest)
    assert "Write daybreak pretrain --from" in refused("pretrain", "daybreak-tiny", "--from", finished, *rest)
    assert "Write daybreak pretrain --from" in refused("pretrain", "--from", finished, "--data", data, "--out", out)
    assert "Write daybreak pretrain --from" in refused("pretrain", "--from", finished, "--init", finished, *rest)
    assert "Write daybreak pretrain --from" in refused("pretrain", "--from", finished, "--size=mini", *rest)
    assert "needs --from" in refused("pretrain", "daybreak-tiny", *rest)
    assert "too short" in refused("pretrain", "--from", finished, "--extend", "5steps", *rest[2:])
    assert "is not a budget" in refused("pretrain", "--from", finished, "--extend", "soon", *rest[2:])
    shutil.rmtree(RunFolder(run).branch)
    assert "no checkpoint from before its decay" in refused("pretrain", "--from", run, *rest)
    assert not out.exists()


def test_text_of_another_tokenizer_is_refused(finished: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    """The weights belong to the ids of the parent's own."""
    text = tmp_path / "numbers.txt"
    text.write_text("\n".join(f"{number} times {number} makes {number * number}" for number in range(2000)))
    command("prepare", text, "--out", tmp_path / "data", "--document", "line", "--tokenizer.vocabulary", "320")
    words = ["pretrain", "--from", finished, "--extend", "40steps", "--data", tmp_path / "data"]
    said = refused(*words, "--out", tmp_path / "run2")
    assert "another tokenizer" in said and not (tmp_path / "run2").exists()
    command("prepare", text, "--out", tmp_path / "same", "--document", "line", "--tokenizer-from", finished / "model")
    command(*words[:-1], tmp_path / "same", "--out", tmp_path / "run2")


@pytest.mark.parametrize("asked, remarked", [("24steps", True), ("60steps", False), ("90s", False)])
def test_a_branch_shorter_than_what_it_replaces_is_remarked(
    finished: Path, capsys: pytest.CaptureFixture[str], asked: str, remarked: bool
) -> None:
    """Of the parent's 40 steps 60 % came after the branch; time and steps cannot be compared."""
    extend_run(finished, asked)
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert (f"for 60% of its 40steps: with {asked} this run sees no more text" in said) is remarked


def test_a_lowered_rate_stays_lowered_and_the_published_model_is_kept(
    finished: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = RunFolder(Path(shutil.copytree(finished, tmp_path / "run")))
    usual = extend_run(finished, "60steps")
    recipe = json.loads(run.recipe.read_text())
    recipe["origin"] |= {"init": "google/encoder", "parent": "google/encoder"}
    run.recipe.write_text(json.dumps(recipe))
    decisions = read_json(run.decisions, Decisions)
    write_json(run.decisions, with_change(decisions, 5, "diverged", rate=0.25))
    lowered = extend_run(run.path, "60steps")
    assert lowered.optimizer == usual.optimizer.at_rate(0.25) != usual.optimizer
    assert (usual.origin.parent, lowered.origin.parent) == ("", "google/encoder")
    assert "trained at 0.25 times its learning rate, and so does this run" in re.sub(
        r"\s+", " ", capsys.readouterr().out
    )
    write_json(run.decisions, with_change(decisions, 39, "diverged", rate=0.25))
    assert extend_run(run.path, "60steps").optimizer == usual.optimizer, "it diverged after the branch"


def test_a_started_run_does_not_need_the_model_that_it_began_with(
    finished: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    gone = tmp_path / "gone"
    said = refused("pretrain", "tiny", "--init", gone, "--data", tmp_path / "data", "--out", run)
    assert "does not need it any more" in said and f"daybreak pretrain {run} --data DATA --out {run}" in said
    assert "does not need" not in refused(
        "pretrain", "tiny", "--init", gone, "--data", tmp_path, "--out", tmp_path / "new"
    )


@pytest.mark.parametrize("flags", [["--general", "text"], ["--new-vocabulary"]], ids=" ".join)
def test_flags_about_a_model_that_is_not_named_are_refused(
    flags: list[str], data: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    said = refused("pretrain", "daybreak-tiny", "--data", data, "--out", tmp_path / "run", *flags)
    assert "needs --init" in said and not (tmp_path / "run").exists()


# ---------------------------------------------------------------- a run as a model to continue


def test_a_run_is_continued_by_its_model_and_under_its_own_name(finished: Path) -> None:
    recipe = continue_model(load_recipe("daybreak-tiny"), finished)
    assert Path(recipe.origin.init) == finished / "model" and recipe.origin.parent == finished.name
    assert continue_model(load_recipe("daybreak-tiny"), finished / "model") == recipe
    named = continue_model(load_recipe("daybreak-tiny"), finished / "model", parent_name="someone/encoder")
    assert named.origin.parent == "someone/encoder"


@pytest.mark.parametrize(("given", "scaled"), [(0.02, 0.002), (0.0, 0.0)])
def test_a_published_model_is_trained_at_a_tenth_of_every_learning_rate(
    finished: Path, tmp_path: Path, given: float, scaled: float
) -> None:
    """Muon has a second one, for embeddings and norms; 0 means 3 times the first."""
    recipe = replace(load_recipe("daybreak-tiny"), optimizer=Muon(lr=0.01, adam_lr=given))
    published = Path(shutil.copytree(finished / "model", tmp_path / "published"))
    for told in published.glob("train_budget_*.json"):
        told.unlink()
    for folder, expected in ((published, (0.001, scaled)), (finished, (0.01, given))):
        optimizer = continue_model(recipe, folder).optimizer
        assert isinstance(optimizer, Muon)
        assert (optimizer.lr, optimizer.adam_lr) == pytest.approx(expected)
