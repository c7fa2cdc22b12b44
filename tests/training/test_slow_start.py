"""A start that takes a tenth of the budget takes nothing from warm-up, causal stage or decay."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_run import LENGTH, ROWS, equal, journaled, lines, replayed, rows_of, take, training

from daybreak.core.batch import Batch
from daybreak.core.budget import Budget
from daybreak.core.errors import Interrupted
from daybreak.core.run_folder import RunFolder
from daybreak.core.world import World
from daybreak.training import checkpoint
from daybreak.training.checkpoint import START, Progress
from daybreak.training.clock import BudgetClock, Clock, read_trace
from daybreak.training.loop import fit
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.masked import Masked
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.phases import Phase, SecondPhase
from daybreak.training.schedule import BudgetTriangle, Cosine, Ramp, Trapezoid, WarmupLinear

SCHEDULE = Trapezoid(warmup=0.25, decay=0.5)
OBJECTIVE = CausalThenMasked(causal_fraction=0.25, causal_targets=0.5, mask_rates=(0.4, 0.2))


def slow(folder: Path, *, start: float, budget: str, progress: Progress = START, **changes: Any) -> Any:
    """A run whose first step begins ``start`` seconds after its process, and whose steps take a second each."""
    now = [start]
    clock = BudgetClock(
        Budget.parse(budget), World(), started=0.0, already=progress.elapsed, now=lambda: now[0],
        first_step_at=progress.first_step_at,
    )  # fmt: skip
    made = training(folder, clock=clock, **{"schedule": SCHEDULE, "objective": OBJECTIVE, **changes})

    def slowed(phase: Phase) -> Phase:
        def take(*asked: Any) -> Any:
            now[0] += 1.0
            return phase.take(*asked)

        return replace(phase, take=take)

    return replace(made, phases=tuple(slowed(phase) for phase in made.phases))


def steps(folder: Path) -> list[tuple[float, str, float]]:
    found = lines(folder / "metrics.jsonl")
    return [(line["progress"], line["stage"], line["learning_rate"]) for line in found]


def test_a_slow_start_takes_its_time_from_no_stage(tmp_path: Path) -> None:
    late = slow(tmp_path / "late", start=4.0, budget="40s")
    journaled(late)
    assert late.clock.first_step_at == 4.0 and late.clock.elapsed() == 40.0
    # A quarter of 36 steps in warm-up and in the causal stage, half of them in the decay.
    rates = [rate for *_, rate in steps(tmp_path / "late")]
    assert rates[0] == 0 and rates[8] < max(rates) == pytest.approx(rates[9]) == pytest.approx(rates[18])
    assert rates[19] < rates[18] and rates[35] == pytest.approx(max(rates) / 18)
    assert [stage for _, stage, _ in steps(tmp_path / "late")] == ["causal"] * 9 + ["masked"] * 27


def views(position: int, rows: int, progress: float) -> Batch:
    """Sequences that change in the middle of the run, as those of views do."""
    return rows_of(position + (1000 if progress < 0.5 else 0), rows, LENGTH)


def pairs(position: int, rows: int, progress: float) -> Batch:
    return replace(rows_of(position, rows, LENGTH), passage_ids=np.arange(position, position + rows) // 2)


FIRST = Phase(take=take, length=LENGTH, rows_per_epoch=1000, batch=ROWS, microbatch=ROWS)
LATER = replace(FIRST, take=lambda position, rows, progress: rows_of(position, rows, 2 * LENGTH), length=2 * LENGTH)
SCHEDULES: dict[str, dict[str, Any]] = {
    "trapezoid and causal stage": {},
    "triangle": {"schedule": BudgetTriangle()},
    "linear": {"schedule": WarmupLinear(warmup=0.25)},
    "cosine": {"schedule": Cosine(warmup=0.25)},
    "mask rates": {"objective": CausalThenMasked(causal_fraction=0.0, mask_rates=(0.4, 0.3, 0.2, 0.1))},
    "batch ramp": {"phases": (replace(FIRST, microbatch=2),), "ramp": Ramp(fraction=0.5)},
    "second phase": {"phases": (FIRST, LATER), "phase2": SecondPhase(start=0.6, length=2 * LENGTH, lr=5e-3)},
    "views": {"phases": (replace(FIRST, take=views),)},
    "finish": {"phases": (FIRST, replace(FIRST, take=pairs)), "finish": Finish(start=0.7), "objective": Masked()},
}
"""What changes along a run."""


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_that_of_a_run_that_starts_at_once_and_is_replayed(name: str, tmp_path: Path) -> None:
    late, prompt = (
        slow(tmp_path / folder, start=start, budget=budget, **SCHEDULES[name])
        for folder, start, budget in (("late", 4.0, "40s"), ("prompt", 0.0, "36s"))
    )
    journaled(late)
    journaled(prompt)
    assert late.clock.first_step_at == 4.0
    assert steps(tmp_path / "late") == steps(tmp_path / "prompt") and equal(late, prompt)
    again, _ = replayed(slow(tmp_path / "again", start=9.0, budget="1h", **SCHEDULES[name]), tmp_path / "late")
    assert equal(late, again)


@pytest.mark.usefixtures("checkpoint_each_step")
def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = slow(tmp_path / "whole", start=4.0, budget="40s")
    journaled(whole)
    part = slow(tmp_path / "part", start=4.0, budget="40s")
    with pytest.raises(Interrupted):
        journaled(replace(part, clock=stopping(part.clock, at=12)))
    run = RunFolder(tmp_path / "part")
    found, _ = checkpoint.read_newest(run.checkpoints)
    assert found and (found.progress.step, found.progress.elapsed, found.progress.first_step_at) == (12, 16.0, 4.0)
    rest = slow(tmp_path / "part", start=0.0, budget="40s", progress=found.progress)
    checkpoint.load(found, rest.model, rest.optimizer)
    journaled(rest, found.progress)
    assert read_trace(run.trace) == read_trace(tmp_path / "whole" / "trace.jsonl") and equal(whole, rest)


def stopping(clock: Clock, *, at: int) -> Clock:
    """The same clock with a stop signal before step ``at``."""
    inner = clock.tick
    clock.tick = lambda step, tokens, *, stopping=False: inner(step, tokens, stopping=step == at)  # type: ignore[method-assign]
    return clock


@pytest.mark.usefixtures("checkpoint_each_step")
def test_a_run_of_an_earlier_version_keeps_its_schedule(tmp_path: Path) -> None:
    made = training(tmp_path, steps=4)
    fit(made, START)
    newest = sorted(RunFolder(tmp_path).checkpoints.iterdir())[-1] / "progress.json"
    plain = json.loads(newest.read_text())
    assert plain.pop("first_step_at") is not None
    newest.write_text(json.dumps(plain))
    found, _ = checkpoint.read_newest(RunFolder(tmp_path).checkpoints)
    assert found and found.progress.first_step_at == 0.0
