"""Recipes of runs that start from a trained model (--init) or from another run before its decay (--from)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.exporting.budget_files import trained_from_scratch
from daybreak.models.bert import BertEncoder
from daybreak.models.importing import load_pretrained
from daybreak.recipe import Origin, Recipe, load_recipe
from daybreak.schemas.run import Decisions
from daybreak.training import checkpoint
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.phases import decays_last
from daybreak.training.recovery import current_change
from daybreak.training.schedule import Ramp, Trapezoid

PUBLISHED_RATE = 0.1
"""Fraction of the recipe's learning rate for a published model, which forgets at the full rate. A model that Daybreak
trained from scratch learns too little at such a rate (docs/log.md)."""


def continue_model(
    recipe: Recipe, folder: Path, *, parent_name: str = "", new_vocabulary: bool = False, general: str = ""
) -> Recipe:
    """Return the recipe that continues the model in ``folder``: its shape, no causal stage, a low learning rate unless
    Daybreak trained the model from scratch.

    Args:
        folder: a Hugging Face folder of a supported family, or a run folder.
        parent_name: its name in the model card; empty for the folder's name.
        new_vocabulary: train a tokenizer on the text instead of keeping the model's.
        general: prepared general text to measure forgetting on.

    Raises:
        UserError: the model has parts that Daybreak's architecture lacks.
    """
    run = RunFolder(folder)
    if run.recipe.is_file():
        if not run.model.is_dir():
            raise UserError(
                f"The run in '{folder}' is not finished, so it has no model yet.",
                f"Finish it, or export its newest checkpoint with daybreak export {folder} --out MODEL and name MODEL.",
            )
        folder = run.model
    parent, own = load_pretrained(folder), trained_from_scratch(folder)
    shape = parent.shape
    if isinstance(shape, BertEncoder):
        # A next-sentence head that the recipe does not train is dropped; one that the parent lacks starts at random.
        shape = replace(shape, next_sentence=recipe.model.predicts_next)
        if own:  # its config.json names the dropout of fine-tuning
            dropout, of_attention = (getattr(recipe.model, name, 0.0) for name in ("dropout", "attention_dropout"))
            shape = replace(shape, dropout=dropout, attention_dropout=of_attention)
    objective = recipe.objective
    if isinstance(objective, CausalThenMasked):
        objective = replace(objective, causal_fraction=0.0)
    rate = 1.0 if own else PUBLISHED_RATE
    return replace(
        recipe,
        tokenizer=recipe.tokenizer if new_vocabulary else Existing(folder=str(parent.tokenizer)),
        model=shape,
        objective=objective,
        optimizer=recipe.optimizer.at_rate(rate),
        phase2=replace(recipe.phase2, lr=recipe.phase2.lr * rate),
        origin=Origin(init=str(folder), parent=parent_name or _name(folder), general=general),
    )


def source_folders(recipe: Recipe) -> list[Path]:
    """Folders that a run of ``recipe`` reads, which --overwrite must not delete."""
    names = [recipe.origin.init, recipe.origin.branch, recipe.origin.general]
    if isinstance(recipe.tokenizer, Existing):
        names.append(recipe.tokenizer.folder)
    return [Path(name) for name in names if name]


def _name(folder: Path) -> str:
    """The name of the folder, or of the run if the folder is the model of one."""
    folder = folder.resolve()
    return folder.parent.name if RunFolder(folder.parent).model == folder else folder.name


def extend_run(source: Path, budget: str) -> Recipe:
    """Return the recipe that continues the run ``source`` for ``budget`` from its last checkpoint before the decay.

    The learning rate stays constant and then decays over the same fraction of the new run as of the old one; if a
    divergence lowered its peak, it stays lowered. The objective continues where it was, and so does the embedding
    finish; a second phase to come keeps its place before it. A message says so if ``budget`` is not longer than what
    ``source`` had left.
    """
    run = RunFolder(source)
    if not run.recipe.is_file():
        raise UserError(f"'{source}' is not a run folder.", "Name a run folder with --from.")
    recipe = load_recipe(source)
    decay_starts = recipe.run_schedule().decay_starts
    if decay_starts >= 1:
        raise UserError(
            f"The learning rate of '{source}' never decays, so the run cannot be extended.", "Start a new run."
        )
    newest, _ = checkpoint.read_newest(run.branch)
    if newest is None or newest.progress.branched_at is None:
        begin = 0.0 if decays_last(recipe.phase2, None) else recipe.phase2.start
        raise UserError(
            f"'{source}' holds no checkpoint from before its decay.",
            f"Let it run until its decay starts, at {begin + (1.0 - begin) * decay_starts:.0%} of its budget.",
        )
    old, new = Budget.parse(recipe.budget), Budget.parse(budget)
    if new.unit == old.unit and new.amount <= old.amount * (1.0 - newest.progress.branched_at):
        say(
            f"After that checkpoint '{source}' trained for {1.0 - newest.progress.branched_at:.0%} of its {old.text}: "
            f"with {new.text} this run sees no more text and will probably not be better."
        )
    rate = current_change(read_json(run.decisions, Decisions), newest.progress.step).rate
    if rate < 1.0:
        say(f"After a divergence '{source}' trained at {rate:g} times its learning rate, and so does this run.")
    begin = recipe.origin.begin + (1.0 - recipe.origin.begin) * newest.progress.branched_at
    second = replace(recipe.phase2, lr=recipe.phase2.lr * rate)
    if recipe.finish.enabled and newest.progress.second_from is None:
        start = 1.0 - (1.0 - second.start) / (1.0 - newest.progress.branched_at)
        second = replace(second, start=max(1e-6, start))  # at once, if it was about to start
    return replace(
        recipe,
        optimizer=recipe.optimizer.at_rate(rate),
        phase2=second,
        schedule=Trapezoid(warmup=0.0, decay=1.0 - decay_starts),
        ramp=recipe.ramp if recipe.ramp.microbatches else Ramp(),
        budget=budget,
        origin=Origin(branch=str(source), begin=begin, parent=recipe.origin.parent),
    )
