"""Plan a budget: time candidate recipes on this machine and forecast the loss of each."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.process import peak_bytes, uptime
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import quiet
from daybreak.core.world import World
from daybreak.data.sequences.shards import Shards
from daybreak.forecasting.difficulty import difficulty
from daybreak.forecasting.law import CENTRE, SPEED_SPREAD, RunSpec, inner_parameters, predict_loss, shipped_law
from daybreak.forecasting.tasks import forecast_tasks, shipped_tasks
from daybreak.pretraining.flops import flops_per_token, meta_model, vocabulary_of
from daybreak.pretraining.hardware_choices import (
    first_decisions,
    has_copy_heads,
    until_it_fits,
    why_no_forecast,
    with_measurements,
)
from daybreak.pretraining.setup import PretrainingJob, setup_training
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.forecast import Candidate
from daybreak.training.calibration import MIN_STEPS, VALIDATION_FRACTION, worth_compiling
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import reserve_for
from daybreak.training.hardware import probe
from daybreak.training.schedule import Ramp
from daybreak.training.step import Training, take_step
from daybreak.training.validation import words_only

PROBE_SECONDS = 60.0
"""Time to measure all candidates."""
TRIALS = 12
"""Approximate number of steps of one measurement, including warm-up and the search for the microbatch."""
MOMENTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Points of a run at which a step is timed, because its stages differ in cost."""
IMPORTS = 5.0
"""Approximate seconds that starting Python and importing libraries takes."""
COMPILE_SECONDS = 60.0
"""Approximate seconds of compilation, without a cache, where a run compiles."""
UTILIZATION = 0.3
"""Approximate fraction of the speed of a large matrix product that training reaches in half precision (records:
throughput)."""
PLANNED = ("tiny", "mini", "small", "base")
"""Sizes of the flagship family that are compared."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Cost of a recipe on this machine, in seconds."""

    step: float
    """Optimizer step, averaged over a run."""
    start: float
    """From the start of the process to the first step, measurements included but no compilation."""
    end: float
    """Reserved for the last validation and the export."""
    memory: int
    """Peak memory of this process, or of the accelerator, in bytes; 0 if not measured."""
    measured: bool = True
    """False if the seconds are estimated from the operations of a step."""


def time_recipe(recipe: Recipe, shards: Shards, data: Path) -> Speed:
    """Time some steps of ``recipe`` in a temporary folder, without compilation, which takes longer than the steps.

    Raises:
        UserError: not even one sequence fits into the memory of this device.
    """
    started = uptime()
    with tempfile.TemporaryDirectory() as scratch, quiet():
        # Steps of the full batch: in a ramp, some moments have small steps, which read fewer tokens.
        untimed = replace(recipe, budget="1000000steps", compile="off", ramp=Ramp())
        job = PretrainingJob(recipe=untimed, shards=shards, data=data, run=RunFolder(Path(scratch)), started=started)
        training, progress = setup_training(job, first_decisions(untimed, World()), World())
        training = with_measurements(job, training, progress)
        steps_started = uptime()
        # The steps of the embedding finish need the most memory; a run halves its microbatch when it comes to them.
        steps = until_it_fits(training, lambda fitting: [_seconds(fitting, progress, at) for at in MOMENTS])
        final = training.validation.whole_seconds(training.validation.row_seconds)
        step = len(steps) / sum(1.0 / seconds for seconds in steps)  # harmonic mean: tokens add up over time
    cuda = training.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated() if cuda else peak_bytes()
    end = reserve_for(validation=final, save=training.time_by_category["checkpoint"], step=step)
    return Speed(step=step, start=IMPORTS + steps_started - started, end=end, memory=memory)


def _seconds(training: Training, progress: Progress, at: float) -> float:
    started = time.monotonic()
    take_step(training, progress, at)
    probe.synchronize(training.device)
    return time.monotonic() - started


# ---------------------------------------------------------------- candidates


def candidates(
    recipes: Sequence[Recipe], shards: Shards, data: Path, budget: Budget, about: RunSpec
) -> list[Candidate]:
    """Evaluate each recipe on this machine for ``budget``, the cheapest first, within PROBE_SECONDS.

    A recipe that would take longer to time than the remaining time is estimated from its operations, see
    ``_expected_rate``.

    Args:
        about: the text, see ``spec_of_text``.

    Raises:
        UserError: no recipe can be timed, because none fits the text or the memory of this device.
    """
    started, results, last = time.monotonic(), [], None
    refused: list[UserError] = []
    vocabulary = shards.manifest.vocabulary
    costs = [(flops_per_token(recipe, vocabulary), recipe) for recipe in recipes]
    for cost, recipe in sorted(costs, key=lambda pair: pair[0]):
        flops = cost * recipe.global_batch(1) * recipe.length
        left = PROBE_SECONDS - (time.monotonic() - started)
        if last and TRIALS * flops / (rate := _expected_rate(last[1])) > left:
            speed = _scaled(last[0], flops / rate)
        else:
            try:
                speed = time_recipe(recipe, shards, data)
            except UserError as error:
                refused.append(error)
                reason = f"no forecast: {error.sentence.rstrip('.')}"
                results.append(replace(_untimed(recipe, cost, vocabulary), trouble=reason))
                continue
            last = (speed, flops / speed.step)
        results.append(_candidate(recipe, cost, speed, vocabulary, about, budget))
    if len(refused) == len(recipes):
        raise refused[0]
    return results


def _scaled(last: Speed, step: float) -> Speed:
    """The cost of a larger recipe than the last measured one, whose step takes about ``step`` seconds."""
    return Speed(step=step, start=last.start, end=last.end * step / last.step, memory=0, measured=False)


def _expected_rate(measured: float) -> float:
    """Operations a second of a larger recipe than one with the rate ``measured``.

    The steps of a small model on a GPU are as long as the launches of their kernels, so its rate says little.
    """
    device = probe.choose_device()
    return max(measured, _usual_rate(device)) if device.type == "cuda" else measured


def _usual_rate(device: torch.device) -> float:
    """UTILIZATION of the measured speed of a matrix product, in operations a second."""
    return UTILIZATION * 1e9 * max(probe.matmul_rates(device).values())


def _untimed(recipe: Recipe, cost: int, vocabulary: int) -> Candidate:
    """A recipe of which the speed is not known."""
    model = meta_model(recipe, vocabulary)
    return Candidate(
        recipe=recipe.name,
        parameters=model.parameter_count(),
        inner=inner_parameters(model.parameter_count(), vocabulary, model.hidden_size),
        copy_heads=has_copy_heads(recipe),
        flops_per_token=cost,
        tokens_per_second=0.0,
        training_seconds=0.0,
        memory=0,
        measured=False,
    )


def _candidate(recipe: Recipe, cost: int, speed: Speed, vocabulary: int, about: RunSpec, budget: Budget) -> Candidate:
    start = speed.start + COMPILE_SECONDS * worth_compiling(recipe.compile, probe.choose_device(), budget)
    seconds = max(0.0, budget.amount * (1.0 - VALIDATION_FRACTION) - start - speed.end)
    candidate = replace(
        _untimed(recipe, cost, vocabulary),
        tokens_per_second=recipe.global_batch(1) * recipe.length / speed.step,
        training_seconds=seconds,
        memory=speed.memory,
        measured=speed.measured,
    )
    if reason := why_no_forecast(recipe):
        return replace(candidate, trouble=f"no forecast: {reason}")
    if seconds < MIN_STEPS * speed.step:
        return replace(candidate, trouble="no forecast: the budget is too short")
    run = replace(about, inner=candidate.inner, tokens=candidate.tokens, copy_heads=candidate.copy_heads)
    loss = predict_loss(shipped_law(), run)
    tasks = forecast_tasks(shipped_tasks(), loss, about.unigram_loss)
    return replace(candidate, forecast=loss, tasks=tasks)


def unigram_entropy(shards: Shards) -> float:
    """Loss of the unigram baseline (add-one smoothing) on all held-out tokens that are not special, nats."""
    special = shards.manifest.special
    counts = words_only(shards.unigram_counts, special) + 1.0
    heldout = shards.heldout.read(0, len(shards.heldout)).astype(np.int64)
    heldout = heldout[~np.isin(heldout, astuple(special))]
    return float(np.log(counts.sum() / counts)[heldout].mean())


def spec_of_text(shards: Shards) -> RunSpec:
    """Features of the text for the scaling law, without a model and without training tokens."""
    return RunSpec(
        inner=0,
        tokens=0.0,
        unique=shards.manifest.train.tokens,
        unigram_loss=unigram_entropy(shards),
        difficulty=difficulty(shards.train, shards.heldout, shards.unigram_counts),
        speed_spread=SPEED_SPREAD,
    )


def best_candidate(candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate with the lowest forecast loss; None if no candidate has a forecast."""
    forecast = [candidate for candidate in candidates if candidate.forecast]
    return min(
        forecast, key=lambda candidate: candidate.forecast.loss if candidate.forecast else math.inf, default=None
    )


# ---------------------------------------------------------------- before preparation


def size_for(budget: Budget) -> str:
    """Name of the flagship size with the lowest forecast loss for a time budget, independent of the text.

    The speed is UTILIZATION times the measured speed of a matrix product; ``candidates`` measures real steps.
    """
    rate = _usual_rate(probe.choose_device())
    law = shipped_law()

    def expected(recipe: Recipe) -> float:
        model = meta_model(recipe, vocabulary_of(recipe))
        inner = inner_parameters(model.parameter_count(), model.vocabulary, model.hidden_size)
        tokens = rate * budget.amount / flops_per_token(recipe, model.vocabulary)
        run = RunSpec(
            inner=inner,
            tokens=tokens,
            unique=math.inf,
            unigram_loss=1.0,
            difficulty=CENTRE[2],
            copy_heads=has_copy_heads(recipe),
        )
        return predict_loss(law, run).loss

    return min((load_recipe(size) for size in PLANNED), key=expected).name
