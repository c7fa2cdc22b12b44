"""Command ``export``: write a run's newest checkpoint, or a published model, as a Hugging Face folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from daybreak.commands.options import RecipeFileOptions, RunDataOptions, data_of, keywords, load_recipe_file, parse
from daybreak.core.errors import UserError
from daybreak.core.files import is_empty, make_folder, read_json, whole_folder
from daybreak.core.run_folder import REFUSED, RunFolder
from daybreak.core.terminal import say
from daybreak.schemas.run import Decisions

if TYPE_CHECKING:
    from daybreak.core.encoder import Encoder, EncoderConfig
    from daybreak.training.validation import Validation

PROBE_ROWS = 16
SAMPLE = "The river was quiet that evening, and nobody spoke of the long way home."
"""Text for the tokenizer's round trip where no run provides one."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(RunDataOptions, RecipeFileOptions):
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder; or a published model of a supported family, to convert it to Daybreak's layout."""
    out: Path
    """Folder for the model."""
    attend_padding: bool | None = None
    """For a published crammed BERT: whether tokens attend to padding. Defaults to how it was trained."""
    best: bool = False
    """Export the checkpoint with the lowest validation loss instead of the newest."""
    onnx: bool = False
    """Also write onnx/model.onnx and check it in ONNX Runtime; needs the packages onnx, onnxscript and onnxruntime."""
    push_to_hub: str = ""
    """owner/name of a private model on the Hugging Face hub to upload the folder to. It contains none of your text."""


def main(arguments: Sequence[str]) -> None:
    options = keywords(parse(ExportOptions, "export", arguments))
    load_recipe_file(options.pop("recipe"))
    repository = options.pop("push_to_hub")
    if not repository:
        export(options.pop("run"), **options)
        return
    from daybreak.exporting.hub import check_repository, push_to_hub

    check_repository(repository)
    push_to_hub(export(options.pop("run"), **options), repository, kind="model")


def export(
    run: Path | str,
    *,
    out: Path | str,
    data: Path | str | None = None,
    attend_padding: bool | None = None,
    best: bool = False,
    onnx: bool = False,
) -> Path:
    """Write the model of ``run`` to ``out``: the finished model, or the newest checkpoint of an unfinished run.

    A published checkpoint of crammed BERT in its original layout is converted to Daybreak's: it runs on the CPU without
    autocast and its heads load. The keywords are the options of ``daybreak export``.

    Raises:
        UserError: the folder is neither, has nothing to export, or ``out`` is not empty; a package for ONNX is missing;
            or the parity check failed, or ONNX Runtime and torch disagree (the folder is then written, without ONNX).
    """
    from daybreak.data.pipeline.resuming import final_place
    from daybreak.exporting.onnx import FILE, check_onnx_installed, write_onnx

    run, out = Path(run), Path(out)
    source = RunFolder(run)
    if not source.recipe.exists() and not (run / "config.json").is_file():
        raise UserError(f"'{run}' is neither a run folder nor a model.", "Name one, such as runs/tiny.")
    if out.exists() and not is_empty(make_folder(out)):
        raise UserError(f"'{out}' is not empty.", "Choose another --out.")
    if onnx:
        check_onnx_installed()
    with final_place(out) as final:
        _export(source, final, out, data, attend_padding, best)
        if (final / REFUSED).exists():
            raise UserError(
                f"The model in '{out}' failed its parity check, so do not use it.",
                f"Read {REFUSED} there and export the model again.",
            )
        if onnx:
            written = write_onnx(final)
            say(
                f"{FILE}: ONNX Runtime {written.runtime} gives the same last hidden states "
                f"(largest difference {written.largest_difference:.1e}, tolerance {written.tolerance:.1e})."
            )
    return out


def _export(
    source: RunFolder, final: Path, out: Path, data: Path | str | None, attend_padding: bool | None, best: bool
) -> None:
    """Write the model folder to ``final``, the resolved path of ``out``."""
    from daybreak.exporting.hugging_face import copy_model_folder

    run = source.path
    if not source.recipe.exists():
        for flag, given in (("--best", best), ("--data", data is not None)):
            if given:
                raise UserError(f"{flag} applies to runs only, and '{run}' is a model.", f"Leave {flag} out.")
        with whole_folder(final) as new:
            _export_model(run, new, attend_padding)
    elif attend_padding is not None:
        raise UserError(
            "--attend-padding applies to published models only.", "Leave it out: a run records how it was trained."
        )
    elif source.summary.exists() and not best:
        if not source.model.is_dir():
            raise UserError(
                f"'{run}' is a finished run without its model, such as a record.", "Export it where it was trained."
            )
        if data is not None:
            raise UserError(
                f"'{run}' is finished, and its model is copied without the data.", "Leave --data out, or add --best."
            )
        copy_model_folder(source.model, final)
        say(f"Copied the finished model to {out}.")
    else:
        with whole_folder(final) as new:
            _export_checkpoint(source, source.best if best else source.checkpoints, new, data_of(run, data))


def _export_checkpoint(source: RunFolder, checkpoints: Path, out: Path, data: Path) -> None:
    import torch

    from daybreak.data.sequences.shards import open_shards
    from daybreak.exporting.budget_files import write_training_file
    from daybreak.pretraining.run_start import refuse_other_data
    from daybreak.pretraining.setup import heldout_validation, sample_text
    from daybreak.recipe import load_recipe
    from daybreak.training import checkpoint
    from daybreak.training.averaging import RunningAverage

    recipe = load_recipe(source.recipe)
    shards = open_shards(data)
    refuse_other_data(source, shards, remedy="Give the --data it was started on.")
    model = recipe.model.build(shards.manifest.vocabulary)
    # The model that the run would export now. The best checkpoint was validated without the average.
    average = RunningAverage(recipe.average, model) if recipe.average.fraction and checkpoints != source.best else None
    progress, _ = checkpoint.load_newest(checkpoints, model, recipe.optimizer.build(model), average)
    if progress is None and checkpoints == source.best:
        raise UserError(
            f"'{source.path}' has no best checkpoint: it had no interim validation, or its end is the best.",
            "Leave --best out.",
        )
    if progress is None:
        raise UserError(
            f"The run in '{source.path}' has no checkpoint yet.",
            "Let the run write its first one; the same command resumes a stopped run.",
        )
    if average:
        average.put_in(model)
    first = read_json(source.decisions, Decisions).first_heldout
    validation = heldout_validation(recipe, shards, data, torch.device("cpu"), first=first)
    length = recipe.longest_read(second=progress.second_from is not None)
    _write_checked(
        out, model, recipe.model, data / "tokenizer", length, validation, sample_text(shards, data), step=progress.step
    )
    write_training_file(source, out)


def _export_model(folder: Path, out: Path, attend_padding: bool | None) -> None:
    """Read a model of a supported family in any layout, and write it in Daybreak's."""
    import numpy as np
    import torch

    from daybreak.core.batch import Batch
    from daybreak.data.tokenizers.tokenizer_import import Existing
    from daybreak.models.crammed import CrammedEncoder
    from daybreak.models.importing import load_pretrained
    from daybreak.pretraining.setup import VALIDATION_LENGTH
    from daybreak.training.validation import Validation

    found = load_pretrained(folder)
    shape, model = found.shape, found.model
    if attend_padding is not None:
        if not isinstance(shape, CrammedEncoder):
            raise UserError("--attend-padding applies to a crammed BERT only.", "Leave it out.")
        shape = replace(shape, attend_padding=attend_padding)
        model = shape.build(found.model.vocabulary)
        model.load_state_dict(found.model.state_dict())
    # Rotary positions and sinusoids have no limit, but the folder names the length of training. Learned positions may
    # be more than were trained, and the tokenizer then names fewer.
    named = read_json(folder / "config.json").get("max_position_embeddings")
    length = shape.longest or (named if isinstance(named, int) and named > 0 else VALIDATION_LENGTH)
    settings = folder / "tokenizer_config.json"
    read = read_json(settings) if settings.is_file() else {}
    truncated = read.get("model_max_length") if isinstance(read, dict) else None
    if isinstance(truncated, int) and truncated > 0:
        length = min(length, truncated)
    ids = np.random.default_rng(0).integers(0, model.vocabulary, (PROBE_ROWS, min(length, VALIDATION_LENGTH)))
    ids[:, 0] = found.special.cls
    counts = np.ones(model.vocabulary, dtype=np.uint64)
    validation = Validation(Batch(input_ids=ids, special=found.special), counts, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as scratch:
        Existing(folder=str(found.tokenizer)).make([], Path(scratch))
        _write_checked(out, model, shape, Path(scratch), length, validation, SAMPLE)
    for facts in folder.glob("train_budget_*.json"):
        shutil.copyfile(facts, out / facts.name)


def _write_checked(
    out: Path,
    model: Encoder,
    shape: EncoderConfig,
    tokenizer: Path,
    length: int,
    validation: Validation,
    text: str,
    step: int | None = None,
) -> None:
    """Write the model folder, evaluate the model, and check the parity of the two.

    Args:
        text: for the round trip of the tokenizer.
        step: of the checkpoint, to print with its losses; None for a published model.
    """
    from daybreak.exporting.hugging_face import write_model_folder
    from daybreak.exporting.parity import check_parity, verdict

    write_model_folder(out, model=model, shape=shape, tokenizer=tokenizer, length=length, special=validation.special)
    validated = validation.evaluate(model)
    if step is not None:
        say(f"Step {step:,}: held-out loss {validated.loss:.3f}, masked accuracy {validated.accuracy:.1%}.")
    parity = check_parity(
        out,
        model=model,
        shape=shape,
        length=length,
        validation=validation,
        accuracy=validated.accuracy,
        tokenizer=tokenizer,
        text=text,
    )
    say(verdict(parity))
