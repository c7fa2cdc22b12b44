"""Runs that do not start from random weights: a model that is continued, and a run that is made longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.models.bert import BertEncoder
from daybreak.models.importing import load_pretrained
from daybreak.recipe import Origin, Recipe, load_recipe
from daybreak.training import checkpoint
from daybreak.training.clock import Budget
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.ramp import Ramp
from daybreak.training.schedule import Trapezoid

CONTINUED_RATE = 0.1
"""Share of a recipe's rate that is the default for a model which is trained already: at the full rate it forgets."""


def continued(
    recipe: Recipe, folder: Path, *, parent_name: str = "", new_vocabulary: bool = False, general: str = ""
) -> Recipe:
    """The recipe with the model in ``folder`` to start from, in its shape, at a low rate, masked from the start.

    Args:
        folder: a Hugging Face folder of a family that Daybreak knows, or a run folder.
        parent_name: what to call it in the model card; the folder's name when empty.
        new_vocabulary: train a tokenizer on the text; by default the model's own is kept.
        general: prepared general text, on which forgetting is measured.

    Raises:
        UserError: the folder's model cannot be held exactly.
    """
    run = RunFolder(folder)
    if run.recipe.is_file() and run.model.is_dir():
        folder = run.model
    parent = load_pretrained(folder)
    shape = parent.shape
    if isinstance(shape, BertEncoder):
        # A next-sentence head that the recipe does not train is left behind, one that the parent lacks starts fresh.
        shape = replace(shape, next_sentence=recipe.model.predicts_next)
    objective = recipe.objective
    if isinstance(objective, CausalThenMasked):
        objective = replace(objective, causal_fraction=0.0)
    return replace(
        recipe,
        tokenizer=recipe.tokenizer if new_vocabulary else Existing(folder=str(parent.tokenizer)),
        model=shape,
        objective=objective,
        optimizer=replace(recipe.optimizer, lr=recipe.optimizer.lr * CONTINUED_RATE),
        phase2=replace(recipe.phase2, lr=recipe.phase2.lr * CONTINUED_RATE),
        origin=Origin(init=str(folder), parent=parent_name or _name(folder), general=general),
    )


def source_folders(recipe: Recipe) -> list[Path]:
    """What a run of ``recipe`` starts from, and must not delete before."""
    named = [recipe.origin.init, recipe.origin.branch, recipe.origin.general]
    if isinstance(recipe.tokenizer, Existing):
        named.append(recipe.tokenizer.folder)
    return [Path(name) for name in named if name]


def _name(folder: Path) -> str:
    """The folder's own name, or that of the run around a folder called model."""
    folder = folder.resolve()
    return folder.parent.name if RunFolder(folder.parent).model == folder else folder.name


def extended(source: Path, budget: str) -> Recipe:
    """The recipe of the run ``source``, gone on for ``budget`` from its last checkpoint before the decay.

    The rate stays where it was, and falls over the same share of the new run as it did of the old one; the objective
    does what it still had before it. A budget that is no longer than what ``source`` itself had left there is remarked.

    Raises:
        UserError: ``source`` is no run, or has not come to its decay.
    """
    run = RunFolder(source)
    if not run.recipe.is_file():
        raise UserError(f"'{source}' is no run folder.", "Name one with --from.")
    recipe = load_recipe(source)
    decay_starts = recipe.run_schedule().decay_starts
    if decay_starts >= 1:
        raise UserError(
            f"The rate of '{source}' never falls, so there is nothing to go back before.", "Start a new run."
        )
    found, _ = checkpoint.newest(run.branch)
    if found is None or found.progress.branched_at is None:
        raise UserError(
            f"'{source}' holds no checkpoint from before its decay.",
            f"Its rate begins to fall at {decay_starts:.0%} of its budget: let it come so far.",
        )
    own, asked = Budget.parse(recipe.budget), Budget.parse(budget)
    if asked.unit == own.unit and asked.amount <= own.amount * (1.0 - found.progress.branched_at):
        say(
            f"'{source}' itself went on from there for {1.0 - found.progress.branched_at:.0%} of its {own.text}: with "
            f"{asked.text} this run sees no more text than that one, and cannot be expected to be better."
        )
    begin = recipe.origin.begin + (1.0 - recipe.origin.begin) * found.progress.branched_at
    return replace(
        recipe,
        schedule=Trapezoid(warmup=0.0, decay=1.0 - decay_starts),
        ramp=recipe.ramp if recipe.ramp.microbatches else Ramp(),
        budget=budget,
        origin=Origin(branch=str(source), begin=begin),
    )
