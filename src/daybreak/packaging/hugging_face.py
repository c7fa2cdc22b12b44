"""Writing the folder that stock transformers loads, without importing transformers (which would cost seconds)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from daybreak.base.encoder import Encoder, EncoderConfig
from daybreak.base.errors import UserError
from daybreak.base.files import replace_folder, write_json


def write_model_folder(
    out: Path, *, model: Encoder, shape: EncoderConfig, tokenizer: Path, length: int, vocabulary: int
) -> None:
    """Write weights, config and tokenizer into ``out`` by one rename; an older export there is replaced.

    Args:
        tokenizer: folder with tokenizer.json and tokenizer_config.json.
        length: the trained length, which becomes ``model_max_length``.
    """
    new = out.with_name(f".{out.name}.new")
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        save_file(shape.export_weights(model), new / "model.safetensors", metadata={"format": "pt"})
        write_json(new / "config.json", shape.to_hugging_face(vocabulary, length))
        shutil.copyfile(tokenizer / "tokenizer.json", new / "tokenizer.json")
        settings = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
        write_json(new / "tokenizer_config.json", {**settings, "model_max_length": length})
        with (new / "model.safetensors").open("rb") as weights:
            os.fsync(weights.fileno())
        replace_folder(new, out)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise UserError(
            f"The model cannot be written to '{out}' ({error}).",
            "Free disk space or mend the permissions, then give the same command again.",
        ) from None
