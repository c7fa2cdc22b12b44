"""Verb: a run's newest checkpoint, or a published one -> a Hugging Face folder that passed the parity gate."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.exporting.hugging_face import copy_model_folder, write_model_folder
from daybreak.exporting.onnx import FILE, check_onnx_installed, write_onnx
from daybreak.exporting.parity import REFUSED, check_parity, verdict
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.importing import load_pretrained
from daybreak.pretraining.run_start import refuse_other_tokenizer
from daybreak.pretraining.setup import VALIDATION_LENGTH, heldout_validation, sample_text
from daybreak.recipe import load_recipe
from daybreak.training import checkpoint
from daybreak.training.averaging import RunningAverage
from daybreak.training.clock import Tick
from daybreak.training.validation import Validation

PROBE_ROWS = 16
SAMPLE = "The river was quiet that evening, and nobody spoke of the long way home."
"""For the tokenizer's round trip, where there is no text of a run."""


def export(
    run: Path,
    *,
    out: Path,
    data: Path | None = None,
    attend_padding: bool | None = None,
    best: bool = False,
    onnx: bool = False,
) -> Path:
    """Write the model of ``run`` to ``out``: the finished one, or the newest checkpoint of a run under way.

    Args:
        run: a run folder; or a model folder, such as a published checkpoint of crammed BERT in its own layout, which
            is written in ours: for the CPU, without autocast, with heads that work.
        data: the run's prepared data, for its tokenizer and held-out rows; ``run/data`` when None.
        attend_padding: of a crammed BERT, whether words look at padding; None for as it was trained.
        best: the checkpoint of the best interim validation in place of the newest.
        onnx: also write ``onnx/model.onnx``, unless the folder was refused; it needs the packages of the extra serve.

    Raises:
        UserError: the folder is neither, has nothing to export, or ``out`` is not empty; a package for ONNX is missing,
            or ONNX Runtime does not compute what torch does (the folder is then there without it).
    """
    source = RunFolder(run)
    if not source.recipe.exists() and not (run / "config.json").is_file():
        raise UserError(f"'{run}' is no run folder and no model.", "Name one, such as runs/tiny.")
    if out.exists() and any(make_folder(out).iterdir()):
        raise UserError(f"'{out}' is not empty.", "Choose another --out.")
    if onnx:
        check_onnx_installed()
    make_folder(out.parent)
    if not source.recipe.exists():
        _export_model(run, out, attend_padding)
    elif attend_padding is not None:
        raise UserError(
            "--attend-padding is for a published checkpoint.", "Leave it out: a run knows how it was trained."
        )
    elif source.summary.exists() and not best:
        if not source.model.is_dir():
            raise UserError(
                f"'{run}' is a finished run without its model, as records are.", "Export it where it was trained."
            )
        copy_model_folder(source.model, out)
        say(f"Copied the finished model to {out}.")
    else:
        _export_checkpoint(source, source.best if best else source.checkpoints, out, data or run / "data")
    if onnx and not (out / REFUSED).exists():
        found = write_onnx(out)
        say(
            f"{FILE}: ONNX Runtime {found.runtime} gives the same last hidden states "
            f"(largest difference {found.largest_difference:.1e}, allowed {found.tolerance:.1e})."
        )
    return out


def _export_checkpoint(source: RunFolder, checkpoints: Path, out: Path, data: Path) -> None:
    recipe = load_recipe(source.recipe)
    shards = open_shards(data)
    refuse_other_tokenizer(source, shards)
    model = recipe.model.build(shards.manifest.vocabulary)
    # What the run would end with now; its best model was judged, and chosen, without the average.
    average = RunningAverage(recipe.average, model) if recipe.average.fraction and checkpoints != source.best else None
    progress, _ = checkpoint.load_newest(checkpoints, model, recipe.optimizer.build(model), average)
    if progress is None and checkpoints == source.best:
        raise UserError(
            f"'{source.path}' keeps no best checkpoint: it had no interim validation, or its end is the best.",
            "Leave --best out.",
        )
    if progress is None:
        raise UserError(f"The run in '{source.path}' has no checkpoint yet.", "Wait for its first, or start it.")
    if average:
        average.put_in(model)
    validation = heldout_validation(recipe, shards, data, torch.device("cpu"))
    length = max(recipe.longest_row, validation.length)
    write_model_folder(
        out,
        model=model,
        shape=recipe.model,
        tokenizer=data / "tokenizer",
        length=length,
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
    say(f"Step {progress.step:,}: held-out loss {seen.loss:.3f}, masked accuracy {seen.accuracy:.1%}.")
    parity = check_parity(
        out,
        model=model,
        shape=recipe.model,
        length=length,
        validation=validation,
        accuracy=seen.accuracy,
        text=sample_text(shards, data),
    )
    say(verdict(parity))


def _export_model(folder: Path, out: Path, attend_padding: bool | None) -> None:
    """Read a model of a known family, whatever its layout, and write it in ours."""
    found = load_pretrained(folder)
    shape, model = found.shape, found.model
    if attend_padding is not None:
        if not isinstance(shape, CrammedEncoder):
            raise UserError("--attend-padding is for a crammed BERT.", "Leave it out.")
        shape = replace(shape, attend_padding=attend_padding)
        model = shape.build(found.model.vocabulary)
        model.load_state_dict(found.model.state_dict())
    length = min(shape.longest or VALIDATION_LENGTH, VALIDATION_LENGTH)
    ids = np.random.default_rng(0).integers(0, model.vocabulary, (PROBE_ROWS, length))
    ids[:, 0] = found.special.cls
    counts = np.ones(model.vocabulary, dtype=np.uint64)
    validation = Validation(Batch(ids=ids, special=found.special), counts, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        Existing(folder=str(found.tokenizer)).make([], Path(scratch))
        write_model_folder(
            out,
            model=model,
            shape=shape,
            tokenizer=Path(scratch),
            length=shape.longest or VALIDATION_LENGTH,
            vocabulary=model.vocabulary,
            special=found.special,
        )
    seen = validation.evaluate(model)
    parity = check_parity(
        out,
        model=model,
        shape=shape,
        length=shape.longest or VALIDATION_LENGTH,
        validation=validation,
        accuracy=seen.accuracy,
        text=SAMPLE,
    )
    say(verdict(parity))
