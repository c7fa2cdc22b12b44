"""Verb: a run's newest checkpoint -> a Hugging Face folder that passed the parity gate."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from daybreak.assembly import yardstick
from daybreak.base.errors import UserError
from daybreak.base.files import make_folder
from daybreak.base.run_folder import RunFolder
from daybreak.base.terminal import say
from daybreak.data.shards import open_shards
from daybreak.data.tokenizer import load_tokenizer
from daybreak.packaging.hugging_face import write_model_folder
from daybreak.packaging.parity import check_parity, verdict
from daybreak.recipe import load_recipe
from daybreak.training import checkpoint
from daybreak.training.clock import Tick


def export(run: Path, *, out: Path, data: Path | None = None) -> Path:
    """Write the model of ``run`` to ``out``: the finished one, or the newest checkpoint of a run under way.

    Args:
        data: the run's prepared data, for its tokenizer and held-out rows; ``run/data`` when None.

    Raises:
        UserError: the folder is no run, has nothing to export, or ``out`` is not empty.
    """
    source = RunFolder(run)
    if not source.recipe.exists():
        raise UserError(f"'{run}' is no run folder.", "Name one, such as runs/daybreak-tiny.")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"'{out}' is not empty.", "Choose another --out.")
    make_folder(out.parent)
    if source.summary.exists():
        shutil.copytree(source.model, out, dirs_exist_ok=True)
        say(f"Copied the finished model to {out}.")
        return out
    _export_checkpoint(source, out, data or run / "data")
    return out


def _export_checkpoint(source: RunFolder, out: Path, data: Path) -> None:
    recipe = load_recipe(source.recipe)
    shards = open_shards(data)
    model = recipe.model.build(shards.manifest.vocabulary)
    progress, _ = checkpoint.load_newest(source.checkpoints, model, recipe.optimizer.build(model))
    if progress is None:
        raise UserError(f"The run in '{source.path}' has no checkpoint yet.", "Wait for its first, or start it.")
    validation = yardstick(recipe, shards, data, torch.device("cpu"))
    write_model_folder(
        out,
        model=model,
        shape=recipe.model,
        tokenizer=data / "tokenizer",
        length=max(recipe.longest_row, validation.length),
        vocabulary=shards.manifest.vocabulary,
        special=shards.manifest.special,
    )
    model.eval()
    seen = validation.measure(
        model,
        rows=validation.rows,
        step=progress.step,
        tokens=progress.tokens,
        tick=Tick(progress.elapsed, 0.0),
        final=False,
    )
    text = load_tokenizer(data / "tokenizer").decode(
        [int(i) for i in shards.heldout.read(0, min(40, len(shards.heldout)))]
    )
    say(f"Step {progress.step:,}: held-out loss {seen.loss:.3f}, masked accuracy {seen.accuracy:.1%}.")
    parity = check_parity(
        out,
        model=model,
        shape=recipe.model,
        length=max(recipe.longest_row, validation.length),
        validation=validation,
        accuracy=seen.accuracy,
        text=text,
    )
    say(verdict(parity))
