"""What a budget will buy: timed candidates, the law's word on each, and the choice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_laws import true_law

from daybreak.commands import plan
from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.serialization import to_dict
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.forecasting.law import SPEED_SPREAD, RunSpec, predict_loss
from daybreak.pretraining import hardware_choices, planning
from daybreak.pretraining.flops import flops_per_token
from daybreak.pretraining.planning import Speed
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.forecast import Law, Plan, TaskLine, TaskTable
from daybreak.training.checkpoint import Progress
from daybreak.training.monitoring.disk import gigabytes, most_bytes
from daybreak.training.objectives.finish import Finish
from daybreak.training.schedule import Ramp
from daybreak.training.step import MicrobatchTooLarge, Training


@pytest.fixture
def law(monkeypatch: pytest.MonkeyPatch) -> Law:
    found = true_law()
    for place in (plan, planning):
        monkeypatch.setattr(place, "shipped_law", lambda: found)
    return found


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine of 20 Gflop/s; the names of the recipes that were timed on it."""
    names: list[str] = []

    def time_recipe(recipe: Recipe, shards: object, data: Path) -> Speed:
        names.append(recipe.name)
        flops = flops_per_token(recipe, 400) * recipe.batch * recipe.length
        return Speed(step=flops / 20e9, start=6.0, end=2.0, memory=10**9)

    monkeypatch.setattr(planning, "time_recipe", time_recipe)
    return names


def named(*names: str) -> list[Recipe]:
    """Recipes with steps of 2,048 tokens, which the law knows."""
    return [replace(load_recipe(name), batch=16) for name in names]


def test_more_time_buys_a_larger_model_and_a_lower_loss(data: Path, law: Law, timed: list[str]) -> None:
    recipes, chosen, losses = named("mini", "tiny", "small"), [], []
    for budget in ("2m", "30m", "20h"):
        made = plan.plan(data=data, budget=budget, recipes=recipes)
        assert [one.recipe for one in made.candidates] == ["daybreak-tiny", "daybreak-mini", "daybreak-small"]
        forecasts = {one.recipe: one.forecast for one in made.candidates if one.forecast}
        assert made.chosen == min(forecasts, key=lambda name: forecasts[name].loss)
        chosen.append(made.chosen)
        losses.append(forecasts[made.chosen].loss)
    assert losses == sorted(losses, reverse=True)
    sizes = ["daybreak-tiny", "daybreak-mini", "daybreak-small"]
    assert [sizes.index(name) for name in chosen] == sorted(sizes.index(name) for name in chosen)
    assert chosen[0] != chosen[-1]


def test_the_plan_is_written_and_printed(
    data: Path, law: Law, timed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "plan.json"
    made = plan.plan(data=data, budget="30m", recipes=named("tiny", "mini"), price=1.2, out=out)
    assert read_json(out, Plan) == made
    said = capsys.readouterr().out
    for words in ("Chosen: ", "Cost: 0.60", "Twice the time", "Disk", f"--data {data} --budget 30m", "H100"):
        assert words in said
    (chosen,) = [one for one in made.candidates if one.recipe == made.chosen]
    assert f"run reads the text {chosen.tokens / made.text_tokens:.0f} times; beyond about 4 times" in said
    for one in made.candidates:
        assert 0 < one.training_seconds < 1800 - 8 and one.tokens == one.tokens_per_second * one.training_seconds


def test_the_plan_says_what_its_forecasts_extrapolate(
    data: Path, law: Law, timed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of other sizes than the chosen one, too, and that of twice the time."""
    made = plan.plan(data=data, budget="30m", recipes=named("tiny", "mini"))
    said = capsys.readouterr().out
    outside = [one for one in made.candidates if one.forecast and one.forecast.beyond]
    assert len(outside) == 2
    for one in outside:
        size = one.recipe.removeprefix("daybreak-")
        assert one.forecast and f"Warning: the forecast of {size} extrapolates: {one.forecast.beyond}." in said
    (twice,) = [line for line in said.splitlines() if line.startswith("Twice the time: ")]
    assert "; rough, because of " in twice


def test_twice_the_time_is_forecast_with_the_copy_heads_of_the_recipe(
    data: Path, law: Law, timed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for copy_heads in (False, True):
        tiny = named("tiny")[0]
        recipe = replace(tiny, model=replace(tiny.model, copy_heads=copy_heads))
        made = plan.plan(data=data, budget="2m", recipes=[recipe])
        (one,) = made.candidates
        doubled = RunSpec(
            inner=one.inner, tokens=2 * one.tokens, unique=made.text_tokens, unigram_loss=made.unigram_loss,
            difficulty=made.difficulty, speed_spread=SPEED_SPREAD, copy_heads=copy_heads,
        )  # fmt: skip
        expected = predict_loss(law, doubled).words_with_reason
        assert f"Twice the time: {expected}." in capsys.readouterr().out


def test_the_next_command_names_a_recipe_by_its_file(
    data: Path, law: Law, timed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my recipe.json"
    write_json(file, {**to_dict(load_recipe("tiny")), "batch": 16})
    made = plan.plan(data=data, budget="30m", recipes=[str(file), "tiny"])
    assert sorted(one.recipe for one in made.candidates) == sorted([str(file), "daybreak-tiny"])
    plan.plan(data=data, budget="30m", recipes=[file])
    assert f"Next: daybreak pretrain '{file}' --data" in capsys.readouterr().out


def test_a_plan_says_which_size_a_run_would_choose(
    data: Path, law: Law, timed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for size in planning.PLANNED:
        monkeypatch.setattr(planning, "size_for", lambda budget, size=size: f"daybreak-{size}")
        made = plan.plan(data=data, budget="30m")
        said = f"daybreak run without a recipe chooses {size} for this budget" in capsys.readouterr().out
        assert said == (made.chosen != f"daybreak-{size}")


def test_epochs_are_written_without_an_exponent() -> None:
    assert [plan._epochs(passes) for passes in (0.034, 1.23, 12.3, 1234.5)] == ["0.03", "1.2", "12", "1,234"]


def test_a_plan_says_what_a_budget_buys_in_tasks(
    data: Path, law: Law, timed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the task 'far' no run was as good."""
    line = TaskLine(
        task="sst2", runs=list("abcd"), gaps=(0.0, 6.0), centre=2.5, squares=21.0, score=0.65, slope=0.02, spread=0.0
    )
    table = TaskTable(protocol="small", lines=[line, replace(line, task="far", gaps=(50.0, 60.0))])
    for place in (plan, planning):
        monkeypatch.setattr(place, "shipped_tasks", lambda: table)
    made = plan.plan(data=data, budget="30m", recipes=named("tiny"))
    (one,) = made.candidates
    assert one.forecast and one.tasks[0].score is not None
    gap = made.unigram_loss - one.forecast.loss
    assert one.tasks[0].score == pytest.approx(0.6 + gap / 50, abs=1e-4) and one.tasks[1].score is None
    said = capsys.readouterr().out
    assert "After fine-tuning (protocol small, scores x 100 with 90 % intervals, from 4 recorded runs): sst2" in said
    assert f"No forecast for far: measured 50.00 to 60.00 nats below the unigram baseline, not at {gap:.2f}." in said


def test_the_disk_of_a_plan_is_what_a_run_asks_for(
    data: Path, law: Law, timed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made = plan.plan(data=data, budget="30m", recipes=named("tiny"))
    weights = 4 * made.candidates[0].parameters
    asked = gigabytes(most_bytes(checkpoint_bytes=3 * weights, model_bytes=weights, seconds=1800))
    assert f"Disk: up to {asked}." in capsys.readouterr().out


def test_where_the_law_knows_no_candidate_others_are_named(data: Path, law: Law, timed: list[str]) -> None:
    with pytest.raises(UserError, match="no forecast") as refused:
        plan.plan(data=data, budget="30m", recipes=[load_recipe("bert-2018", size="tiny")])
    assert "recipes that the forecast supports: tiny, mini" in refused.value.remedy


def test_a_step_of_the_finish_that_does_not_fit_is_timed_with_a_smaller_microbatch(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps before the finish need less memory, and they alone choose the microbatch."""
    sizes: list[tuple[float, int]] = []

    def step(training: Training, progress: Progress, at: float) -> None:
        rows = training.decisions.microbatch
        if at > 0.8:
            sizes.append((at, rows))
            if rows > 8:
                raise MicrobatchTooLarge("full")

    monkeypatch.setattr(planning, "take_step", step)
    recipe = replace(load_recipe("tiny"), microbatch=32)
    assert planning.time_recipe(recipe, open_shards(data), data).step > 0
    assert [rows for _, rows in sizes][:3] == [32, 16, 8]


def test_a_candidate_that_takes_too_long_to_time_follows_from_its_arithmetic(
    data: Path, law: Law, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "PROBE_SECONDS", 5.0)
    shards = open_shards(data)
    recipes, about = named("tiny", "base"), planning.spec_of_text(shards)
    found = planning.candidates(recipes, shards, data, Budget.parse("1h"), about)
    assert timed == ["daybreak-tiny"] and [one.measured for one in found] == [True, False]
    rates = [one.tokens_per_second * one.flops_per_token for one in found]
    assert rates[1] == pytest.approx(rates[0], rel=1e-6) and found[1].memory == 0


class Launches:
    """A GPU of 20 Gflop/s in training, on which a step takes at least 2 seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.timed: list[str] = []
        monkeypatch.setattr(planning, "time_recipe", self.time_recipe)
        monkeypatch.setattr(planning.probe, "choose_device", lambda: torch.device("cuda"))
        monkeypatch.setattr(planning.probe, "matmul_rates", lambda device: {"bfloat16": 20 / planning.UTILIZATION})

    def time_recipe(self, recipe: Recipe, shards: object, data: Path) -> Speed:
        self.timed.append(recipe.name)
        flops = flops_per_token(recipe, 400) * recipe.batch * recipe.length
        return Speed(step=max(2.0, flops / 20e9), start=6.0, end=2.0, memory=10**9)


def test_the_launches_of_a_small_model_do_not_keep_a_gpu_from_timing_larger_ones(
    data: Path, law: Law, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, shards, recipes = Launches(monkeypatch), open_shards(data), named("tiny", "mini")
    about, hour = planning.spec_of_text(shards), Budget.parse("1h")
    found = planning.candidates(recipes, shards, data, hour, about)
    assert gpu.timed == ["daybreak-tiny", "daybreak-mini"] and all(one.measured for one in found)
    assert found[0].training_seconds == pytest.approx(3600 * 0.98 - 6 - 2 - planning.COMPILE_SECONDS)
    # Where the time is over, a larger one is estimated from the speed of matrix products.
    monkeypatch.setattr(planning, "PROBE_SECONDS", 0.0)
    found = planning.candidates(recipes, shards, data, hour, about)
    assert [one.measured for one in found] == [True, False]
    assert found[1].tokens_per_second * found[1].flops_per_token == pytest.approx(20e9)


def test_what_the_law_does_not_know_is_said_and_not_chosen(data: Path, law: Law, timed: list[str]) -> None:
    recipes = [load_recipe("bert-2018", size="tiny"), replace(load_recipe("tiny"), batch=1024), *named("tiny")]
    made = plan.plan(data=data, budget="30m", recipes=recipes)
    troubles = [one.trouble for one in made.candidates]
    assert sum("no forecast" in trouble for trouble in troubles) == 2 and made.chosen == "daybreak-tiny"


@pytest.mark.parametrize(
    ("budget", "words"), [("1000steps", "is not a time"), ("9s", "too short"), ("soon", "is not a budget")]
)
def test_what_cannot_be_planned(data: Path, law: Law, timed: list[str], budget: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan.plan(data=data, budget=budget, recipes=named("tiny"))


def test_a_recipe_that_does_not_fit_the_text_is_listed_with_the_reason(
    data: Path, law: Law, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    time_recipe = planning.time_recipe

    def refuse(recipe: Recipe, *given: Any) -> Speed:
        if recipe.name == "bert-2018":
            raise UserError("The text has no sentence boundaries.", "Prepare it again.")
        return time_recipe(recipe, *given)

    monkeypatch.setattr(planning, "time_recipe", refuse)
    made = plan.plan(data=str(data), budget="30m", recipes=["tiny", load_recipe("bert-2018", size="tiny")])
    assert made.chosen == "daybreak-tiny"
    (other,) = (one for one in made.candidates if one.recipe == "bert-2018")
    assert other.trouble == "no forecast: The text has no sentence boundaries"
    with pytest.raises(UserError, match="no sentence boundaries"):
        plan.plan(data=str(data), budget="30m", recipes=load_recipe("bert-2018", size="tiny"))


def test_the_entropy_of_words_is_that_of_numpy(data: Path) -> None:
    shards = open_shards(data)
    counts = np.asarray(shards.unigram_counts, dtype=float) + 1
    counts[:5] = 1  # special tokens are never masked
    heldout = shards.heldout.read(0, len(shards.heldout)).astype(int)
    heldout = heldout[heldout > 4]
    assert planning.unigram_entropy(shards) == pytest.approx(float(-np.log(counts / counts.sum())[heldout].mean()))


def test_a_recipe_is_timed_for_real_and_not_compiled_for_that(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_choices, "try_compiled", None)
    recipe = replace(
        load_recipe("tiny"), batch=8, tokenizer=WordPiece(vocabulary=400), precision="float32", compile="on"
    )
    speed = planning.time_recipe(recipe, open_shards(data), data)
    assert 0 < speed.step < 60 and speed.start > planning.IMPORTS and speed.end > 0 and speed.memory > 10**8
    assert math.isfinite(speed.end)


def test_the_speed_of_a_recipe_is_that_of_all_its_tokens(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first part of a fifth with steps four times as long reads less in its time than the rest."""
    monkeypatch.setattr(planning, "_seconds", lambda training, progress, at: 4.0 if at < 0.2 else 1.0)
    recipe = replace(load_recipe("tiny"), batch=8, precision="float32", finish=Finish())
    assert planning.time_recipe(recipe, open_shards(data), data).step == pytest.approx(5 / (1 / 4.0 + 4))


def test_the_steps_of_a_ramp_are_timed_with_the_full_batch(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of a second follow from the tokens of a full step, also at moments at which a run takes small ones."""
    tokens: list[int] = []

    def take(training: Training, progress: Progress, at: float) -> None:
        tokens.append(training.rows_of_step(progress, at) * training.phase(progress, at).length)

    monkeypatch.setattr(planning, "take_step", take)
    tiny = replace(load_recipe("tiny"), batch=8, precision="float32")
    for ramp in (Ramp(), Ramp(fraction=0.6, batch_multiple=2), Ramp(microbatches=50, batch_multiple=2)):
        planning.time_recipe(replace(tiny, ramp=ramp), open_shards(data), data)
    assert tokens == [8 * tiny.length] * 3 * len(planning.MOMENTS)


def test_the_size_grows_with_the_time(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning.probe, "matmul_rates", lambda device: {"float32": 60.0, "bfloat16": 20.0})
    sizes = [planning.size_for(Budget.parse(text)) for text in ("1m", "1h", "20d")]
    order = [f"daybreak-{size}" for size in planning.PLANNED]
    assert [order.index(size) for size in sizes] == sorted(order.index(size) for size in sizes)
    assert sizes[0] == "daybreak-tiny" and sizes[-1] != "daybreak-tiny"
