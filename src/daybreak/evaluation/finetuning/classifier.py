"""Load a transformers model with a task head from a Hugging Face encoder folder, and save it.

transformers takes seconds to import, so functions import it.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from daybreak.core.errors import UserError, reason
from daybreak.core.files import is_empty, parse_json, read_json, whole_folder, write_json
from daybreak.evaluation.finetuning.heads import PooledClassifier
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.models.crammed import MODEL_TYPE, MODELLING_FILES
from daybreak.models.importing import quiet_transformers, refuse_pickle, refuse_shards_elsewhere

MOST_LAYERS = 1000
"""More layers than any encoder has; transformers creates as many modules as a config.json says."""
LAST_LAYERS = ("classifier.", "qa_outputs.")
"""Names of the output layer in transformers."""


@contextmanager
def reading(folder: Path, what: str) -> Iterator[None]:
    """Turn an error of transformers about a folder into a UserError, and silence its own report."""
    try:
        with quiet_transformers():
            yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # transformers raises many types
        raise UserError(
            f"transformers cannot load the {what} in '{folder}': {reason(error)}.",
            "Name a Hugging Face folder of an encoder with its config, weights and tokenizer.",
        ) from error


def _config_json(folder: Path) -> dict[str, Any]:
    """Return the contents of config.json; nothing if it cannot be read, which transformers reports."""
    try:
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _is_saved_classifier(config: dict[str, Any]) -> bool:
    """Return whether a config.json is one that ``save_classifier`` of this version wrote."""
    return isinstance(config.get("fine_tuning"), dict)


def _is_ours(folder: Path) -> bool:
    """Return whether the model uses Daybreak's modeling code, which is imported; code in ``folder`` never runs."""
    from transformers import CONFIG_MAPPING

    config = _config_json(folder)
    kind, code = config.get("model_type"), config.get("auto_map")
    ours = kind == MODEL_TYPE and all(
        (folder / name).is_file() and (folder / name).read_bytes() == source.read_bytes()
        for name, source in MODELLING_FILES.items()
    )
    # If transformers has a class for the model, code in the folder is ignored.
    if not ours and (kind == MODEL_TYPE or (code and kind not in CONFIG_MAPPING)):
        if _is_saved_classifier(config):
            raise UserError(
                f"'{folder}' is a classifier with its own code, saved by daybreak evaluate --save.",
                "Name the run or the model that it was fine-tuned from, or save the classifier again.",
            )
        raise UserError(
            f"The model in '{folder}' needs its own code, which Daybreak does not run.",
            "Export the model again with this version of Daybreak, or use a model that transformers has a class for.",
        )
    return ours


def load_tokenizer(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")):
        raise UserError(f"'{folder}' holds no tokenizer.", "Put the model's tokenizer.json into that folder.")
    return _tokenizer(folder, load_config(folder) if _is_ours(folder) else None)


def _tokenizer(folder: Path, config: Any) -> Any:
    from transformers import AutoTokenizer

    with reading(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, local_files_only=True, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        raise UserError(f"The tokenizer in '{folder}' has no padding token.", "Use the folder of an encoder.")
    return tokenizer


def load_config(folder: Path) -> Any:
    """Load the transformers configuration of a model folder."""
    from transformers import AutoConfig

    for name, value in _config_json(folder).items():
        if "layers" in name and isinstance(value, int) and value > MOST_LAYERS:
            raise UserError(
                f"The config.json in '{folder}' has {name} = {value}; at most {MOST_LAYERS} are supported.",
                "Download the model again.",
            )
    ours = _is_ours(folder)
    with reading(folder, "config"):
        if ours:
            from daybreak.models.modeling_crammed import CrammedConfig

            config = CrammedConfig.from_pretrained(folder, local_files_only=True)
        else:
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not all(isinstance(getattr(config, name, None), int) for name in ("hidden_size", "vocab_size")):
        raise UserError(
            f"The model in '{folder}', a {config.model_type}, is not a text encoder.", "Name the folder of one."
        )
    _refuse_larger_than_weights(folder, config)
    return config


def _refuse_larger_than_weights(folder: Path, config: Any) -> None:
    """Raise UserError if the config describes far more parameters than the weights can hold.

    transformers allocates what is missing in the weights, so a config.json of a few bytes could fill the memory.
    """
    held = _weight_bytes(folder)
    if not held:
        return
    with reading(folder, "config"), torch.device("meta"):
        described = sum(weight.numel() for weight in _random(model_class(config), copy.deepcopy(config)).parameters())
    if described > 2 * held:  # a parameter has at least one byte, and a pooler may be missing
        raise UserError(
            f"The config.json in '{folder}' describes {described:,} parameters, but its weights are {held:,} bytes.",
            "Download the model again, or use weights and config of one checkpoint.",
        )


def build_classifier(
    folder: Path,
    kind: Kind,
    labels: Sequence[str],
    seed: int,
    untrained: bool,
    head: str = "stock",
    dropout: float | None = None,
) -> Any:
    """Return the encoder with a new head of that kind, in float32.

    ``seed`` draws the head (with ``untrained``: every weight) and dropout.

    Args:
        head: a name of ``heads.HEADS``.
        dropout: every probability of dropout; None for those of the config.

    Raises:
        UserError: transformers has no such head for this encoder, or the weights are missing, torn or incomplete.
    """
    config = load_config(folder)
    kind.configure(config, labels)
    if dropout is not None:
        for name, value in config.to_dict().items():
            if name.endswith(("dropout", "dropout_prob")) and isinstance(value, (int, float)):
                setattr(config, name, dropout)
    torch.manual_seed(seed)
    if head != "stock":
        if untrained:
            with reading(folder, "model"):
                encoder = _random(model_class(config), config)
        else:
            encoder = load_model(folder, config)
        torch.manual_seed(seed)
        return PooledClassifier(encoder, config, head)
    with reading(folder, "model"):
        source = model_class(config, kind.head)
        if untrained:
            return _random(source, config)
        # A head for other labels is replaced.
        model, report = _read_weights(folder, source, config, ignore_mismatched_sizes=True)
    inside = f"{model.base_model_prefix}."
    unfit = [*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])]
    _check_complete(folder, (name for name in unfit if name.startswith(inside)), "the encoder")
    if not any(name.startswith(LAST_LAYERS) for name in unfit):
        _forget_answers(model, source, config)
    return model


def load_model(folder: Path, config: Any, head: str = "", part: str = "the encoder") -> Any:
    """Return the encoder with the weights of the folder, in float32; ``part`` describes it in messages.

    Args:
        head: as ``Kind.head``, empty for none.
    """
    with reading(folder, "model"):
        model, report = _read_weights(folder, model_class(config, head), config)
    _check_complete(folder, report["missing_keys"], part)
    return model


def model_class(config: Any, head: str = "") -> Any:
    """Return Daybreak's own class or transformers' auto class; ``head`` as ``Kind.head``, empty for the encoder."""
    import transformers

    if config.model_type == MODEL_TYPE:
        from daybreak.models import modeling_crammed

        return getattr(modeling_crammed, f"Crammed{head or 'Model'}")
    return getattr(transformers, f"AutoModel{head}")


def _read_weights(folder: Path, source: Any, config: Any, **more: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model in float32, and transformers' report on missing weights. A pickle is never opened."""
    refuse_pickle(folder)
    refuse_shards_elsewhere(folder)
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


def _check_complete(folder: Path, lacking: Iterable[str], part: str) -> None:
    """Check that no weights are missing, because transformers would draw them at random. A pooler may be missing."""
    names = sorted(name for name in lacking if "pooler" not in name)
    if names:
        raise UserError(
            f"The weights in '{folder}' lack {len(names)} tensors of {part}, such as '{names[0]}'.",
            "Use a folder whose weights belong to its config.json.",
        )


def _random(source: Any, config: Any) -> Any:
    if config.model_type == MODEL_TYPE:
        return source(config)
    return source.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _forget_answers(model: Any, source: Any, config: Any) -> None:
    """Reset the last layer, which was trained for another task with the same number of labels."""
    fresh = _random(source, config)
    for name in LAST_LAYERS:
        layer = getattr(model, name.rstrip("."), None)
        if layer is not None:
            layer.load_state_dict(getattr(fresh, name.rstrip(".")).state_dict())


def parameter_count(folder: Path) -> int:
    """Estimate the number of parameters from the size of the weights; 0 without weights."""
    return _weight_bytes(folder) // 4


def _weight_bytes(folder: Path) -> int:
    """Return the size of the weights; a link that leads nowhere counts nothing, for reading the weights refuses it."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors") if path.is_file())


def load_classifier(folder: Path) -> tuple[Any, Any]:
    """Load the model and the tokenizer that ``save_classifier`` wrote; code in the folder never runs.

    Raises:
        UserError: the folder holds none.
    """
    from daybreak.evaluation.finetuning.modeling_classifier import Classifier, ClassifierConfig

    found = _config_json(folder)
    if not _is_saved_classifier(found):
        raise UserError(
            f"'{folder}' holds no classifier saved by this version.", "Save one with daybreak evaluate --save."
        )
    with reading(folder, "classifier"):
        if found.get("model_type") == ClassifierConfig.model_type:
            config, source = ClassifierConfig.from_pretrained(folder, local_files_only=True), Classifier
        else:
            config = load_config(folder)
            source = model_class(config, "ForSequenceClassification")
        model, report = _read_weights(folder, source, config)
    _check_complete(folder, report["missing_keys"], "the classifier")
    return model.eval(), _tokenizer(folder, config)


def _with_own_code(model: PooledClassifier, tokenizer: Any) -> Any:
    """Return the same classifier as a model that transformers loads with its code."""
    from daybreak.evaluation.finetuning.modeling_classifier import Classifier, ClassifierConfig

    config = model.config
    described = ClassifierConfig(
        encoder=config.to_dict(),
        pooling=model.head,
        id2label=config.id2label,
        label2id=config.label2id,
        problem_type=config.problem_type,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    found = Classifier(described)
    found.pooled.load_state_dict(model.state_dict())
    return found.eval()


def check_save_folder(folder: Path, task: str, untrained: bool) -> None:
    """Check that a folder is empty or holds only an earlier classifier, which ``save_classifier`` wrote.

    It must be of the same task, and of a model with pretraining, or without it if ``untrained``.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"'{folder}' is not a folder.", "Choose another folder with --save.")
    if is_empty(folder):
        return
    config = _config_json(folder)
    if not _is_saved_classifier(config):
        raise UserError(
            f"'{folder}' is not empty and holds no classifier saved by this version.",
            "Choose another folder with --save.",
        )
    facts = config["fine_tuning"]
    if facts.get("task", task) != task:
        raise UserError(
            f"'{folder}' holds the classifier of the task '{facts['task']}'.", "Choose another folder with --save."
        )
    if facts.get("untrained", untrained) != untrained:
        raise UserError(
            f"'{folder}' holds the classifier of a model with{'' if untrained else 'out'} pretraining.",
            "Choose another folder with --save.",
        )
    saved = facts.get("saved")  # unknown in classifiers of earlier versions
    visible = [each for each in folder.iterdir() if not each.name.startswith(".")]
    others = [each.name for each in visible if (each.is_dir() if saved is None else each.name not in saved)]
    if others:
        raise UserError(
            f"'{folder}' holds an earlier classifier and '{min(others)}', which would be deleted.",
            "Move that away, or choose another folder with --save.",
        )


def saved_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the fine-tuning whose classifier is in the folder; empty if there is none."""
    facts = _config_json(folder).get("fine_tuning") if folder.is_dir() else None
    return str(facts.get("fingerprint", "")) if isinstance(facts, dict) else ""


def save_classifier(model: Any, source: Path, folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the model and its tokenizer as a Hugging Face folder, atomically.

    A stock head needs no code. For one of Daybreak's own, the folder contains its code (``modeling_classifier``). The
    facts about the fine-tuning stand in config.json, with the names of all files.
    """
    tokenizer = load_tokenizer(source)  # loaded again, because the one in use has its truncation set
    if isinstance(model, PooledClassifier):
        model = _with_own_code(model, tokenizer)
    model.config.fine_tuning = dict(facts)
    with whole_folder(folder) as new:
        new.mkdir(parents=True)
        with quiet_transformers():
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
        if model.config.model_type == MODEL_TYPE:
            for name, ours in MODELLING_FILES.items():
                shutil.copyfile(ours, new / name)
        config = read_json(new / "config.json")
        config["fine_tuning"]["saved"] = sorted(each.name for each in new.iterdir())
        write_json(new / "config.json", config)
