"""Too little memory: a smaller microbatch gives the same run, and a replay is equal bit for bit."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_run import Neighbours, Poisoned, Recorded, Tight, equal, journaled, lines, replayed, training

from daybreak.core.encoder import LossSum
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.schemas.run import Decisions
from daybreak.training.checkpoint import START
from daybreak.training.clock import Clock, Tick
from daybreak.training.hardware import microbatch_cache
from daybreak.training.phases import SecondPhase
from daybreak.training.step import Training, accumulate, memory_is_full

pytestmark = pytest.mark.usefixtures("checkpoint_each_step")


def test_a_microbatch_that_does_not_fit_is_halved_until_it_does(tmp_path: Path) -> None:
    """From step 10 on there is room for three rows: 8, 4, then 2 at a time."""
    tight = Tight(inner=Neighbours(), room=3, since=10 * 8)
    watched = Recorded(training(tmp_path / "run", objective=tight))
    made = watched.training
    done = journaled(made)
    run = RunFolder(tmp_path / "run")
    (change,) = read_json(run.decisions, Decisions).changes
    assert (change.step, change.microbatch, change.rate, change.skip_to) == (10, 2, 1.0, None)
    assert "out of memory" in change.why
    # The same rows in the same order, a step's eight at once; step 10 was begun four times, twice with all eight.
    assert watched.rows == [(8 * step, 8) for step in (*range(10), 10, 10, 10, *range(10, 30))]
    assert (done.step, done.position, done.health.dropped) == (30, 240, 0)
    assert [line["step"] for line in lines(run.trace)] == list(range(30))
    assert [line["step"] for line in lines(run.metrics)] == list(range(1, 31)) and not run.lost_metrics.exists()
    again, _ = replayed(training(tmp_path / "again", objective=tight), tmp_path / "run")
    assert equal(made, again)
    # And also where there is room: the records say how many rows went together.
    roomy, _ = replayed(training(tmp_path / "roomy"), tmp_path / "run")
    assert equal(made, roomy)


def test_memory_that_another_program_has_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    tight = Tight(inner=Neighbours(), room=3, since=10 * 8, times=1)
    made = training(tmp_path / "run", objective=tight)
    done = journaled(made)
    run = RunFolder(tmp_path / "run")
    assert len(tight.raised) == 1 and done.step == 30
    assert read_json(run.decisions, Decisions).changes == []
    assert [line["step"] for line in lines(run.trace)] == list(range(30))
    roomy = training(tmp_path / "roomy")
    journaled(roomy)
    assert equal(made, roomy)


def test_the_next_run_begins_with_the_microbatch_that_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tight = Tight(inner=Neighbours(), room=3, since=10 * 8)
    made = training(tmp_path / "run", objective=tight, microbatch_facts=("Some GPU", "2.13.0"))
    microbatch_cache.remember(made.microbatch_key, 8)
    journaled(made)
    assert microbatch_cache.recall(made.microbatch_key) == 2


def gradients(made: Training) -> Iterator[torch.Tensor]:
    for parameter in made.model.parameters():
        assert parameter.grad is not None
        yield parameter.grad


def test_the_step_after_a_full_memory_is_that_of_the_smaller_microbatch(tmp_path: Path) -> None:
    """Nothing of the rows that did fit is left in the gradients: of 8 rows, 4 at a time, the second four do not fit."""
    start = replace(START, position=16)
    tight = Tight(inner=Neighbours(), room=2, since=21)
    made = training(tmp_path, microbatch=4, objective=tight)
    with pytest.raises(torch.OutOfMemoryError, match="a microbatch of 4 sequences"):
        accumulate(made, start, 0.1, 8)
    assert all(parameter.grad is None for parameter in made.model.parameters())
    halved = training(tmp_path, microbatch=2, objective=tight)
    fresh = training(tmp_path, microbatch=2)
    made = replace(made, phases=halved.phases)
    assert accumulate(made, start, 0.1, 8) == accumulate(fresh, start, 0.1, 8)
    assert all(torch.equal(a, b) for a, b in zip(gradients(made), gradients(fresh), strict=True))


def test_a_pass_that_did_not_fit_keeps_no_tensors_while_buffers_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several ranks allocate buffers after such a step, and the failed backward pass would keep all its activations."""
    made = training(tmp_path, microbatch=4)
    whole, losses, left = made.data_parallel.loss, [], []

    def full(_: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("no room for gradients")

    def loss(*arguments: Any, **more: Any) -> LossSum:
        found = whole(*arguments, **more)
        if losses:
            found.sum.register_hook(full)
        losses.append(weakref.ref(found.sum))
        return found

    monkeypatch.setattr(made.data_parallel, "loss", loss)
    monkeypatch.setattr(made.data_parallel, "rebuild", lambda: left.append([kept() for kept in losses]))
    with pytest.raises(torch.OutOfMemoryError, match="a microbatch of 4 sequences"):
        accumulate(made, START, 0.1, 8)
    assert left == [[None, None]]


def test_a_run_with_less_room_from_the_start_is_one_of_that_microbatch(tmp_path: Path) -> None:
    made = training(tmp_path / "run", objective=Tight(inner=Neighbours(), room=2))
    journaled(made)
    small = training(tmp_path / "small", microbatch=2)
    journaled(small)
    assert equal(made, small)


def test_a_row_that_does_not_fit_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="Not even a single sequence fits") as error:
        journaled(training(tmp_path, objective=Tight(inner=Neighbours(), room=0)))
    assert "--gradient-checkpointing" in error.value.remedy
    output = capsys.readouterr().out
    assert [f"of {rows} sequences of " in output for rows in (4, 2, 1)] == [True] * 3


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("no room"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("Expected all tensors to be on the same device"), False),
        (MemoryError("out of memory"), False),
    ],
)
def test_libraries_report_a_full_memory_in_their_own_words(error: Exception, full: bool) -> None:
    assert memory_is_full(error) is full


def test_a_full_memory_reported_by_cublas_halves_the_microbatch(tmp_path: Path) -> None:
    output = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    objective = Tight(inner=Neighbours(), room=4, error=RuntimeError(output))
    made = training(tmp_path / "run", objective=objective)
    journaled(made)
    (change,) = read_json(RunFolder(tmp_path / "run").decisions, Decisions).changes
    assert (change.step, change.microbatch) == (0, 4)


class Ticking(Clock):
    """A clock whose every reading is later than the last, as a real one's: 1 second in 400."""

    def __init__(self) -> None:
        self.read = 0

    def tick(self, step: int, tokens: int, *, stopping: bool = False) -> Tick:
        self.read += 1
        return Tick(float(self.read), self.read / 40)

    def elapsed(self) -> float:
        return float(self.read)


def test_a_second_phase_whose_longer_rows_do_not_fit_is_replayed_as_it_was(tmp_path: Path) -> None:
    """It begins at the reading of the clock with which its first step was done, not with which it failed."""
    later = SecondPhase(start=0.5, length=12, lr=5e-3)

    def two(folder: str, **changes: Any) -> Training:
        made = training(tmp_path / folder, phase2=later, **changes)
        return replace(made, phases=made.phases * 2)

    tight = Tight(inner=Neighbours(), room=4, since=19 * 8)
    made = two("run", objective=tight, clock=Ticking())
    done = journaled(made)
    trace = lines(RunFolder(tmp_path / "run").trace)
    assert done.second_from == next(line["progress"] for line in trace if line["progress"] >= 0.5) > 0.5
    (change,) = read_json(RunFolder(tmp_path / "run").decisions, Decisions).changes
    assert (change.step, change.microbatch) == (19, 4)
    again, other = replayed(two("again"), tmp_path / "run")
    assert other.second_from == done.second_from and equal(made, again)


def test_a_halved_microbatch_and_a_halved_rate_stand_together(tmp_path: Path) -> None:
    """Memory runs short among the steps that are undone: the way that counts keeps the smaller microbatch."""
    both = Tight(inner=Poisoned(inner=Neighbours(), first=96, last=131), room=4, since=13 * 8)
    watched = Recorded(training(tmp_path / "run", objective=both))
    made = watched.training
    journaled(made)
    assert watched.rows[14:] == [(8 * step, 8) for step in (13, *range(13, 17), *range(17, 36))]  # three times 13
    (change,) = read_json(RunFolder(tmp_path / "run").decisions, Decisions).changes
    assert (change.step, change.microbatch, change.rate, change.skip_to) == (11, 4, 0.5, 136)
    again, _ = replayed(training(tmp_path / "again", objective=both), tmp_path / "run")
    assert equal(made, again)
