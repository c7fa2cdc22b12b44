"""What a budget buys here: candidate shapes timed on this machine, and what the law says of each."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from daybreak.core.process import peak_bytes
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import quiet
from daybreak.core.world import World
from daybreak.data.sequences.shards import Shards
from daybreak.data.sequences.views import ViewRows
from daybreak.forecasting.difficulty import pairs_log_fraction
from daybreak.forecasting.law import CENTRE, SPEED_SPREAD, RunSpec, predict_loss, shipped_law
from daybreak.forecasting.runs import inner_parameters
from daybreak.forecasting.tasks import forecast_tasks, shipped_tasks
from daybreak.pretraining.flops import flops_per_token, meta_model, vocabulary_of
from daybreak.pretraining.hardware_choices import first_decisions, why_no_forecast, with_measurements
from daybreak.pretraining.setup import PretrainingJob, setup_training
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.forecast import Candidate
from daybreak.training.calibration import FEWEST_STEPS, VALIDATION_SHARE
from daybreak.training.checkpoint import Progress
from daybreak.training.clock import Budget, reserve_for
from daybreak.training.hardware import probe
from daybreak.training.step import Training, take_step

PROBE_SECONDS = 60.0
"""For all candidates together."""
TRIALS = 12
"""Steps that a probe takes, about, its warm-up and the search for the microbatch included."""
MOMENTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Shares of a run at which a step is timed: its stages cost different amounts."""
IMPORTS = 5.0
"""Seconds of a budget that starting Python and its libraries takes, about."""
SHARE = 0.3
"""Of the rate of a large product that training reaches in half precision, about (records: throughput)."""
PLANNED = ("tiny", "mini", "small", "base")
"""Sizes that are planned with: those with a recipe."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What a recipe costs on this machine, in seconds."""

    step: float
    """An optimizer step, its update included, on average over a run."""
    start: float
    """From the start of the process to the first step, measuring included."""
    end: float
    """What is kept back for the last validation and the export."""
    memory: int
    """Bytes: the most of this process so far, or of the accelerator; 0 where it was not measured."""
    measured: bool = True
    """False where the seconds follow from the arithmetic of a smaller recipe."""


def time_recipe(recipe: Recipe, shards: Shards, data: Path) -> Speed:
    """Take some steps of ``recipe`` in a folder that is thrown away.

    Raises:
        UserError: not a single row fits into this device's memory.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, quiet():
        untimed = replace(recipe, budget="1000000steps")
        job = PretrainingJob(recipe=untimed, shards=shards, data=data, run=RunFolder(Path(scratch)), started=begun)
        training, progress = setup_training(job, first_decisions(untimed, World()), World())
        training = with_measurements(job, training, progress)
        begun_steps = time.monotonic()
        steps = [_seconds(training, progress, at) for at in MOMENTS]
        final = training.validation.whole_seconds(training.validation.row_seconds)
        step = len(steps) / sum(1.0 / seconds for seconds in steps)  # tokens add up over time
    cuda = training.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated() if cuda else peak_bytes()
    end = reserve_for(validation=final, save=training.time_by_category["checkpoint"], step=step)
    return Speed(step=step, start=IMPORTS + begun_steps - begun, end=end, memory=memory)


def _seconds(training: Training, progress: Progress, at: float) -> float:
    begun = time.monotonic()
    take_step(training, progress, at)
    if training.device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - begun


# ---------------------------------------------------------------- candidates


def candidates(
    recipes: Sequence[Recipe], shards: Shards, data: Path, budget: Budget, about: RunSpec
) -> list[Candidate]:
    """Each recipe as this machine would train it for ``budget``, the smallest first, within PROBE_SECONDS.

    What would take longer to time than is left follows from its arithmetic and the speed of the one before it.

    Args:
        about: what the law asks of the text, see ``spec_of_text``.
    """
    begun, found, last = time.monotonic(), [], None
    vocabulary = shards.manifest.vocabulary
    costs = [(flops_per_token(recipe, vocabulary), recipe) for recipe in recipes]
    for cost, recipe in sorted(costs, key=lambda pair: pair[0]):
        flops = cost * recipe.global_batch(1) * recipe.length
        left = PROBE_SECONDS - (time.monotonic() - begun)
        speed = _scaled(last, flops) if last and TRIALS * flops / last[1] > left else None
        if speed is None:
            speed = time_recipe(recipe, shards, data)
            last = (speed, flops / speed.step)
        found.append(_candidate(recipe, cost, speed, vocabulary, about, budget))
    return found


def _scaled(last: tuple[Speed, float], flops: float) -> Speed:
    """The cost of a larger recipe by the floating-point operations of its step, at the rate that was reached last."""
    speed, rate = last
    step = flops / rate
    return Speed(step=step, start=speed.start, end=speed.end * step / speed.step, memory=0, measured=False)


def _candidate(recipe: Recipe, cost: int, speed: Speed, vocabulary: int, about: RunSpec, budget: Budget) -> Candidate:
    model = meta_model(recipe, vocabulary)
    seconds = max(0.0, budget.amount * (1.0 - VALIDATION_SHARE) - speed.start - speed.end)
    found = Candidate(
        recipe=recipe.name,
        parameters=model.parameter_count(),
        inner=inner_parameters(model.parameter_count(), vocabulary, model.hidden_size),
        flops_per_token=cost,
        tokens_per_second=recipe.global_batch(1) * recipe.length / speed.step,
        training_seconds=seconds,
        memory=speed.memory,
        measured=speed.measured,
    )
    if unknown := why_no_forecast(recipe):
        return replace(found, trouble=f"no forecast: {unknown}")
    if seconds < FEWEST_STEPS * speed.step:
        return replace(found, trouble="the budget is too short for it")
    loss = predict_loss(shipped_law(), replace(about, inner=found.inner, tokens=found.tokens))
    views = isinstance(recipe.rows, ViewRows) and recipe.rows.fraction > 0
    tasks = forecast_tasks(shipped_tasks(), loss, about.unigram_loss, compares_segments=views)
    return replace(found, forecast=loss, tasks=tasks)


def unigram_entropy(shards: Shards) -> float:
    """Loss of the training text's word frequencies (add-one) on all held-out tokens, nats."""
    counts = np.asarray(shards.unigram_counts, dtype=np.float64) + 1.0
    heldout = shards.heldout.read(0, len(shards.heldout)).astype(np.int64)
    return float(np.log(counts.sum() / counts)[heldout].mean())


def spec_of_text(shards: Shards) -> RunSpec:
    """What the law asks of the text; nothing is trained on it yet."""
    return RunSpec(
        inner=0,
        tokens=0.0,
        unique=shards.manifest.train.tokens,
        unigram_loss=unigram_entropy(shards),
        pairs=pairs_log_fraction(shards.train, shards.heldout, shards.unigram_counts),
        speed_spread=SPEED_SPREAD,
    )


def best_candidate(found: Sequence[Candidate]) -> Candidate | None:
    """The candidate with the lowest expected loss; None where there is none to choose."""
    able = [candidate for candidate in found if candidate.forecast]
    return min(able, key=lambda candidate: candidate.forecast.loss if candidate.forecast else math.inf, default=None)


# ---------------------------------------------------------------- before there is any data


def size_for(budget: Budget) -> str:
    """Name of the flagship's size that makes most of a time on this machine, whatever the text.

    By the law and the rate of a matrix product, of which training reaches about SHARE; ``candidates`` measures.
    """
    device = probe.choose_device()
    rate = SHARE * 1e9 * max(probe.matmul_rates(device).values())
    law = shipped_law()

    def expected(recipe: Recipe) -> float:
        model = meta_model(recipe, vocabulary_of(recipe))
        inner = inner_parameters(model.parameter_count(), model.vocabulary, model.hidden_size)
        tokens = rate * budget.amount / flops_per_token(recipe, model.vocabulary)
        run = RunSpec(inner=inner, tokens=tokens, unique=math.inf, unigram_loss=1.0, pairs=CENTRE[2])
        return predict_loss(law, run).loss

    return min((load_recipe(size) for size in PLANNED), key=expected).name
