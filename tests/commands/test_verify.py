"""``daybreak verify``: the recorded steps once more, bit for bit; what was changed since is found and named."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import exit_code, stopped_at
from needs import takes_long
from rendezvous import two_ranks, wait_for_step
from safetensors.torch import load_file, save_file

from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.pretraining import replay
from daybreak.pretraining.replay import difference_error, first_difference
from daybreak.recipe import load_recipe
from daybreak.schemas.run import Decisions, Environment, StepRecord
from daybreak.training.clock import BudgetClock, Tick, read_trace
from daybreak.training.hardware import probe
from daybreak.training.recovery import with_change

Refused = Callable[..., str]
Start = Callable[..., "subprocess.Popen[str]"]
Verified = Callable[..., str]

BUDGET = ["--budget", "40steps"]
pytestmark = pytest.mark.usefixtures(
    "every_step_on_the_cpu", "ungated"
)  # the bits of the CPU are those that are compared


@pytest.fixture
def verified(data: Path, capsys: pytest.CaptureFixture[str]) -> Verified:
    """Return ``verified(run, ...)``: verify must end with 0; what it said is returned, in one line."""

    def run(folder: Path, *words: object) -> str:
        assert exit_code("verify", folder, "--data", data, *words) == 0, "".join(capsys.readouterr())
        return re.sub(r"\s+", " ", capsys.readouterr().out)

    return run


def flip(file: Path, name: str) -> None:
    """Change the lowest bit of one number; the file stays valid."""
    tensors = load_file(file)
    tensors[name].view(-1).view(torch.int32)[0] ^= 1
    save_file(tensors, file, metadata={"format": "pt"})


# ---------------------------------------------------------------- what verifies


def test_a_finished_run_verifies_and_is_left_as_it_is(run: Path, data: Path, capsys: Any) -> None:
    """Its data are found in the run folder where ``daybreak run`` puts them."""
    (run / "data").symlink_to(data)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert exit_code("verify", run) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    kept = "before-decay/step-000000016: equal, 16 of 40 steps. before-end/step-000000036: equal, 36 of 40 steps."
    assert kept in said and "the exported model: equal, 40 of 40 steps." in said
    assert f"Verified: steps 0 to 40 of '{run}' are equal bit for bit" in said
    assert "recorded gradient norms and 3 sets of weights)." in said
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize(("last", "first"), [(4, 36), (5, 16), (24, 16), (25, 0), (1000, 0)])
def test_the_last_steps_begin_at_a_kept_checkpoint(last: int, first: int, run: Path, verified: Verified) -> None:
    said = verified(run, "--last", last)
    assert f"Verified: steps {first} to 40 of '{run}'" in said
    assert ("before-decay" in said) is (first == 0) and ("before-end" in said) is (first < 36)


def test_a_stopped_run_verifies_up_to_its_newest_checkpoint(
    data: Path, shape: list[str], verified: Verified, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with stopped_at(30):
        assert exit_code("pretrain", "tiny", "--data", data, "--out", run, *BUDGET, *shape) == 143
    said = verified(run)
    assert "before-decay/step-000000016: equal, 16 of 31 steps." in said
    assert "checkpoints/step-000000031: equal, 31 of 31 steps." in said
    assert f"Verified: steps 0 to 31 of '{run}'" in said
    assert "steps 16 to 31" in verified(run, "--last", 15)


def test_a_checkpoint_that_the_run_replaces_during_the_replay_is_not_compared(
    data: Path, shape: list[str], verified: Verified, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with stopped_at(30):
        assert exit_code("pretrain", "tiny", "--data", data, "--out", run, *BUDGET, *shape) == 143
    found = replay.find_weights

    def then_replaced(*arguments: Any) -> Any:
        weights = found(*arguments)
        shutil.rmtree(run / "checkpoints" / "step-000000031")
        return weights

    monkeypatch.setattr(replay, "find_weights", then_replaced)
    said = verified(run)
    assert "checkpoints/step-000000031: the run has replaced it, so it is not compared, 31 of 31 steps." in said
    assert "before-decay/step-000000016: equal" in said and "and 1 sets of weights" not in said


def test_a_killed_run_that_went_on_verifies(
    data: Path, shape: list[str], verified: Verified, killed_at: Callable[..., AbstractContextManager[None]],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of a time budget the work that is lost is charged: the second time it is at step 10 where it was at step 20
    before, and the decay begins there. What was kept at step 16 of the course that is lost must not stay."""
    run, lost = tmp_path / "run", 0

    def ticking(self: BudgetClock, step: int, tokens: int, *, stopping: bool) -> Tick:
        return Tick(self.elapsed(), min((step + lost) / 40, 1.0))

    monkeypatch.setattr(BudgetClock, "tick", ticking)
    words = ["pretrain", "tiny", "--data", data, "--out", run, *BUDGET, *shape]
    with killed_at(20, keep=10):
        assert exit_code(*words) == 130
    assert (run / "before-decay" / "step-000000016").is_dir()
    torn = run / "checkpoints" / "step-000000015"  # as a failing disk leaves it, which nothing of ours does
    shutil.copytree(run / "checkpoints" / "step-000000010", torn)
    os.truncate(torn / "model.safetensors", 100)
    lost = 10
    with killed_at(25, keep=20):
        assert exit_code(*words) == 130
    assert "Verified: steps 0 to " in verified(run)
    lost = 15
    assert exit_code(*words) == 0
    assert [record.step for record in read_trace(run / "trace.jsonl")] == list(range(25))
    said = verified(run)
    assert f"Verified: steps 0 to 25 of '{run}'" in said and "before-decay/step-000000010: equal" in said


@pytest.mark.parametrize(
    "flags",
    [
        ["--average.fraction", "0.5", "--average.every", "3"],
        ["--phase2.start", "0.5", "--phase2.length", "64", "--phase2.batch", "4"],
        # It begins with an optimizer that remembers nothing, at the very step at which a checkpoint is kept.
        ["--phase2.start", "0.9", "--phase2.length", "64", "--phase2.lr", "0.001", "--finish.start", "1"],
        ["--ramp.fraction", "0.6", "--ramp.batch-multiple", "2"],
    ],
    ids=["average", "second phase", "second phase from before the end", "ramp"],
)
def test_recipes_of_every_kind_verify(
    flags: list[str], data: Path, shape: list[str], verified: Verified, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert exit_code("pretrain", "tiny", "--data", data, "--out", run, *BUDGET, *shape, *flags) == 0
    said = verified(run)
    assert "before-end/" in said and "the exported model: equal, 40 of 40 steps." in said
    assert "(40 recorded gradient norms and " in said
    shutil.rmtree(run / "best", ignore_errors=True)
    assert "Verified: steps 36 to 40" in verified(run, "--last", 4)


# ---------------------------------------------------------------- what was changed


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("before-decay/step-000000016/model.safetensors", "output.bias"),
        ("before-end/step-000000036/optimizer.safetensors", "3.momentum_buffer"),
    ],
)
def test_a_changed_bit_of_a_checkpoint_is_found_and_named(
    file: str, name: str, run: Path, data: Path, refused: Refused
) -> None:
    flip(run / file, name)
    said = re.sub(r"\s+", " ", refused("verify", run, "--data", data))
    assert "differs from its records" in said and f"'{name}' differs from {file}, by at most" in said
    assert "Restore its records and data: one of them was changed." in said and "Verified" not in said


def test_a_changed_bit_of_the_exported_model_is_found_and_named(run: Path, data: Path, refused: Refused) -> None:
    file = run / "model" / "model.safetensors"
    name = sorted(load_file(file))[-1]
    flip(file, name)
    said = re.sub(r"\s+", " ", refused("verify", run, "--data", data))
    assert f"'{name}' differs from the exported model, by at most" in said and "before-end" in said


def test_a_changed_clock_reading_is_found(run: Path, data: Path, refused: Refused) -> None:
    """Progress drives the rates; elapsed drives nothing, and is a fact that only the records hold."""
    lines = [json.loads(line) for line in (run / "trace.jsonl").read_text().splitlines()]
    lines[20]["progress"] += 1e-4
    (run / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = re.sub(r"\s+", " ", refused("verify", run, "--data", data))
    # What was kept before is still equal; the first that is not is named.
    assert "before-decay/step-000000016: equal" in said and "differs from before-end/step-000000036" in said


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [("bert-gpu", "attention with dropout"), ("base --length 512", "attention over more than 128"), ("crammed", "")],
)
def test_sums_that_a_gpu_adds_in_any_order_are_named_as_a_reason(
    recipe: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, _, length = recipe.partition(" --length ")
    folder = RunFolder(tmp_path)
    machine = Environment(
        daybreak="", python="", torch="", platform="", device="", cores=1, memory_gib=1.0, started=0.0
    )
    monkeypatch.setattr(probe, "describe", lambda *_: machine)
    write_json(folder.environment, machine)
    write_json(folder.recipe, replace(load_recipe(name), length=int(length or 128)))
    decisions = Decisions(
        device="cuda", threads=1, precision="bfloat16", microbatch=8, world_size=1, reserve_seconds=0.0,
        validation_rows=1, validation_marks=0, matmul_gflops={},
    )  # fmt: skip
    remedy = difference_error(folder, decisions, "").remedy
    assert f"or it is rounding: {reason}" in remedy if reason else "rounding" not in remedy


def test_a_difference_after_a_move_names_the_steps_and_the_machine(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_json(folder.environment, probe.describe(torch.device("cpu"), 0.0))
    write_json(folder.recipe, load_recipe("tiny"))
    decisions = Decisions(
        device="cpu", threads=1, precision="float32", microbatch=8, world_size=1, reserve_seconds=0.0,
        validation_rows=1, validation_marks=0, matmul_gflops={},
    )  # fmt: skip
    assert "one of them was changed" in difference_error(folder, decisions, "").remedy
    moved = with_change(decisions, 700, "resumed on another machine: Q", machine="Q")
    remedy = difference_error(folder, moved, "").remedy
    where = "where they were trained (resumed on another machine: Q)."
    assert remedy == f"Verify its steps after step 700 with --last, {where}"
    halved = with_change(moved, 900, "out of memory", microbatch=4)
    assert difference_error(folder, halved, "").remedy == remedy, "it stayed on that machine"


def test_a_changed_norm_is_found(data: Path, shape: list[str], refused: Refused, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert exit_code("pretrain", "tiny", "--data", data, "--out", run, *BUDGET, *shape) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    step = next(line for line in lines if line["type"] == "step")
    step["gradient_norm"] *= 1 + 1e-12
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = re.sub(r"\s+", " ", refused("verify", run, "--data", data))
    assert f"the gradient norm at step {step['step']} is" in said


@pytest.mark.parametrize("missing", [slice(10, 11), slice(0, 1), slice(0, 40)], ids=["one", "the first", "all"])
def test_missing_lines_of_the_trace_are_one_sentence(missing: slice, run: Path, data: Path, refused: Refused) -> None:
    lines = (run / "trace.jsonl").read_text().splitlines(keepends=True)
    del lines[missing]
    (run / "trace.jsonl").write_text("".join(lines))
    assert "trace.jsonl" in refused("verify", run, "--data", data)


def test_what_cannot_be_verified_is_refused(run: Path, data: Path, refused: Refused, tmp_path: Path) -> None:
    assert "Name their folder with --data." in refused("verify", run)
    assert "no prepared data" in refused("verify", run, "--data", tmp_path / "nothing")
    assert "is not a run folder" in refused("verify", tmp_path, "--data", data)
    assert "--last is -3. Give a number of at least 0." in refused("verify", run, "--data", data, "--last", "-3")
    (run / "summary.json").unlink()
    for kept in ("before-decay", "before-end"):
        shutil.rmtree(run / kept)
    assert "no later checkpoint" in refused("verify", run, "--data", data)


def test_an_exported_model_that_is_gone_is_one_sentence(run: Path, data: Path, refused: Refused) -> None:
    shutil.rmtree(run / "model")
    assert "model.safetensors' cannot be read" in refused("verify", run, "--data", data)


# ---------------------------------------------------------------- several processes


def ended(ranks: list[subprocess.Popen[str]], code: int) -> str:
    """Wait for both, which must leave with ``code``; return what the first said."""
    try:
        said = [process.communicate(timeout=150) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [rank.returncode for rank in ranks] == [code, code], said
    return re.sub(r"\s+", " ", "".join(said[0]))


@pytest.fixture(scope="module")
def stopped_on_two(
    start: Start, data: Path, shape: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, list[object]]]:
    """A run of two processes, one of which was asked to stop; and its command. Shared: copy it before changing it."""
    run = tmp_path_factory.mktemp("two") / "run"
    words = ["pretrain", "tiny", "--data", data, "--budget", "400steps", *shape]
    ranks = two_ranks(start, *words, "--out", run)
    wait_for_step(run, 19, ranks[0])
    ranks[1].send_signal(signal.SIGTERM)
    ended(ranks, 143)
    yield run, words


def test_bits_are_compared_on_as_many_processes(
    stopped_on_two: tuple[Path, list[object]], start: Start, data: Path, refused: Refused
) -> None:
    run, _ = stopped_on_two
    said = re.sub(r"\s+", " ", refused("verify", run, "--data", data))
    assert "trained by 2 processes, not by 1" in said and "torchrun --nproc-per-node" in said
    steps = len(read_trace(run / "trace.jsonl"))
    assert f"Verified: steps 0 to {steps} of '{run}'" in ended(two_ranks(start, "verify", run, "--data", data), 0)


def test_a_difference_is_one_sentence_on_several_processes(
    stopped_on_two: tuple[Path, list[object]], start: Start, data: Path, tmp_path: Path
) -> None:
    """Norms are compared on the first process alone; the other does not go on without it."""
    run = Path(shutil.copytree(stopped_on_two[0], tmp_path / "run"))
    line = StepRecord(
        step=2, elapsed=1.0, progress=0.1, tokens=1, stage="causal", loss=1.0, targets=1, learning_rate=1.0,
        gradient_norm=1.0, tokens_per_second=1.0,
    )  # fmt: skip
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"type": "step", **to_dict(line)}) + "\n")
    said = ended(two_ranks(start, "verify", run, "--data", data), 2)
    assert "the gradient norm at step 2 is" in said and "recorded 1.0" in said and "Verified" not in said


@takes_long
def test_after_a_change_of_processes_the_last_steps_verify(
    stopped_on_two: tuple[Path, list[object]],
    data: Path,
    refused: Refused,
    verified: Verified,
    tmp_path: Path,
) -> None:
    run = Path(shutil.copytree(stopped_on_two[0], tmp_path / "run"))
    assert exit_code(*stopped_on_two[1], "--out", run) == 0
    (change,) = read_json(run / "decisions.json", Decisions).changes
    assert change.world_size == 1
    said = re.sub(r"\s+", " ", refused("verify", run, "--data", data))
    assert f"The number of processes changed during the run (1, 2), last at step {change.step}" in said
    named = re.search(r"Verify the steps after it: --last (\d+)\.", said)
    assert named
    found = re.search(rf"Verified: steps (\d+) to 400 of '{re.escape(str(run))}'", verified(run, "--last", named[1]))
    assert found and change.step <= int(found[1]) == 400 - int(named[1])


def test_a_difference_is_reported_by_the_first_name_and_its_size() -> None:
    ours = {"a": torch.zeros(2), "b": torch.ones(2, 2)}
    assert first_difference(ours, {"a": torch.zeros(2), "b": torch.ones(2, 2)}, "here") == ""
    assert "'b' is not in here" in first_difference(ours, {"a": torch.zeros(2), "b": torch.ones(4)}, "here")
    assert "'a' differs from here, by at most 0" in first_difference(ours, {**ours, "a": -torch.zeros(2)}, "here")
