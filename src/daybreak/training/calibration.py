"""Choices that come from measuring, made once at a run's first start and obeyed ever after."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from daybreak.base.errors import UserError
from daybreak.base.records import Decisions
from daybreak.base.terminal import duration
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Budget, Tick, reserve_for
from daybreak.training.loop import Training, accumulate, save

PRECISIONS = ("auto", "float32", "bfloat16")
FEWEST_STEPS = 20
VALIDATION_SHARE = 0.02
"""Of a time budget, for all validations together."""
MARKS = 10
PROBE_ROWS = 32
TRIALS = 3
SMALLEST_INTERIM = 32
"""Rows below which an interim validation says too little."""


@dataclass(frozen=True)
class Costs:
    """Seconds, measured on the untrained model."""

    step: dict[str, float]
    """By precision."""
    row: float
    """Of validation."""
    save: float


def measure_costs(training: Training, start: Progress, asked: str, rates: dict[str, float]) -> Costs:
    """Time a step without its update in each precision worth trying, a small validation and a checkpoint.

    The first of each warms up and does not count. The checkpoint at step 0 stays: a run that is killed in its first
    seconds has one to resume from.

    Args:
        asked: one of PRECISIONS.
        rates: of a square product by precision. bfloat16 is not tried by itself where its products are slower: on a
            CPU without instructions for it they are 3 to 50 times slower.
    """
    worth_trying = ["float32"] + ["bfloat16"] * (rates["bfloat16"] > rates["float32"])
    step = {}
    for precision in worth_trying if asked == "auto" else [asked]:
        trial = replace(training, precision=getattr(torch, precision))
        step[precision] = min(_time_step(trial, start) for _ in range(TRIALS))
    row = min(_time_validation(training, start) for _ in range(2)) / min(PROBE_ROWS, training.validation.rows)
    return Costs(step=step, row=row, save=save(training, start))


def _time_step(training: Training, start: Progress) -> float:
    """Of the end of a run, when most stages of a recipe are over."""
    begun = time.monotonic()
    accumulate(training, start, 1.0)
    training.optimizer.zero_grad(set_to_none=True)
    return time.monotonic() - begun


def _time_validation(training: Training, start: Progress) -> float:
    rows = min(PROBE_ROWS, training.validation.rows)
    return training.validation.measure(
        training.model,
        rows=rows,
        step=start.step,
        tokens=0,
        tick=Tick(0.0, 0.0),
        final=False,
    ).seconds


def decide(decisions: Decisions, budget: Budget, costs: Costs, rows: int, elapsed: float) -> Decisions:
    """Complete ``decisions`` with the faster precision, the reserve and the plan of validations.

    Args:
        rows: of the final validation.
        elapsed: seconds already charged.

    Raises:
        UserError: the budget does not give FEWEST_STEPS steps.
    """
    precision = min(costs.step, key=lambda name: costs.step[name])
    step_seconds = {name: round(seconds, 4) for name, seconds in costs.step.items()}
    decisions = replace(decisions, precision=precision, step_seconds=step_seconds)
    if budget.unit != "seconds":
        return replace(decisions, reserve_seconds=0.0, validation_rows=rows, validation_marks=MARKS)
    final = costs.row * rows
    reserve = reserve_for(validation=final, save=costs.save, step=costs.step[precision])
    _refuse_short(budget, elapsed, reserve, costs.step[precision])
    room = VALIDATION_SHARE * budget.amount - final
    affordable = int(max(0.0, room) / costs.row)
    unit = min(SMALLEST_INTERIM, rows)
    marks = min(MARKS, affordable // unit)
    interim = min(rows, affordable // marks // unit * unit) if marks else rows
    return replace(decisions, reserve_seconds=reserve, validation_rows=interim, validation_marks=marks)


def _refuse_short(budget: Budget, elapsed: float, reserve: float, step: float) -> None:
    left = budget.amount - elapsed - reserve
    if left < FEWEST_STEPS * step:
        needed = elapsed + reserve + FEWEST_STEPS * step
        raise UserError(
            f"A budget of {budget.text} is too short: starting, {FEWEST_STEPS} steps and saving take about "
            f"{duration(needed + 0.5)} on this machine.",
            f"Give at least --budget {max(1, round(needed * 1.5 + 0.5))}s.",
        )


def refuse_few_steps(budget: Budget, tokens_per_step: int) -> None:
    """Raise UserError for a token or step budget below FEWEST_STEPS steps."""
    per_step = {"steps": 1, "tokens": tokens_per_step}.get(budget.unit)
    if per_step and budget.amount < FEWEST_STEPS * per_step:
        unit = "steps" if budget.unit == "steps" else "tok"
        raise UserError(
            f"A budget of {budget.text} is too short for {FEWEST_STEPS} steps.",
            f"Give at least --budget {FEWEST_STEPS * per_step}{unit}.",
        )
