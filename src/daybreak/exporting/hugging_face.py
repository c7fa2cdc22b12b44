"""Writes the folder that stock transformers loads, without importing transformers, which takes seconds."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from daybreak.core.encoder import Encoder, EncoderConfig
from daybreak.core.errors import UserError, reason
from daybreak.core.files import copy_files, read_json, refuse_link_out, replace_folder, write_json
from daybreak.data.tokenizers.tokenizer import FILES, load_tokenizer
from daybreak.exporting.sentence_modules import sentence_modules
from daybreak.models.importing import WEIGHTS
from daybreak.schemas.run import SpecialIds


def write_model_folder(
    out: Path,
    *,
    model: Encoder,
    shape: EncoderConfig,
    tokenizer: Path,
    length: int,
    special: SpecialIds = SpecialIds(),
) -> None:
    """Write weights, config and tokenizer into ``out`` with one rename, replacing an older export.

    Args:
        tokenizer: folder with tokenizer.json and, if known, tokenizer_config.json.
        length: the length of training, written as ``model_max_length``; the config may allow more positions.
        special: the ids of the special tokens in that tokenizer.
    """
    settings = _settings(tokenizer, special)
    with _replacement(out) as new:
        new.mkdir(parents=True)
        save_file(shape.export_weights(model), new / WEIGHTS, metadata={"format": "pt"})
        config = shape.to_hugging_face(model.vocabulary, length, special)
        write_json(new / "config.json", config)
        shutil.copymode(new / "config.json", new / WEIGHTS)  # safetensors sets owner-only permissions
        for name, source in shape.modelling_files().items():
            shutil.copyfile(source, new / name)
        if not shape.modelling_files():
            for name, content in sentence_modules(model.hidden_size, length).items():
                (new / name).parent.mkdir(exist_ok=True)
                write_json(new / name, content)
        for name in FILES:  # an imported tokenizer may have additional files
            if (tokenizer / name).is_file():
                shutil.copyfile(tokenizer / name, new / name)
        facts = {"model_max_length": length, "model_input_names": _inputs(config, tokenizer)}
        write_json(new / "tokenizer_config.json", {**settings, **facts})
        with (new / WEIGHTS).open("rb") as weights:
            os.fsync(weights.fileno())


def copy_model_folder(model: Path, out: Path) -> None:
    """Copy the model folder ``model`` to ``out`` with one rename.

    Raises:
        UserError: a file of the model is missing or damaged, or ``out`` cannot be written.
    """
    for name in ("config.json", "tokenizer.json", WEIGHTS):
        if not (model / name).is_file():
            raise UserError(f"'{model}' lacks {name}.", "Restore the file, or export a checkpoint with --best.")
    try:
        with safe_open(model / WEIGHTS, "np"):
            pass  # opening reads the header and compares it with the size of the file
    except SafetensorError as error:
        raise UserError(
            f"'{model / WEIGHTS}' is damaged ({reason(error)}).",
            "Restore the file, or export a checkpoint with --best.",
        ) from None
    for path in model.rglob("*"):
        refuse_link_out(model, path)
    with _replacement(out) as new:
        copy_files(model, new)


@contextlib.contextmanager
def _replacement(out: Path) -> Iterator[Path]:
    """A name for a new folder, which replaces ``out`` at the end; after an error nothing of it remains."""
    new = out.with_name(f".{out.name}.new")
    try:
        shutil.rmtree(new, ignore_errors=True)
        yield new
        replace_folder(new, out)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"The model cannot be written to '{out}' ({reason(error)}).",
            "Free disk space or correct the permissions, then repeat the command.",
        ) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _settings(tokenizer: Path, special: SpecialIds) -> dict[str, Any]:
    """tokenizer_config.json with the names of the special tokens and the class that reads all of tokenizer.json.

    The files of an imported tokenizer may lack the names: those of BERT and RoBERTa do, because transformers' own
    classes set them. These classes build parts of the tokenizer anew, so that one of another kind would encode a text
    differently than in training.
    """
    path = tokenizer / "tokenizer_config.json"
    found = read_json(path) if path.is_file() else {}
    settings: dict[str, Any] = {
        **(found if isinstance(found, dict) else {}),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    settings.pop("auto_map", None)  # code that the folder does not have
    unnamed = {f"{role}_token": id for role, id in vars(special).items() if not settings.get(f"{role}_token")}
    if unnamed:
        loaded = load_tokenizer(tokenizer)
        settings |= {name: loaded.id_to_token(id) for name, id in unnamed.items()}
    return settings


def _inputs(config: dict[str, Any], tokenizer: Path) -> list[str]:
    """The inputs of the model, with segments only if it has embeddings for them and the tokenizer tells them apart.

    ModernBERT has none, and RoBERTa's tokenizer puts both texts of a pair into the first segment.
    """
    told = config.get("type_vocab_size", 0) > 1 and load_tokenizer(tokenizer).encode("a", "a").type_ids[-1:] == [1]
    return ["input_ids", *(["token_type_ids"] if told else []), "attention_mask"]
