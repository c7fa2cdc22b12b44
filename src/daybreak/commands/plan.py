"""Command ``plan``: forecast what a budget reaches on this machine and text, and choose the model size."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from daybreak.commands.options import keywords, parse
from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import check_output_file, make_folder, write_json
from daybreak.core.formatting import check_price, compact, count
from daybreak.core.terminal import duration, say, working
from daybreak.data.sequences.shards import open_shards
from daybreak.forecasting.law import SPEED_SPREAD, RunSpec, predict_loss, shipped_law
from daybreak.forecasting.tasks import shipped_tasks
from daybreak.schemas.forecast import Candidate, Plan, TaskForecast
from daybreak.training.monitoring.disk import gigabytes, most_bytes

if TYPE_CHECKING:
    from daybreak.recipe import Recipe

GPUS = {"RTX 3090": 71, "RTX 4090": 165, "L4": 121, "A10": 125, "A100": 312, "H100 SXM": 989}
"""Dense bfloat16 TFLOP/s with float32 accumulation, from NVIDIA's white papers and data sheets."""
GPU_UTILIZATION = 0.3
"""Assumed fraction of the stated rate, because none was measured: a cautious guess."""
STATE_BYTES, WEIGHT_BYTES = 12, 4
"""Bytes per parameter in float32: a checkpoint has the weight and two moments, a model the weight alone."""


MOST_SECONDS = 10 * 365 * 86400
"""Longest budget of a plan, whose end is a date."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="[RECIPE ...]")] = ()
    """Recipes to choose from. Defaults to daybreak-tiny, -mini, -small and -base."""
    data: Path
    """Folder made by daybreak prepare."""
    budget: str
    """Time budget: 90s, 30m, 24h, 2d."""
    price: float | None = None
    """Price of an hour of this machine, in any currency."""
    out: Path | None = None
    """Also write the plan to this JSON file."""


def main(arguments: Sequence[str]) -> None:
    plan(**keywords(parse(PlanOptions, "plan", arguments)))


def plan(
    *,
    data: Path | str,
    budget: str,
    recipes: Sequence[Recipe | Path | str] | Recipe | Path | str = (),
    price: float | None = None,
    out: Path | str | None = None,
) -> Plan:
    """Time the candidates on this machine, forecast the loss of each, print the plan and return it.

    The keywords are the options of ``daybreak plan``; ``recipes`` are the candidates, or what ``load_recipe`` reads
    them from.

    Raises:
        UserError: ``budget`` is not a time, ``out`` cannot be written, or no candidate can be chosen.
    """
    from daybreak.pretraining.planning import PLANNED, best_candidate, candidates, size_for, spec_of_text
    from daybreak.recipe import FAMILY, Recipe, load_recipe
    from daybreak.training.hardware import probe

    data, out = Path(data), Path(out) if out else None
    asked = [recipes] if isinstance(recipes, Recipe | Path | str) else recipes
    check_price(price)
    parsed = Budget.parse(budget)
    if parsed.unit != "seconds":
        raise UserError(f"'{budget}' is not a time.", "Give a time, such as --budget 8h.")
    if parsed.amount > MOST_SECONDS:
        raise UserError(f"A budget of {budget} is too long to plan.", "Give at most ten years, such as --budget 24h.")
    if out:
        check_output_file(out, "--out plan.json")
        make_folder(out.parent)
    shards = open_shards(data)
    # A recipe of a file or a run is called by its path, by which the next command finds it.
    named = [one if isinstance(one, Recipe) else _called(load_recipe(one), str(one)) for one in asked or PLANNED]
    about = spec_of_text(shards)
    with working("Timing the candidates") as work:
        work.show(0.0)
        found = candidates(named, shards, data, parsed, about)
    chosen = best_candidate(found)
    if chosen is None:
        raise UserError(
            f"No candidate can be chosen for {budget}: {found[0].recipe} has {found[0].trouble}.",
            f"Give a longer --budget, or recipes that the forecast supports: {', '.join(PLANNED)}.",
        )
    made = Plan(
        budget=budget,
        device=probe.describe(probe.choose_device(), 0.0).device,
        unigram_loss=about.unigram_loss,
        difficulty=about.difficulty,
        text_tokens=shards.manifest.train.tokens,
        candidates=found,
        chosen=chosen.recipe,
    )
    show(made, chosen, parsed, price, data)
    if out:
        write_json(out, made)
    if not recipes and (size := size_for(parsed)) != chosen.recipe:
        say(
            f"daybreak run without a recipe chooses {size.removeprefix(FAMILY)} for this budget: it estimates the "
            "speed, and extrapolates the forecast to sizes that have none here."
        )
    return made


def _called(recipe: Recipe, source: str) -> Recipe:
    from daybreak.recipe import FAMILY

    return recipe if recipe.name in (source, FAMILY + source) else replace(recipe, name=source)


def show(made: Plan, chosen: Candidate, budget: Budget, price: float | None, data: Path) -> None:
    from daybreak.recipe import FAMILY

    say(
        f"{count(made.text_tokens)} tokens of text with a unigram baseline of {made.unigram_loss:.2f} nats. "
        f"{made.device}, {budget.text}:\n"
    )
    say(f"{'recipe':12} {'parameters':>10} {'tokens/s':>9} {'tokens':>8} {'epochs':>7}  forecast held-out loss (90 %)")
    for one in made.candidates:
        epochs = _epochs(one.tokens / made.text_tokens)
        note = "" if one.measured else "  (estimated from FLOPs, not timed)"
        forecast = one.forecast.words if one.forecast else one.trouble
        say(
            f"{one.recipe.removeprefix(FAMILY):12} {compact(one.parameters):>10} "
            f"{compact(one.tokens_per_second):>9} {compact(one.tokens):>8} {epochs:>7}  "
            f"{forecast}{note}"
        )
    say()
    for line in details(made, chosen, budget, price, data):
        say(line)


def _epochs(passes: float) -> str:
    return f"{passes:.2f}" if passes < 1 else f"{passes:.1f}" if passes < 10 else f"{passes:,.0f}"


def details(made: Plan, chosen: Candidate, budget: Budget, price: float | None, data: Path) -> list[str]:
    """Return lines about the chosen candidate: end, disk, memory, cost, twice the time, tasks, GPUs and warnings."""
    import torch

    from daybreak.recipe import FAMILY
    from daybreak.training.calibration import repetition_notice

    assert chosen.forecast
    name = chosen.recipe.removeprefix(FAMILY)
    ends = datetime.datetime.now() + datetime.timedelta(seconds=budget.amount)
    state, weights = STATE_BYTES * chosen.parameters, WEIGHT_BYTES * chosen.parameters
    disk = most_bytes(checkpoint_bytes=state, model_bytes=weights, seconds=budget.amount)
    lines = [
        f"Chosen: {name}. Started now, it ends at {ends:%H:%M on %d %B}, after "
        f"{duration(chosen.training_seconds)} of training; the parity check and evaluations follow.",
        f"Disk: up to {gigabytes(disk)}."
        + (f" Memory: {gigabytes(chosen.memory)}." if chosen.memory else "")
        + (f" Cost: {price * budget.amount / 3600:.2f}." if price is not None else ""),
    ]
    doubled = RunSpec(
        inner=chosen.inner,
        tokens=chosen.tokens * 2.0,
        unique=made.text_tokens,
        unigram_loss=made.unigram_loss,
        difficulty=made.difficulty,
        speed_spread=SPEED_SPREAD,
        copy_heads=chosen.copy_heads,
    )
    lines.append(f"Twice the time: {predict_loss(shipped_law(), doubled).words_with_reason}.")
    lines += task_lines(chosen.tasks)
    if not torch.cuda.is_available():
        lines.append(_on_gpus(made.candidates[-1], budget))
    for one in made.candidates:
        if one.forecast and one.forecast.beyond:
            size = one.recipe.removeprefix(FAMILY)
            lines.append(f"Warning: the forecast of {size} extrapolates: {one.forecast.beyond}.")
    if notice := repetition_notice(chosen.tokens / made.text_tokens):
        lines.append(notice)
    words = shlex.join([name, "--data", str(data), "--budget", made.budget])
    lines.append(f"Next: daybreak pretrain {words}")
    return lines


def task_lines(tasks: Sequence[TaskForecast]) -> list[str]:
    """Return the forecast scores after fine-tuning, times 100, and the tasks without a forecast."""
    if not tasks:
        return []
    known = [one for one in tasks if not one.beyond]
    unknown: dict[str, list[str]] = {}
    for one in tasks:
        if one.beyond:
            unknown.setdefault(one.beyond, []).append(one.task)
    lines = []
    if known:
        fewest, most = min(one.runs for one in known), max(one.runs for one in known)
        runs = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        lines.append(
            f"After fine-tuning (protocol {shipped_tasks().protocol}, scores x 100 with 90 % intervals, from {runs} "
            f"recorded runs): {', '.join(one.words for one in known)}."
        )
    lines += [f"No forecast for {', '.join(names)}: {reason}." for reason, names in unknown.items()]
    return lines


def _on_gpus(largest: Candidate, budget: Budget) -> str:
    """Describe how many tokens the largest candidate would process in the same time on GPUs."""
    from daybreak.recipe import FAMILY

    rate = GPU_UTILIZATION * 1e12 * budget.amount / largest.flops_per_token
    tokens = ", ".join(f"{name} {compact(tflops * rate)}" for name, tflops in GPUS.items())
    name = largest.recipe.removeprefix(FAMILY)
    return (
        f"Tokens for {name} in that time on a GPU at {GPU_UTILIZATION:.0%} of its stated bfloat16 rate (a guess, not "
        f"measured): {tokens}."
    )
