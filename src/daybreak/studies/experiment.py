"""A experiment at equal clock: who takes part, in what order the cells run, and what each of them left.

``daybreak study`` and ``daybreak study-data`` are two questions put to this one engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TextIO

import torch

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_json
from daybreak.core.other_processes import read_turns, why_void
from daybreak.core.process import usable_cores
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import duration, say
from daybreak.data.sequences.shards import open_shards
from daybreak.pretraining.setup import heldout_validation
from daybreak.recipe import Recipe, resolved
from daybreak.schemas.records import tolerance
from daybreak.schemas.run import Decisions, Summary
from daybreak.schemas.studies import StudyCell, StudySettings, StudyVariant, Turn
from daybreak.studies.cell_runner import Cell, Place, slug, train_cell
from daybreak.studies.cell_tasks import CellTasks, evaluate_cell, with_scores
from daybreak.studies.paired_losses import read_curve
from daybreak.training import calibration
from daybreak.training.clock import Budget
from daybreak.training.hardware import probe
from daybreak.training.validation import Validation

REFUSED = "its export was refused by the parity gate"
AFTERWARDS = 12.0
"""Seconds that a cell takes beyond its budget, roughly: the parity gate in a clean process, and fill-mask examples."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Who takes part."""

    name: str
    recipe: Recipe
    """Its budget and seed are those of the study."""
    words: tuple[str, ...] = ()
    """The recipe and its flags, as ``daybreak pretrain`` takes them; empty to run ``recipe`` from a file."""
    code: str = ""
    """Where ``words`` are empty and ``recipe`` holds classes of the user's: the Python file that defines them."""


# ---------------------------------------------------------------- before the first cell


def named_apart(variants: Sequence[Variant]) -> None:
    """Raise UserError unless there are two or more, and their run folders have names of their own."""
    if len(variants) < 2:
        raise UserError(
            "A study compares two variants or more.",
            'Name them, each in quotes: daybreak study mini "mini --batch 8".',
        )
    places = [slug(one.name) for one in variants]
    for one, place in zip(variants, places):
        if not place or places.count(place) > 1:
            raise UserError(
                f"The name of the variant '{one.name}' does not tell it from the others.",
                'Give each its own: "low=mini" "high=mini --optimizer.lr 4e-3".',
            )


def agreed(variant: Variant, budget: str) -> Recipe:
    """The recipe of a variant at the study's budget, refused where ``pretrain`` would refuse it.

    Raises:
        UserError: with the variant's name.
    """
    recipe = replace(variant.recipe, budget=budget, seed=0)
    try:
        recipe.check()
        calibration.refuse_few_steps(Budget.parse(budget), recipe.global_batch(1) * recipe.length)
        if not (variant.words or variant.code) and (own := resolved(recipe).get("own_kinds")):
            raise UserError(f"It holds {' and '.join(own)}, of a file of yours.", "Name that file: code='FILE.py'.")
    except UserError as error:
        raise of(variant, error) from None
    return recipe


def of(variant: Variant, error: UserError) -> UserError:
    """The same complaint, with the variant's name."""
    return UserError(f"The variant '{variant.name}': {error.sentence}", error.remedy)


def heldout_sets(variants: Sequence[Variant], data: Path) -> list[Validation]:
    """On what each is judged: it must be the same for all. Builds the held-out rows of each, which finds more faults.

    Raises:
        UserError: a recipe does not fit the data, or two are judged on rows of different length.
    """
    shards = open_shards(data)
    found = []
    for one in variants:
        try:
            found.append(heldout_validation(one.recipe, shards, data, torch.device("cpu")))
        except UserError as error:
            raise of(one, error) from None
    lengths = {validation.length: one.name for one, validation in zip(variants, found)}
    if len(lengths) > 1:
        (short, a), (long, b) = sorted(lengths.items())[:2]
        raise UserError(
            f"'{a}' is judged on held-out rows of {short} positions and '{b}' on rows of {long}: their losses do not "
            "compare.",
            "Give all the same --length.",
        )
    return found


def settled(variants: Sequence[Variant], budget: str, seeds: int, threads: int) -> StudySettings:
    """What all cells have in common.

    Args:
        threads: 0 for as many as there are usable cores.

    Raises:
        UserError: a recipe, the budget, seeds or threads cannot be; there is a GPU that torch cannot use.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("A study starts its own processes, one at a time.", "Start it without torchrun.")
    if seeds < 1:
        raise UserError(f"{seeds} seeds are no study.", "Give --seeds of at least 1, better 3.")
    cores = usable_cores()
    if not 0 <= threads <= cores:
        raise UserError(
            f"{threads} threads on {cores} cores would wait for each other.", f"Give --threads from 1 to {cores}."
        )
    if len({(one.recipe.origin.init, one.recipe.origin.branch) for one in variants}) > 1:
        raise UserError("RULES.md compares only runs from the same start.", "Give all the same --init, or none.")
    equal_clock = Budget.parse(budget).unit == "seconds"
    recipes = [agreed(one, budget) for one in variants]
    machine = probe.describe(probe.choose_device(), 0.0)  # at no time, for a study that goes on is to find itself again
    return StudySettings(
        budget=budget,
        equal_clock=equal_clock,
        threads=threads or cores,
        cores=cores,
        machine=machine,
        variants=[
            StudyVariant(
                name=one.name,
                words=" ".join(PurePath(word).name if "/" in word else word for word in one.words),
                recipe=resolved(recipe)["fingerprint"],
            )
            for one, recipe in zip(variants, recipes)
        ],
    )


def refuse_others(out: Path, before: StudySettings, now: StudySettings) -> None:
    """Raise UserError where the study in ``out`` was begun under other settings: its cells would not compare."""
    if words := before.differs(now):
        raise UserError(f"The study in '{out}' was begun with {words}.", "Give what it began with, or another --out.")


def forecast(cells: Sequence[Cell], place: Place, tasks: CellTasks | None = None) -> None:
    """Say how long pretraining will take, and what follows each cell."""
    left = [cell for cell in cells if not RunFolder(place.folder(cell)).summary.exists()]
    budget = Budget.parse(place.budget)
    done = f", {len(cells) - len(left)} of them done" if len(left) < len(cells) else ""
    threads = f"{place.threads} thread{'s' if place.threads > 1 else ''}"
    long = f": about {duration(len(left) * (budget.amount + AFTERWARDS))}"
    told = long if budget.unit == "seconds" else ". No equal clock: no claim"
    say(f"{len(cells)} cells of {budget.text} on {threads}, one at a time{done}{told}.")
    if tasks:
        say(f"After each cell, outside of its budget: fine-tuning on {', '.join(tasks.record.tasks)}.")


def cells_of(variants: Sequence[Variant], place: Place, seeds: int, data: Callable[[Variant], Path]) -> list[Cell]:
    """All cells in the order in which they run.

    Args:
        data: the prepared data of a variant.
    """
    first = {
        one.name: Cell(variant=one.name, seed=0, words=one.words or _written(one, place), data=data(one))
        for one in variants
    }
    return [replace(first[name], seed=seed) for seed, name in in_turns(list(first), seeds)]


def _written(variant: Variant, place: Place) -> tuple[str, ...]:
    """The recipe as a file, which ``daybreak pretrain`` takes as well."""
    path = make_folder(place.out / "recipes") / f"{slug(variant.name)}.json"
    write_json(path, resolved(variant.recipe))
    return (str(path), *(("--recipe", variant.code) if variant.code else ()))


def in_turns(names: Sequence[str], seeds: int) -> list[tuple[int, str]]:
    """(seed, name) in turns; every other seed goes the other way round, so that nobody is always first."""
    return [(seed, name) for seed in range(seeds) for name in (names if seed % 2 == 0 else names[::-1])]


# ---------------------------------------------------------------- all cells, one after the other


def play(
    cells: Sequence[Cell],
    place: Place,
    lock: TextIO,
    *,
    repeat_void: bool,
    done: Callable[[list[StudyCell]], object],
    tasks: CellTasks | None = None,
) -> list[StudyCell]:
    """Run the cells that are not finished yet, in their order; then, where asked for, those that are void once more.

    Args:
        done: is given all finished cells whenever there is one more, and whenever one was fine-tuned.
        tasks: what the model of each cell is fine-tuned on after its pretraining.

    Returns:
        Of each cell its last attempt, in the order of ``cells``.

    Raises:
        UserError: a cell refused its command.
        Interrupted: a signal came; the cell under way saved a checkpoint.
    """
    found: dict[Cell, StudyCell] = {}

    def run(cell: Cell, attempt: Cell, words: str, left: int) -> None:
        train_cell(attempt, place, lock)
        found[cell] = read_cell(attempt, place)
        done(list(found.values()))
        say(f"{words}: {_told(found[cell])}{_left(found, left)}")
        # A model that the parity gate refused has no result (RULES.md); a void cell is judged when it was repeated.
        if tasks and found[cell].void != REFUSED and not (attempt == cell and repeated(cell)):
            evaluate_cell(attempt, place, lock, tasks)
            found[cell] = with_scores(found[cell], attempt, place, tasks)
            done(list(found.values()))
            say(f"  {_scored(found[cell])}")

    def repeated(cell: Cell) -> bool:
        again = RunFolder(place.folder(replace(cell, attempt=1))).summary.exists()
        return bool(found[cell].void) and (repeat_void or again)

    for number, cell in enumerate(cells, 1):
        run(cell, cell, f"{number} of {len(cells)}", len(cells) - number)
    void = [cell for cell in cells if found[cell].void]
    for cell in void:
        if repeated(cell):
            run(cell, replace(cell, attempt=1), "Again", 0)
    if left := sum(bool(found[cell].void) for cell in void):
        more = "; --repeat-void runs each once more" if not repeat_void else ", also when they were repeated"
        say(f"{left} of {len(cells)} cells are void{more}. A comparison with a void cell makes no claim.")
    return [found[cell] for cell in cells]


def _told(cell: StudyCell) -> str:
    void = f"; void: {cell.void}" if cell.void else ""
    return f"{cell.variant}, seed {cell.seed}: held-out loss {cell.loss:.3f} after {cell.steps:,} steps{void}"


def _scored(cell: StudyCell) -> str:
    """The scores of a cell in points of 100."""
    told = ", ".join(f"{one.task} {100 * one.score:.1f}" for one in cell.tasks)
    return f"{told}, fine-tuned in {duration(cell.task_seconds)}"


def _left(found: dict[Cell, StudyCell], cells: int) -> str:
    """How long the rest will take, by what it took so far."""
    taken = [sum(turn.seconds or 0.0 for turn in cell.turns) + cell.task_seconds for cell in found.values()]
    if not cells or not sum(taken):
        return ""
    return f" (about {duration(cells * sum(taken) / len(taken))} left)"


# ---------------------------------------------------------------- what a cell left


def read_cell(cell: Cell, place: Place) -> StudyCell:
    """The record of a finished cell."""
    run = RunFolder(place.folder(cell))
    summary, decisions = read_json(run.summary, Summary), read_json(run.decisions, Decisions)
    turns = read_turns(place.beside(cell, ".load.jsonl"))
    seen = summary.validation
    return StudyCell(
        variant=cell.variant,
        seed=cell.seed,
        attempt=cell.attempt,
        folder=f"cells/{cell.name}",
        recipe=read_recipe_file(run.recipe)["fingerprint"],
        loss=seen.loss,
        accuracy=seen.accuracy,
        unigram_loss=seen.unigram_loss,
        positions=seen.positions,
        steps=summary.steps,
        tokens=summary.tokens,
        epochs=summary.epochs,
        tokens_per_second=summary.tokens_per_second,
        elapsed=summary.elapsed,
        resumes=summary.resumes,
        threads=decisions.threads,
        precision=decisions.precision,
        curve=read_curve(run),
        turns=turns,
        void=_void(summary, turns, place),
    )


def _void(summary: Summary, turns: Sequence[Turn], place: Place) -> str:
    if not turns:
        return "nobody watched the load"
    cores = usable_cores()
    for turn in turns:
        if why := why_void(turn, cores=cores, threads=place.threads):
            return why
    if summary.parity is not None and not summary.parity.passed:
        return REFUSED
    seconds = Budget.parse(place.budget).seconds
    if seconds is not None and (late := abs(summary.elapsed - seconds)) > tolerance(seconds):
        return f"it ended {late:.1f} s off its budget"
    return ""
