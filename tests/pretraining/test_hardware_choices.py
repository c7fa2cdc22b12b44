"""What is decided at a start, and what a resume makes of it: on the real parts, built small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.process import uptime
from daybreak.core.run_folder import RunFolder
from daybreak.core.world import World
from daybreak.data.sequences.shards import open_shards
from daybreak.models.modern import ModernEncoder
from daybreak.pretraining import hardware_choices
from daybreak.pretraining.hardware_choices import first_decisions, resume, with_measurements
from daybreak.pretraining.run_start import check_folder
from daybreak.pretraining.setup import PretrainingJob, setup_training
from daybreak.recipe import load_recipe
from daybreak.schemas.run import Decisions
from daybreak.training import calibration, checkpoint
from daybreak.training.checkpoint import START, Progress
from daybreak.training.hardware import probe
from daybreak.training.hardware.compiling import try_compiled
from daybreak.training.objectives.finish import Finish, Pooling
from daybreak.training.objectives.masked import Masked
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.phases import SecondPhase
from daybreak.training.recovery import current_change, with_change
from daybreak.training.schedule import Ramp
from daybreak.training.step import Training, take_step

SMALL = ModernEncoder(layers=1, hidden_size=32, heads=2, intermediate_size=32)


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "matmul_rates", lambda _: {"float32": 1.0})
    monkeypatch.setattr(probe, "choose_device", lambda: torch.device("cpu"))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def order(data: Path, folder: Path, **changes: Any) -> PretrainingJob:
    parts = {"model": SMALL, "length": 32, "batch": 8, "precision": "float32", "budget": "40steps"}
    recipe = replace(load_recipe("tiny"), **{**parts, "finish": Finish(), **changes})
    return PretrainingJob(recipe=recipe, shards=open_shards(data), data=data, run=RunFolder(folder), started=uptime())


def begun(asked: PretrainingJob) -> Training:
    """A run as it stands before its first step."""
    asked.run.path.mkdir(exist_ok=True)
    decisions = first_decisions(asked.recipe, World())
    training, progress = setup_training(asked, decisions, World())
    return with_measurements(asked, training, progress)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shares for which the fastest microbatch was looked for; it is a quarter of them here."""
    found: list[int] = []

    def fastest(training: Training, start: Progress, share: int) -> int:
        found.append(share)
        return share // 4

    monkeypatch.setattr(calibration, "fastest_microbatch", fastest)
    return found


def test_the_fastest_microbatch_is_looked_for_once(data: Path, tmp_path: Path, searches: list[int]) -> None:
    first = begun(order(data, tmp_path / "one", batch=64))
    assert (first.decisions.microbatch, first.phases[0].microbatch, searches) == (16, 16, [64])
    second = begun(order(data, tmp_path / "two", batch=64))
    assert second.decisions.microbatch == 16 and searches == [64]


@pytest.mark.parametrize(
    "other", [{"length": 64}, {"batch": 128}, {"gradient_checkpointing": True}, {"model": replace(SMALL, layers=2)}]
)
def test_what_makes_a_difference_is_measured_again(
    data: Path, tmp_path: Path, searches: list[int], other: dict[str, Any]
) -> None:
    begun(order(data, tmp_path / "one", batch=64))
    begun(order(data, tmp_path / "two", **{"batch": 64, **other}))
    assert len(searches) == 2


def test_a_small_shard_is_handled_at_once(data: Path, tmp_path: Path, searches: list[int]) -> None:
    assert begun(order(data, tmp_path, batch=32)).decisions.microbatch == 32 and searches == []


def test_a_microbatch_that_is_asked_for_is_taken(data: Path, tmp_path: Path, searches: list[int]) -> None:
    assert begun(order(data, tmp_path, batch=64, microbatch=12)).decisions.microbatch == 12 and searches == []


def test_more_processes_than_rows_are_refused_at_once(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="8 sequences cannot be divided among 9 processes") as error:
        first_decisions(order(data, tmp_path).recipe, World(rank=0, size=9))
    assert "at most 8" in error.value.remedy


def test_a_resume_with_another_torch_names_it_once(data: Path, tmp_path: Path) -> None:
    asked = order(data, tmp_path)
    training = begun(asked)
    here = probe.describe(training.device, 5.0)
    write_json(asked.run.environment, replace(here, torch="2.0.0"))
    training = resume(training, replace(START, step=12, position=96), asked.run)
    (change,) = training.decisions.changes
    assert (change.torch, change.machine, change.why) == (here.torch, None, f"resumed with torch {here.torch}")
    assert resume(training, replace(START, step=20, position=160), asked.run).decisions == training.decisions


def test_an_exported_run_is_not_compiled_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled_again(*_: object) -> bool:
        raise AssertionError("a minute for nothing")

    monkeypatch.setattr("daybreak.pretraining.hardware_choices._compiled_again", compiled_again)
    asked = order(data, tmp_path)
    training = begun(asked)
    training = replace(training, decisions=with_change(training.decisions, 3, "compiled", compiled=True))
    progress = replace(START, step=12, position=96)
    assert resume(training, progress, asked.run, trains=False).decisions == training.decisions
    with pytest.raises(AssertionError, match="a minute"):
        resume(training, progress, asked.run)


def test_more_processes_than_a_step_of_the_finish_has_rows_are_refused_at_once(data: Path, tmp_path: Path) -> None:
    """A step of 8 sequences of 32 positions has as many tokens as 4 of 64."""
    recipe = order(data, tmp_path, finish=Finish(start=0.9, length=64)).recipe
    with pytest.raises(UserError, match="4 sequences cannot be divided among 5 processes"):
        first_decisions(recipe, World(rank=0, size=5))


def compiles_with(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_choices, "try_compiled", partial(try_compiled, backend=backend))


def test_a_microbatch_that_does_not_fit_compiled_is_halved(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = CausalThenMasked.loss

    def tight(self: CausalThenMasked, model: Any, batch: Batch, **more: Any) -> Any:
        if len(batch) > 2:
            raise torch.OutOfMemoryError("no room")
        return loss(self, model, batch, **more)

    monkeypatch.setattr(CausalThenMasked, "loss", tight)
    compiles_with("eager", monkeypatch)
    made = begun(order(data, tmp_path, compile="on"))
    assert (made.decisions.compiled, made.decisions.microbatch, made.model.compiled is not None) == (True, 2, True)


LATER: dict[str, dict[str, Any]] = {
    "finish": {"finish": Finish(start=0.8, length=16, shortest=4, longest=10)},
    "phase2": {"phase2": SecondPhase(start=0.5, length=64, batch=8)},
}
"""Phases of other shapes than those before."""


@pytest.mark.parametrize("later", LATER)
def test_nothing_is_compiled_after_the_first_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    counter = CompileCounterWithBackend("eager")
    compiles_with(counter, monkeypatch)
    asked = order(data, tmp_path, compile="on", batch=16, microbatch=4, **LATER[later])
    training = begun(asked)
    assert training.decisions.compiled
    compiled = counter.frame_count
    for at in (0.0, 0.3, 0.79):
        take_step(training, START, at)
    assert counter.frame_count == compiled
    progress = replace(START, second_from=0.8) if later == "phase2" else START
    assert training.phase(progress, 0.9) is training.phases[1]
    take_step(training, progress, 0.9)
    assert counter.frame_count == compiled
    # A resume compiles the later phases as well.
    write_json(asked.run.decisions, training.decisions)
    counter.clear()
    resume(training, replace(START, step=1, position=16), asked.run)
    compiled = counter.frame_count
    take_step(training, progress, 0.9)
    assert counter.frame_count == compiled > 0


def test_a_measured_microbatch_leaves_no_smaller_one_to_compile_in_the_first_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "fastest_microbatch", lambda *_: 32)
    counter = CompileCounterWithBackend("eager")
    compiles_with(counter, monkeypatch)
    made = begun(order(data, tmp_path / "compiled", compile="on", batch=48))
    compiled = counter.frame_count
    take_step(made, START, 0.0)
    assert (made.decisions.microbatch, counter.frame_count) == (24, compiled)
    assert begun(order(data, tmp_path / "plain", batch=48)).decisions.microbatch == 32
    asked = begun(order(data, tmp_path / "asked", compile="on", batch=48, microbatch=32))
    assert asked.decisions.microbatch == 32


def test_code_does_not_depend_on_the_number_of_positions_of_a_batch(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's code for many K orders its sums by the first one, which in a replay belongs to another batch."""
    counter = CompileCounterWithBackend("eager")
    compiles_with(counter, monkeypatch)
    made = begun(
        order(data, tmp_path, compile="on", model=replace(SMALL, layers=2), objective=Masked(count="bernoulli"))
    )
    asked = [node for graph in counter.graphs for node in graph.graph.nodes if "positions" in node.name]
    assert made.decisions.compiled and counter.frame_count == 1 and asked == []


def test_a_later_phase_that_does_not_fit_is_known_before_the_first_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = Pooling.states

    def tight(self: Pooling, ids: torch.Tensor, *arguments: Any, **more: Any) -> torch.Tensor:
        if len(ids) > 2:
            raise torch.OutOfMemoryError("no room")
        return states(self, ids, *arguments, **more)

    monkeypatch.setattr(Pooling, "states", tight)
    compiles_with("eager", monkeypatch)
    made = begun(order(data, tmp_path, compile="on", batch=8, microbatch=4, **LATER["finish"]))
    assert [phase.microbatch for phase in made.phases] == [1, 2]


# ---------------------------------------------------------------- resumes


def resumed(data: Path, folder: Path, size: int, step: int = 12, rank: int = 0, **changes: Any) -> Training:
    """A run of one process, gone on with by ``size`` from the checkpoint of ``step``."""
    asked = order(data, folder, **changes)
    training = begun(asked)
    write_json(asked.run.decisions, training.decisions)
    training = replace(training, world=World(rank=rank, size=size))
    return resume(training, replace(START, step=step, position=8 * step), asked.run)


def test_other_processes_share_the_same_rows(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training = resumed(data, tmp_path, size=3)
    (change,) = training.decisions.changes
    assert (change.step, change.world_size, change.microbatch, change.rate) == (12, 3, 8, 1.0)
    assert "3 instead of 1 processes" in change.why and change.skip_to is None
    assert read_json(RunFolder(tmp_path).decisions, Decisions) == training.decisions
    assert "Resuming with 3 processes instead of 1" in capsys.readouterr().out
    # The rows of a step are as many as before, each by exactly one process.
    rows = training.rows_of_step(START, 0.5)
    shares = [replace(training, world=World(rank=rank, size=3)).shard(rows) for rank in range(3)]
    assert rows == 8 and [row for begin, end in shares for row in range(begin, end)] == list(range(8))


def test_a_growing_batch_grows_as_it_did(data: Path, tmp_path: Path) -> None:
    """By what one process handled at a time when the run began, not by what three handle now."""
    alone = begun(order(data, tmp_path / "one", batch=16, microbatch=4, ramp=Ramp(fraction=0.8)))
    three = resumed(data, tmp_path / "three", size=3, batch=16, microbatch=4, ramp=Ramp(fraction=0.8))
    places = [place / 20 for place in range(20)]
    assert [three.rows_of_step(START, at) for at in places] == [alone.rows_of_step(START, at) for at in places]
    assert len({alone.rows_of_step(START, at) for at in places}) == 4


def test_only_the_first_process_writes_it_down(data: Path, tmp_path: Path) -> None:
    training = resumed(data, tmp_path, size=2, rank=1)
    assert training.decisions.changes and read_json(RunFolder(tmp_path).decisions, Decisions).changes == []


def test_the_same_processes_change_nothing(data: Path, tmp_path: Path) -> None:
    training = resumed(data, tmp_path, size=1)
    assert training.decisions.changes == [] and training.rate == 1.0


def test_a_resume_on_another_machine_names_it_once(data: Path, tmp_path: Path) -> None:
    asked = order(data, tmp_path)
    training = begun(asked)
    here = probe.describe(training.device, 5.0)
    write_json(asked.run.environment, replace(here, device="Another processor"))
    progress = replace(START, step=12, position=96)
    training = resume(training, progress, asked.run)
    (change,) = training.decisions.changes
    assert (change.step, change.machine, change.world_size, change.microbatch) == (12, here.device, 1, 8)
    assert change.why == f"resumed on another machine: {here.device}"
    assert read_json(asked.run.decisions, Decisions) == training.decisions
    assert resume(training, replace(progress, step=20), asked.run).decisions == training.decisions
    both = resume(replace(training, world=World(size=2)), replace(progress, step=30), asked.run).decisions
    assert [(change.step, change.machine) for change in both.changes] == [(12, here.device), (30, here.device)]
    # Lost with its steps, it is written again.
    again = resume(training, START, asked.run).decisions
    assert [(change.step, change.machine) for change in again.changes] == [(0, here.device)]


def test_more_processes_than_a_step_has_rows_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="8 sequences cannot be divided among 9 processes"):
        resumed(data, tmp_path / "nine", size=9)
    assert read_json(RunFolder(tmp_path / "nine").decisions, Decisions).changes == []
    # The first steps of a growing batch count as well: 4 rows.
    with pytest.raises(UserError, match="4 sequences cannot be divided among 5 processes"):
        resumed(data, tmp_path / "five", size=5, batch=16, microbatch=4, ramp=Ramp(fraction=0.8))


def test_a_resume_forgets_what_was_decided_for_steps_that_are_lost(data: Path, tmp_path: Path) -> None:
    asked = order(data, tmp_path)
    training = begun(asked)
    decisions = with_change(training.decisions, 5, "out of memory", microbatch=4)
    decisions = with_change(decisions, 20, "diverged", rate=0.5, skip_to=400)
    write_json(asked.run.decisions, decisions)
    progress = replace(START, step=12, position=96)
    again = resume(replace(training, decisions=decisions), progress, asked.run)
    assert [change.step for change in again.decisions.changes] == [5]
    assert read_json(asked.run.decisions, Decisions) == again.decisions
    assert again.phases[0].microbatch == 4  # also for a step that is only tried, to compile
    # And on two processes what held goes on to hold.
    both = resume(replace(training, decisions=decisions, world=World(size=2)), progress, asked.run)
    held = current_change(both.decisions, 12)
    assert (held.step, held.microbatch, held.world_size, held.rate) == (12, 4, 2, 1.0)


@pytest.mark.parametrize(("kept", "expected"), [(9.0, 9.0), (1.0, 2.0)])
def test_a_resumed_run_keeps_the_larger_reserve(data: Path, tmp_path: Path, kept: float, expected: float) -> None:
    asked = order(data, tmp_path)
    chosen = replace(first_decisions(asked.recipe, World()), reserve_seconds=2.0, microbatch=8, batch=8)
    made, _ = setup_training(asked, chosen, World())
    checkpoint.save(asked.run.checkpoints, replace(START, step=3, reserve=kept), made.model, made.optimizer)
    assert setup_training(asked, chosen, World())[0].clock.reserve == expected


def test_threads_are_those_of_the_run_and_of_other_processes_their_own(data: Path, tmp_path: Path) -> None:
    asked = order(data, tmp_path)
    training = begun(asked)
    decisions = replace(training.decisions, threads=2)
    torch.set_num_threads(1)
    resume(replace(training, decisions=decisions), START, asked.run)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    other = resume(replace(training, decisions=decisions, world=World(size=2)), START, asked.run)
    assert torch.get_num_threads() == 1 and current_change(other.decisions, 0).threads == 1


def test_a_run_folder_that_is_gone_on_with_holds_its_first_checkpoint(data: Path, tmp_path: Path) -> None:
    """Measuring leaves one at step 0, which a run that is killed at once resumes from."""
    asked = order(data, tmp_path)
    begun(asked)
    found, torn = checkpoint.read_newest(asked.run.checkpoints)
    assert found is not None and (found.progress.step, torn) == (0, [])


def test_processes_that_are_killed_before_their_first_step_are_charged(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a while to start, and leaves no line in the trace."""
    asked = order(data, tmp_path)
    training = begun(asked)
    checkpoint.save(asked.run.checkpoints, replace(START, step=3, elapsed=7.0), training.model, training.optimizer)
    write_json(asked.run.decisions, training.decisions)
    monkeypatch.setattr("daybreak.pretraining.setup.uptime", lambda: 1_000.0)
    for earlier in range(3):
        _, progress = setup_training(replace(asked, started=995.0), training.decisions, World())
        assert progress.elapsed == pytest.approx(7.0 + 5.0 * earlier)  # what came before this process
    found, _ = checkpoint.read_newest(asked.run.checkpoints)
    assert found is not None and found.progress.elapsed == pytest.approx(22.0)
    assert sum(found.progress.time_by_category.values()) == pytest.approx(15.0)


@pytest.mark.parametrize(("kept", "best"), [(2, 5.0), (4, None)])
def test_the_best_loss_goes_with_a_checkpoint_of_a_lost_step(
    data: Path, tmp_path: Path, kept: int, best: float | None
) -> None:
    """A better one at step 4 replaced that of step 2, and the run was killed before its next checkpoint."""
    asked = order(data, tmp_path)
    training = begun(asked)
    parts = training.model, training.optimizer
    checkpoint.save(asked.run.checkpoints, replace(START, step=3, best=5.0), *parts)
    checkpoint.save(asked.run.best, replace(START, step=kept), *parts)
    write_json(asked.run.decisions, training.decisions)
    assert setup_training(asked, training.decisions, World())[1].best == best


def test_a_host_that_only_holds_stacks_of_an_earlier_process_may_join_again(data: Path, tmp_path: Path) -> None:
    """The run's records lie with the first process; what a killed one left elsewhere is no other run."""
    asked = order(data, tmp_path / "run")
    asked.run.stacks.mkdir(parents=True)
    (asked.run.stacks / "rank-1.txt").touch()
    check_folder(asked.run, asked.recipe, asked.shards)
    (asked.run.path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not a run folder"):
        check_folder(asked.run, asked.recipe, asked.shards)
