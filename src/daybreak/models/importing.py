"""Import of a Hugging Face folder of any supported family. Weights are read from safetensors, not from pickles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from daybreak.core.encoder import Encoder, EncoderConfig
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.special_tokens import special_ids
from daybreak.models import bert, bert_variants, crammed, modern
from daybreak.schemas.run import SpecialIds

FAMILIES: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], tuple[EncoderConfig, Encoder]]] = {
    "bert": bert.from_hugging_face,
    "roberta": bert_variants.from_roberta,
    "xlm-roberta": bert_variants.from_roberta,
    "camembert": bert_variants.from_roberta,
    "distilbert": bert_variants.from_distilbert,
    "electra": bert_variants.from_electra,
    "modernbert": modern.from_hugging_face,
    crammed.MODEL_TYPE: crammed.from_hugging_face,
    crammed.PUBLISHED_TYPE: crammed.from_hugging_face,
}
"""``model_type`` in config.json -> the function that imports it."""

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class Imported:
    """An imported pretrained model."""

    shape: EncoderConfig
    model: Encoder
    """The model with the weights of the checkpoint, float32 on the CPU."""
    special: SpecialIds
    tokenizer: Path
    """Folder with the tokenizer.json of the model."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the warnings and progress bars of transformers; errors still raise."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_pretrained(folder: Path) -> Imported:
    """Load the model, its shape and its special ids from a local Hugging Face folder.

    Raises:
        UserError: a file is missing or damaged, the family or a part of the architecture is not supported, or the
            tokenizer lacks a special token or has ids beyond the model's vocabulary.
    """
    config = read_json(folder / "config.json")
    # Configs of 2018 and 2019 were all BERT's and have no model_type.
    family = str(config.get("model_type", "bert")) if isinstance(config, dict) else ""
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UserError(f"The model in '{folder}' is of type '{family}'.", f"Use one of these types: {known}.")
    weights = read_weights(folder)
    try:
        shape, model = FAMILIES[family](config, weights)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        # The last line of torch's message names the tensor; an exception may have no message.
        last = [line.strip().rstrip(".") for line in str(error).strip().splitlines()[-1:]]
        reason = ": ".join([type(error).__name__, *last])
        raise UserError(
            f"The config.json in '{folder}' does not fit its weights ({reason}).",
            "Download or save the checkpoint again.",
        ) from error
    return Imported(shape=shape, model=model, special=_special_ids(folder, model.vocabulary), tokenizer=folder)


def refuse_pickle(folder: Path) -> None:
    """Raise UserError if the only weights in ``folder`` are a Python pickle."""
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"The weights in '{folder}' are a Python pickle, which can run arbitrary code when it is loaded.",
            f"If you trust it, load it with transformers and call save_pretrained(), which writes {WEIGHTS}.",
        )


def refuse_shards_elsewhere(folder: Path) -> None:
    """Raise UserError if the index of the weights names a file outside ``folder``; transformers would open it."""
    for name in _shards(folder):
        if Path(name).name != name:
            raise UserError(
                f"The weights of '{folder}' name the file '{name}', which is not in that folder.",
                "Download the model again.",
            )


def _shards(folder: Path) -> list[str]:
    """Files that the index of the weights names, one for each tensor; empty without an index."""
    listed = read_json(folder / INDEX) if (folder / INDEX).is_file() else None
    shards = listed.get("weight_map") if isinstance(listed, dict) else None
    return [str(name) for name in shards.values()] if isinstance(shards, dict) else []


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the folder by name, from one safetensors file or from shards."""
    if (folder / WEIGHTS).is_file():
        files = [WEIGHTS]
    else:
        files = sorted({Path(name).name for name in _shards(folder)})
        if not (folder / INDEX).is_file():
            refuse_pickle(folder)
    if not files:
        raise UserError(
            f"'{folder}' holds no {WEIGHTS}.",
            "Name the folder of a saved Hugging Face model; weights in pytorch_model.bin, a pickle, are not read.",
        )
    weights: dict[str, Tensor] = {}
    for name in files:
        try:
            weights.update(load_file(folder / name))
        except (OSError, SafetensorError) as error:
            raise UserError(f"'{folder / name}' cannot be read ({error}).", "Download or copy it again.") from None
    return weights


def _special_ids(folder: Path, vocabulary: int) -> SpecialIds:
    """Return the special ids of the tokenizer in ``folder``, of a model with ``vocabulary`` tokens."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(
            f"'{folder}' holds no tokenizer.json.",
            "Load its tokenizer with transformers.AutoTokenizer and call save_pretrained(), which writes one.",
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no more specific exception
        raise UserError(f"'{path}' cannot be read ({error}).", "Download or copy it again.") from None
    ids = special_ids(tokenizer, folder)
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values())
    if largest >= vocabulary:
        raise UserError(
            f"The tokenizer in '{folder}' has the id {largest}, but the model has only {vocabulary} tokens.",
            "Use the tokenizer that the model was trained with.",
        )
    return ids
