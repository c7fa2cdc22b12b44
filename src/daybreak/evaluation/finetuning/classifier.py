"""A stock transformers model with a task's head from any Hugging Face encoder folder, and back into one.

transformers takes seconds to import, so it is imported when a function needs it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from daybreak.core.errors import UserError, reason
from daybreak.core.files import replace_folder
from daybreak.evaluation.finetuning.heads import PooledClassifier
from daybreak.evaluation.tasks.kinds import KINDS
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.models.crammed import MODEL_TYPE, MODELLING_FILES
from daybreak.models.importing import refuse_pickle

LAST_LAYERS = ("classifier.", "qa_outputs.")
"""What transformers calls the layer of the labels, or of the ends of a span."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from reporting at each load that the classifier is new: that is the point of it."""
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


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Turn what transformers raises about an unusable folder into one sentence, and keep its own report away."""
    try:
        with _quiet():
            yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # transformers has exceptions of its own for each kind of odd file
        raise UserError(
            f"transformers cannot load the {what} in '{folder}': {reason(error)}.",
            "Name a Hugging Face folder of an encoder with its config, weights and tokenizer.",
        ) from error


def _is_ours(folder: Path) -> bool:
    """Whether Daybreak's own modelling code belongs to the model; that is imported, code in ``folder`` never runs.

    Raises:
        UserError: the model needs other code.
    """
    from transformers import CONFIG_MAPPING

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind, code = config.get("model_type"), config.get("auto_map")
    except (OSError, ValueError, AttributeError):
        return False  # transformers says what is wrong with it
    ours = kind == MODEL_TYPE and all(
        (folder / name).is_file() and (folder / name).read_bytes() == source.read_bytes()
        for name, source in MODELLING_FILES.items()
    )
    # Code beside a model that transformers has a class for is for older versions, and not looked at.
    if not ours and (kind == MODEL_TYPE or (code and kind not in CONFIG_MAPPING)):
        raise UserError(
            f"The model in '{folder}' brings its own code, and Daybreak does not run foreign code.",
            "Export the model again with this version of Daybreak, or use a model that transformers has a class for.",
        )
    return ours


def load_tokenizer(folder: Path) -> Any:
    """The folder's own tokenizer.

    Raises:
        UserError: there is none, it has no padding token, or the model needs foreign code.
    """
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")):
        raise UserError(f"'{folder}' holds no tokenizer.", "Put the model's tokenizer.json into that folder.")
    config = load_config(folder) if _is_ours(folder) else None
    with reading(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, local_files_only=True, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise UserError(f"The tokenizer in '{folder}' has no padding token.", "Use the folder of an encoder.")
    return tokenizer


def load_config(folder: Path) -> Any:
    """The folder's transformers configuration.

    Raises:
        UserError: transformers cannot read it, the model needs foreign code, or is no encoder of one text.
    """
    from transformers import AutoConfig

    if _is_ours(folder):
        from daybreak.models.modeling_crammed import CrammedConfig

        with reading(folder, "config"):
            return CrammedConfig.from_pretrained(folder, local_files_only=True)
    with reading(folder, "config"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not all(isinstance(getattr(config, name, None), int) for name in ("hidden_size", "vocab_size")):
        raise UserError(
            f"The model in '{folder}', a {config.model_type}, is no encoder of text.", "Name the folder of one."
        )
    return config


def build_classifier(
    folder: Path,
    kind: Kind,
    labels: Sequence[str],
    seed: int,
    untrained: bool,
    head: str = "stock",
    pair: bool = False,
) -> Any:
    """The encoder with a fresh head of that kind, in float32, dropout as its config says.

    ``seed`` draws the head (with ``untrained``: every weight) and, from there on, dropout.

    Args:
        head: a name of ``heads.HEADS``.
        pair: the rows are two texts each.

    Raises:
        UserError: transformers has no such head for this encoder, or the weights are missing, torn or incomplete.
    """
    config = load_config(folder)
    kind.configure(config, labels)
    torch.manual_seed(seed)
    if head != "stock":
        encoder = _bare_encoder(folder, config, untrained)
        torch.manual_seed(seed)
        return PooledClassifier(encoder, config, head, pair)
    with reading(folder, "model"):
        source = model_class(config, kind.head)
        if untrained:
            return _random(source, config)
        # A head for other labels gives way to a fresh one.
        model, report = read_weights(folder, source, config, ignore_mismatched_sizes=True)
    inside = f"{model.base_model_prefix}."
    unfit = [*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])]
    check_complete(folder, (name for name in unfit if name.startswith(inside)), "the encoder")
    if not any(name.startswith(LAST_LAYERS) for name in unfit):
        _forget_answers(model, source, config)
    return model


def _bare_encoder(folder: Path, config: Any, untrained: bool) -> Any:
    with reading(folder, "model"):
        source = model_class(config)
        if untrained:
            return _random(source, config)
        encoder, report = read_weights(folder, source, config)
    check_complete(folder, report["missing_keys"], "the encoder")
    return encoder


def model_class(config: Any, head: str = "") -> Any:
    """Daybreak's own class or transformers' auto class; ``head`` as ``Kind.head``, empty for the bare encoder."""
    import transformers

    if config.model_type == MODEL_TYPE:
        from daybreak.models import modeling_crammed

        return getattr(modeling_crammed, f"Crammed{head or 'Model'}")
    return getattr(transformers, f"AutoModel{head}")


def read_weights(folder: Path, source: Any, config: Any, **more: Any) -> tuple[Any, dict[str, Any]]:
    """The model in float32, and transformers' report on which weights it found.

    Raises:
        UserError: the folder has no weights as safetensors. A pickle is never opened.
    """
    refuse_pickle(folder)
    model, report = source.from_pretrained(
        folder,
        config=config,
        local_files_only=True,
        output_loading_info=True,
        use_safetensors=True,
        dtype=torch.float32,
        trust_remote_code=False,
        **more,
    )
    return model, report


def check_complete(folder: Path, lacking: Iterable[str], part: str) -> None:
    """Refuse weights that lack what is needed: transformers fills it with random numbers. A pooler never counts.

    Args:
        lacking: names of tensors.
        part: of the model, in words.

    Raises:
        UserError: there is one.
    """
    names = sorted(name for name in lacking if "pooler" not in name)
    if names:
        raise UserError(
            f"The weights in '{folder}' lack {len(names)} tensors of {part}, such as '{names[0]}'.",
            "Use a folder whose weights belong to its config.json.",
        )


def _random(source: Any, config: Any) -> Any:
    """A model with random weights."""
    if config.model_type == MODEL_TYPE:
        return source(config)
    return source.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _forget_answers(model: Any, source: Any, config: Any) -> None:
    """Give the model a fresh last layer: what it brings was learned for another task that has as many labels."""
    fresh = _random(source, config)
    for name in LAST_LAYERS:
        layer = getattr(model, name.rstrip("."), None)
        if layer is not None:
            layer.load_state_dict(getattr(fresh, name.rstrip(".")).state_dict())


def parameter_count(folder: Path) -> int:
    """Of the encoder in ``folder``, about, from its weights' size; 0 where it has none."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) // 4


def check_save_folder(folder: Path) -> None:
    """Refuse to replace a folder that holds anything but an earlier saved classifier.

    Raises:
        UserError: the path is a file, or a folder with other contents.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"'{folder}' is not a folder.", "Choose another folder with --save.")
    config = folder / "config.json"
    saved = config.is_file() and any(kind.head in config.read_text(errors="replace") for kind in KINDS.values())
    if any(folder.iterdir()) and not saved:
        raise UserError(f"'{folder}' is not empty and holds no saved classifier.", "Choose another folder with --save.")


def save_classifier(model: Any, source: Path, folder: Path) -> None:
    """Write the model with its tokenizer as a stock folder, in one step."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        with _quiet():
            model.save_pretrained(temporary)
            # Read afresh: the one used for training carries that training's truncation.
            load_tokenizer(source).save_pretrained(temporary)
        if model.config.model_type == MODEL_TYPE:
            for name, ours in MODELLING_FILES.items():
                shutil.copyfile(ours, temporary / name)
        replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
