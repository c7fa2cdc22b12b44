"""The engine of ``daybreak study`` and ``daybreak study-data``: variants, the order of the cells, and their records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TextIO

import torch

from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_json
from daybreak.core.other_processes import read_loads, why_void
from daybreak.core.process import usable_cores
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import fingerprint
from daybreak.core.terminal import duration, say
from daybreak.core.user_code import read_code
from daybreak.data.sequences.shards import open_shards
from daybreak.pretraining.flops import ANY_VOCABULARY, meta_model
from daybreak.pretraining.setup import heldout_validation
from daybreak.recipe import Recipe, resolved, with_whole_paths
from daybreak.schemas.records import tolerance
from daybreak.schemas.run import Decisions, Summary
from daybreak.schemas.studies import NOT_A_NUMBER, REFUSED, MachineLoad, Study, StudyCell, StudySettings, StudyVariant
from daybreak.studies.cell_runner import Cell, StudyFolder, slug, train_cell
from daybreak.studies.cell_tasks import CellTasks, evaluate_cell, with_scores
from daybreak.studies.paired_losses import read_curve
from daybreak.training import calibration
from daybreak.training.hardware import probe
from daybreak.training.validation import Validation

LONGEST_NAME = 200
"""Characters of the name of a folder, below the limit of file systems, which is 255 bytes."""
AFTERWARDS = 12.0
"""Approximate seconds of a cell after its budget, for the parity check and the fill-mask examples."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the compared recipes."""

    name: str
    recipe: Recipe
    """The study sets its budget and seed."""
    words: tuple[str, ...] = ()
    """The recipe and its flags, as ``daybreak pretrain`` takes them; empty to run ``recipe`` from a file."""
    code: str = ""
    """The Python file that defines the user's classes, if ``words`` is empty and ``recipe`` has some."""


# ---------------------------------------------------------------- before the first cell


def check_names(variants: Sequence[Variant]) -> None:
    """Raise UserError unless there are two or more variants with different folder names."""
    if len(variants) < 2:
        raise UserError(
            "A study compares two variants or more.", 'Name them, each in quotes: daybreak study mini "mini --batch 8".'
        )
    folders = [slug(one.name) for one in variants]
    for one, folder in zip(variants, folders):
        if not folder or folders.count(folder) > 1:
            raise UserError(
                f"The name of the variant '{one.name}' is not unique, or has no letters or digits.",
                'Give each its own: "low=mini" "high=mini --optimizer.lr 4e-3".',
            )
        if len(folder) > LONGEST_NAME:
            raise UserError(
                f"The name of the variant '{one.name[:40]} ...' is too long for a folder.",
                'Give it a short one: "high=mini --optimizer.lr 4e-3".',
            )


def checked_recipe(variant: Variant, budget: str) -> Recipe:
    """Return the recipe of a variant with the study's budget, checked as ``pretrain`` checks it."""
    recipe = replace(variant.recipe, budget=budget, seed=0)
    try:
        recipe.check()
        recipe.refuse_without_origin()
        meta_model(recipe, ANY_VOCABULARY)
        calibration.refuse_few_steps(Budget.parse(budget), recipe.global_batch(1) * recipe.length)
        if not (variant.words or variant.code) and (own := resolved(recipe).get("own_kinds")):
            raise UserError(
                f"It uses {' and '.join(own)}, which a file of your own defines.", "Name that file: code='FILE.py'."
            )
    except UserError as error:
        raise with_variant_name(variant, error) from None
    return recipe


def with_variant_name(variant: Variant, error: UserError) -> UserError:
    """Return the error with the variant's name."""
    return UserError(f"The variant '{variant.name}': {error.sentence}", error.remedy)


def heldout_sets(variants: Sequence[Variant], data: Path) -> list[Validation]:
    """Build the held-out evaluation of each variant, and check that all use the same sequence length."""
    shards = open_shards(data)
    found = []
    for one in variants:
        try:
            found.append(heldout_validation(one.recipe, shards, data, torch.device("cpu")))
        except UserError as error:
            raise with_variant_name(one, error) from None
    lengths = {validation.length: one.name for one, validation in zip(variants, found)}
    if len(lengths) > 1:
        (short, a), (long, b) = sorted(lengths.items())[:2]
        raise UserError(
            f"'{a}' is evaluated on held-out sequences of {short} tokens and '{b}' on sequences of {long}: "
            "their losses are not comparable.",
            "Give all the same --length.",
        )
    return found


def study_settings(variants: Sequence[Variant], budget: str, seeds: int, threads: int) -> StudySettings:
    """Return the settings of the study.

    Args:
        threads: 0 for the number of usable cores.
    """
    if seeds < 1:
        raise UserError(f"{seeds} seeds are too few.", "Give --seeds of at least 1, better 3.")
    cores = usable_cores()
    if not 0 <= threads <= cores:
        raise UserError(
            f"{threads} threads on {cores} cores would wait for each other.", f"Give --threads from 1 to {cores}."
        )
    origins = [with_whole_paths(one.recipe).origin for one in variants]  # a run's own recipe has whole paths
    if len({(origin.init, origin.branch) for origin in origins}) > 1:
        raise UserError(
            "The variants start from different models, so they are not comparable.",
            "Give all the same --init, or none.",
        )
    equal_clock = Budget.parse(budget).unit == "seconds"
    recipes = [checked_recipe(one, budget) for one in variants]
    machine = probe.describe(probe.choose_device(), 0.0)  # time 0, so that a resumed study has equal settings
    return StudySettings(
        budget=budget,
        equal_clock=equal_clock,
        threads=threads or cores,
        cores=cores,
        machine=machine,
        variants=[
            StudyVariant(
                name=one.name,
                words=without_folders(one.words),
                recipe=identity_of(one, recipe),
            )
            for one, recipe in zip(variants, recipes)
        ],
    )


def without_folders(words: Iterable[str]) -> str:
    """Return the words of a command with names in place of paths, because studies are recorded and shared."""
    parts = (word.rpartition("=") for word in words)
    return " ".join(f"{flag}{mark}{PurePath(value).name if '/' in value else value}" for flag, mark, value in parts)


def identity_of(variant: Variant, recipe: Recipe) -> str:
    """Return the fingerprint of a recipe, and of the code of its own classes, which decides what it computes."""
    values = resolved(recipe)
    if "own_kinds" not in values:
        return str(values["fingerprint"])
    files = [word.removeprefix("--recipe=") for word in (*variant.words, variant.code) if word.endswith(".py")]
    return fingerprint([values["fingerprint"], *(read_code(Path(file)).hex() for file in files)])


def refuse_others(out: Path, before: StudySettings, now: StudySettings) -> None:
    """Raise UserError if the study in ``out`` started with other settings, so that its cells would not compare."""
    if words := before.differs(now):
        raise UserError(f"The study in '{out}' was started with {words}.", "Use the same options, or another --out.")


def refuse_late_return(before: Study, cells: Sequence[Cell], study: StudyFolder) -> None:
    """Raise UserError for a variant that was left out while others were trained: its cells would not alternate."""
    away = {variant.name for variant in before.settings.left_out}
    trained = {cell.seed for cell in before.cells}
    for cell in cells:
        missed = cell.variant in away and cell.seed in trained
        if missed and not RunFolder(study.folder(cell)).summary.exists():
            raise UserError(
                f"The study in '{study.out}' went on without the variant '{cell.variant}', whose runs would now not "
                "alternate with the others.",
                "Leave it out, or use another --out.",
            )


def say_fewer_seeds(before: int, now: int) -> None:
    """Say that runs of a study are left out of the result of a command with fewer seeds, as of one without --seeds."""
    if now < before:
        say(f"The study has {before} seeds, and this command counts {now}: --seeds {before} counts all.")


def forecast(cells: Sequence[Cell], study: StudyFolder, tasks: CellTasks | None = None) -> None:
    """Print how long the study takes, and the tasks after each cell."""
    left = [cell for cell in cells if not RunFolder(study.folder(cell)).summary.exists()]
    budget = Budget.parse(study.budget)
    done = f", {len(cells) - len(left)} of them done" if len(left) < len(cells) else ""
    threads = f"{study.threads} thread{'s' if study.threads > 1 else ''}"
    long = f": about {duration(len(left) * (budget.amount + AFTERWARDS))}"
    estimate = (
        long
        if budget.unit == "seconds"
        else ". A budget in steps or tokens does not give equal time, so there is no verdict"
    )
    say(f"{len(cells)} cells of {budget.text} on {threads}, one at a time{done}{estimate}.")
    if tasks:
        say(f"After each cell, outside of its budget: fine-tuning on {', '.join(tasks.record.tasks)}.")


def cells_of(
    variants: Sequence[Variant], study: StudyFolder, seeds: int, data: Callable[[Variant], Path]
) -> list[Cell]:
    """Return all cells in the order in which they run.

    Args:
        data: the prepared data of a variant.
    """
    first = {
        one.name: Cell(variant=one.name, seed=0, words=one.words or _written(one, study), data=data(one))
        for one in variants
    }
    return [replace(first[name], seed=seed) for seed, name in interleaved(list(first), seeds)]


def _written(variant: Variant, study: StudyFolder) -> tuple[str, ...]:
    """Write the recipe to a file that ``daybreak pretrain`` reads, and return its arguments."""
    path = make_folder(study.out / "recipes") / f"{slug(variant.name)}.json"
    write_json(path, resolved(variant.recipe))
    return (str(path), *(("--recipe", variant.code) if variant.code else ()))


def interleaved(names: Sequence[str], seeds: int) -> list[tuple[int, str]]:
    """Return (seed, name) pairs; every other seed reverses the names, so that no variant is always first."""
    return [(seed, name) for seed in range(seeds) for name in (names if seed % 2 == 0 else names[::-1])]


# ---------------------------------------------------------------- all cells, one after the other


def run_cells(
    cells: Sequence[Cell],
    study: StudyFolder,
    lock: TextIO,
    *,
    repeat_void: bool,
    done: Callable[[list[StudyCell]], object],
    tasks: CellTasks | None = None,
) -> list[StudyCell]:
    """Run the cells that are not finished, in order; then repeat void cells once if ``repeat_void``.

    Args:
        done: called with all finished cells at the start, and after each pretraining and each fine-tuning.
        tasks: the tasks to fine-tune each model on.

    Returns:
        The last attempt of each cell, in the order of ``cells``.

    Raises:
        UserError: the command of a cell was refused.
        Interrupted: a signal arrived; the running cell saved a checkpoint.
    """
    found = {cell: read_cell(last, study) for cell in cells if (last := _last_finished(cell, study))}
    done(list(found.values()))  # the verdicts of a study that gets more seeds or tasks stay

    def run(cell: Cell, attempt: Cell, words: str) -> None:
        train_cell(attempt, study, lock)
        found[cell] = read_cell(attempt, study)
        done(list(found.values()))
        say(f"{words}: {_summary(found[cell])}{_left(found, sum(one not in found for one in cells))}")
        # A model that failed the parity check has no result (RULES.md); a void cell is evaluated after its repetition.
        if tasks and found[cell].has_result and not (attempt == cell and repeated(cell)):
            evaluate_cell(attempt, study, lock, tasks)
            found[cell] = with_scores(found[cell], attempt, study, tasks)
            done(list(found.values()))
            say(f"  {_scored(found[cell])}")

    def repeated(cell: Cell) -> bool:
        again = RunFolder(study.folder(replace(cell, attempt=1))).summary.exists()
        return bool(found[cell].void) and (repeat_void or again)

    for number, cell in enumerate(cells, 1):
        run(cell, cell, f"{number} of {len(cells)}")
    void = [cell for cell in cells if found[cell].void]
    for cell in void:
        if repeated(cell):
            run(cell, replace(cell, attempt=1), "Again")
    if left := sum(bool(found[cell].void) for cell in void):
        more = "; --repeat-void runs each once more" if not repeat_void else ", even after a repetition"
        say(f"{left} of {len(cells)} cells are void{more}. A comparison with a void cell gives no verdict.")
    return [found[cell] for cell in cells]


def _last_finished(cell: Cell, study: StudyFolder) -> Cell | None:
    """Return the last attempt of a cell that is finished, or None."""
    attempts = (replace(cell, attempt=number) for number in (1, 0))
    return next((one for one in attempts if RunFolder(study.folder(one)).summary.exists()), None)


def _summary(cell: StudyCell) -> str:
    void = f"; void: {cell.void}" if cell.void else ""
    return f"{cell.variant}, seed {cell.seed}: held-out loss {cell.loss:.3f} after {cell.steps:,} steps{void}"


def _scored(cell: StudyCell) -> str:
    """Return the scores of a cell in percent."""
    scores = ", ".join(f"{one.task} {100 * one.score:.1f}" for one in cell.tasks)
    return f"{scores}, fine-tuned in {duration(cell.task_seconds)}"


def _left(found: dict[Cell, StudyCell], cells: int) -> str:
    """Return the estimated time of the remaining cells, from the mean time so far."""
    taken = [sum(load.seconds or 0.0 for load in cell.loads) + cell.task_seconds for cell in found.values()]
    if not cells or not sum(taken):
        return ""
    return f" (about {duration(cells * sum(taken) / len(taken))} left)"


# ---------------------------------------------------------------- the record of a cell


def read_cell(cell: Cell, study: StudyFolder) -> StudyCell:
    """Return the record of a finished cell."""
    run = RunFolder(study.folder(cell))
    summary, decisions = read_json(run.summary, Summary), read_json(run.decisions, Decisions)
    loads = read_loads(study.beside(cell, ".load.jsonl"))
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
        loads=loads,
        void=_void(summary, loads, study),
    )


def _void(summary: Summary, loads: Sequence[MachineLoad], study: StudyFolder) -> str:
    if summary.is_refused:  # first: such a model has no score on tasks
        return REFUSED
    if not math.isfinite(summary.validation.loss):
        return NOT_A_NUMBER
    seconds = Budget.parse(study.budget).seconds
    if seconds is None:  # other processes change the speed of a cell, not what its steps or tokens give
        return ""
    if not loads:
        return "the machine load was not recorded"
    cores = usable_cores()
    for load in loads:
        if why := why_void(load, cores=cores, threads=study.threads):
            return why
    if (late := abs(summary.elapsed - seconds)) > tolerance(seconds):
        return f"it ended {late:.1f} s off its budget"
    return ""
