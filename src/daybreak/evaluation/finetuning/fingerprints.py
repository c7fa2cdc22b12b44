"""What a cell is known by: digests of all that decides its numbers, for it is used again only where they agree."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from daybreak import __version__
from daybreak.core.serialization import to_dict
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.tasks.task import Task

LATER_FIELDS = ("by_type", "heads", "both_orders", "precision")
"""Fields of a protocol that did not exist when the first cells were written."""


def digest(paths: Sequence[Path]) -> str:
    """SHA-256 of the files' contents, in this order."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def model_digest(folder: Path, random: bool) -> str:
    """Of what a model is made of; without its weights where they are not used."""
    endings = (".json", ".txt", ".model") + (() if random else (".safetensors", ".bin"))
    own = ("results.json", "probes.json")
    return digest(sorted(path for path in folder.iterdir() if path.suffix in endings and path.name not in own))


def task_digest(task: Task) -> str:
    """Of a task's labelled rows and how they are read; not of what is only said about them: its name, its headline."""
    told = {
        "files": {name: digest([path]) for name, path in task.files.items()},
        "read": [task.kind, task.text, task.choices, task.label, task.header, task.format, task.labels],
    }
    return _of(told)


def hidden_digest(task: Task) -> str:
    """Of the unlabelled files that a submission answers; they decide no score."""
    return _of([[file.name, file.text, file.format, digest([file.path])] for file in task.hidden])


def _of(told: object) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def fingerprint(model: str, rows: str, protocol: Protocol, setting: Setting, seed: int, random: bool) -> str:
    """Of everything that decides a cell's numbers, software included; the number of threads and the device are not in.

    Args:
        model, rows: digests of the model and of the task.
        random: the weights are drawn, not loaded.
    """
    import tokenizers
    import transformers

    # What a protocol says about other tasks, other settings, and what is made of the cells, changes no cell.
    elsewhere: dict[str, Any] = {"own": (), "by_type": (), "reported": "", "selection": "", "starts": ()}
    alone = dataclasses.replace(protocol, name="", epochs=(), rates=(), batch=0, seeds=0, **elsewhere)
    # A field that was added later counts only where it is set: cells of before keep their fingerprints.
    unset = {name for name in LATER_FIELDS if getattr(alone, name) == getattr(Protocol, name)}
    told = {
        "software": [__version__, torch.__version__, transformers.__version__, tokenizers.__version__],
        "model": [model, random],
        "rows": rows,
        "protocol": {name: value for name, value in to_dict(alone).items() if name not in unset},
        "setting": to_dict(setting),
        "seed": seed,
    }
    return _of(told)
