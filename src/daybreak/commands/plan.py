"""Verb: before the run, what a budget will buy on this machine and this text, and which size makes most of it."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence
from pathlib import Path

import torch

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, write_json
from daybreak.core.formatting import check_price, compact, count
from daybreak.core.terminal import duration, say, working
from daybreak.data.sequences.shards import open_shards
from daybreak.forecasting.law import SPEED_SPREAD, RunSpec, predict_loss, shipped_law
from daybreak.forecasting.tasks import shipped_tasks
from daybreak.pretraining.planning import PLANNED, best_candidate, candidates, spec_of_text
from daybreak.recipe import FAMILY, Recipe, load_recipe
from daybreak.schemas.forecast import Candidate, Forecast, Plan, TaskForecast
from daybreak.training.calibration import MANY_EPOCHS
from daybreak.training.clock import Budget
from daybreak.training.hardware import probe
from daybreak.training.monitoring.disk import gigabytes, most_bytes

CARDS = {"RTX 3090": 71, "RTX 4090": 165, "L4": 121, "A10": 125, "A100": 312, "H100 SXM": 989}
"""Dense bfloat16 products with float32 sums, Tflop/s, as NVIDIA's white papers and data sheets state them."""
CARD_SHARE = 0.3
"""Of a card's stated rate, where nothing was measured on one: a cautious guess, and told as one."""
STATE_BYTES, WEIGHT_BYTES = 12, 4
"""For each parameter: of a checkpoint, its weight and two moments in float32; of a model, the weight alone."""


def plan(
    *,
    data: Path,
    budget: str,
    recipes: Sequence[Recipe] = (),
    price: float | None = None,
    out: Path | None = None,
) -> Plan:
    """Time the candidates here, forecast what each would reach, and say what the budget buys.

    Args:
        data: folder made by ``prepare``.
        budget: a time, such as 24h.
        recipes: candidates; the flagship in all its sizes by default.
        price: of an hour of this machine, in any currency.
        out: where the plan is written as JSON.

    Raises:
        UserError: the budget is no time, too short for every candidate, or ``data`` cannot be used.
    """
    check_price(price)
    asked = Budget.parse(budget)
    if asked.unit != "seconds":
        raise UserError(f"'{budget}' is no time.", "Plan for a time, such as --budget 8h.")
    if out:
        make_folder(out.parent)
    shards = open_shards(data)
    usual = recipes or [load_recipe(size) for size in PLANNED]
    about = spec_of_text(shards)
    with working("Timing the candidates") as work:
        work.show(0.0)
        found = candidates(usual, shards, data, asked, about)
    chosen = best_candidate(found)
    if chosen is None:
        raise UserError(
            f"Nothing can be planned for {budget}: {found[0].recipe}: {found[0].trouble}.",
            f"Give a longer --budget, or recipes that the law knows: {', '.join(PLANNED)}.",
        )
    made = Plan(
        budget=budget,
        device=probe.describe(probe.choose_device(), 0.0).device,
        unigram_loss=about.unigram_loss,
        pairs=about.pairs,
        text_tokens=shards.manifest.train.tokens,
        candidates=found,
        chosen=chosen.recipe,
    )
    if out:
        write_json(out, made)
    tell(made, chosen, asked, price, data)
    return made


def tell(made: Plan, chosen: Candidate, budget: Budget, price: float | None, data: Path) -> None:
    """Say what the plan says."""
    say(
        f"{count(made.text_tokens)} tokens of text, on which word frequencies alone reach {made.unigram_loss:.2f} "
        f"nats. {made.device}, {budget.text}:\n"
    )
    say(f"{'recipe':12} {'parameters':>10} {'tokens/s':>9} {'reads':>8} {'epochs':>7}  expected held-out loss (90 %)")
    for one in made.candidates:
        epochs = _epochs(one.tokens / made.text_tokens)
        guess = "" if one.measured else "  (by its arithmetic, not timed)"
        told = one.forecast.words if one.forecast else one.trouble
        say(
            f"{one.recipe.removeprefix(FAMILY):12} {compact(one.parameters):>10} "
            f"{compact(one.tokens_per_second):>9} {compact(one.tokens):>8} {epochs:>7}  "
            f"{told}{guess}"
        )
    say()
    for line in details(made, chosen, budget, price, data):
        say(line)


def _epochs(passes: float) -> str:
    return f"{passes:.2f}" if passes < 1 else f"{passes:.1f}" if passes < 10 else f"{passes:,.0f}"


def details(made: Plan, chosen: Candidate, budget: Budget, price: float | None, data: Path) -> list[str]:
    """What follows for the chosen one: its end, its cost, its disk, what else would change, and what to beware of."""
    assert chosen.forecast
    ends = datetime.datetime.now() + datetime.timedelta(seconds=budget.amount)
    state, weights = STATE_BYTES * chosen.parameters, WEIGHT_BYTES * chosen.parameters
    disk = most_bytes(checkpoint_bytes=state, model_bytes=weights)
    lines = [
        f"Chosen: {chosen.recipe.removeprefix(FAMILY)}. Begun now it ends at {ends:%H:%M on %d %B}, after "
        f"{duration(chosen.training_seconds)} of training; then come the parity gate and what you evaluate.",
        f"Disk: up to {gigabytes(disk)}."
        + (f" Memory: {gigabytes(chosen.memory)}." if chosen.memory else "")
        + (f" Cost: {price * budget.amount / 3600:.2f}." if price is not None else ""),
    ]
    more = _again(made, chosen, chosen.tokens * 2.0)
    lines.append(f"Twice the time: {more.words}.")
    lines += task_lines(chosen.tasks)
    if not torch.cuda.is_available():
        lines.append(_on_cards(made.candidates[-1], budget))
    if chosen.forecast.beyond:
        lines.append(f"Beware: this forecast reaches beyond what the law was measured on: {chosen.forecast.beyond}.")
    if chosen.tokens > MANY_EPOCHS * made.text_tokens:
        lines.append(
            f"Beware: the text is read {chosen.tokens / made.text_tokens:.0f} times; beyond about {MANY_EPOCHS:.0f} "
            "times more text would teach more than more time."
        )
    name = chosen.recipe.removeprefix(FAMILY)
    lines.append(f"Next: daybreak pretrain {name} --data {shlex.quote(str(data))} --budget {made.budget}")
    return lines


def task_lines(tasks: Sequence[TaskForecast]) -> list[str]:
    """What the model will score after fine-tuning, in points of 100, and where nothing was measured."""
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
            f"After fine-tuning (protocol {shipped_tasks().protocol}, points of 100 with 90 % intervals, from {runs} "
            f"recorded runs): {', '.join(one.words for one in known)}."
        )
    lines += [f"Not measured there: {', '.join(names)} ({why})." for why, names in unknown.items()]
    return lines


def _again(made: Plan, chosen: Candidate, tokens: float) -> Forecast:
    """The chosen one's forecast at another number of tokens."""
    run = RunSpec(
        inner=chosen.inner, tokens=tokens, unique=made.text_tokens, unigram_loss=made.unigram_loss, pairs=made.pairs,
        speed_spread=SPEED_SPREAD,
    )  # fmt: skip
    return predict_loss(shipped_law(), run)


def _on_cards(largest: Candidate, budget: Budget) -> str:
    """What the largest candidate would read in the same time on other devices."""
    rate = CARD_SHARE * 1e12 * budget.amount / largest.flops_per_token
    told = ", ".join(f"{name} {compact(tflops * rate)}" for name, tflops in CARDS.items())
    name = largest.recipe.removeprefix(FAMILY)
    return (
        f"Tokens that {name} would read in that time on a GPU, where {CARD_SHARE:.0%} of its stated bfloat16 rate is "
        f"reached (a guess: nothing was measured on one): {told}."
    )
