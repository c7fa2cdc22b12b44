"""Fingerprints of fine-tuning runs: a finished run is reused only if everything that its numbers depend on is equal."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import sklearn
import torch

from daybreak import __version__
from daybreak.core.files import digest_of
from daybreak.core.serialization import to_dict
from daybreak.evaluation.baselines.bag_of_words import VERSION
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.tasks.known_tasks import standardizes
from daybreak.evaluation.tasks.task import Task


def digest(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of the files' contents, in this order."""
    total = hashlib.sha256()
    for path in paths:
        total.update(digest_of(path, "sha256"))
    return total.hexdigest()


def model_digest(folder: Path, random: bool) -> str:
    """Return the digest of a model's files; ``random`` leaves out the weights, which are then not used.

    Budget files (``train_budget_hours_2.json``) do not count: they describe the run, and a newer version writes more.
    """
    endings = (".json", ".txt", ".model") + (() if random else (".safetensors", ".bin"))
    own = ("results.json", "probes.json")
    files = sorted(path for path in folder.iterdir() if path.suffix in endings and path.name not in own)
    return digest([path for path in files if "_budget_" not in path.name])


def task_digest(task: Task, soft_targets: bool = False) -> str:
    """Return the digest of a task's labeled files and how they are read. Its name and metric do not count.

    Args:
        soft_targets: add what the soft targets depend on: the rows without labels, and the bag of words, whose settings
            the metric selects.
    """
    described: dict[str, object] = {
        "files": {name: digest([path]) for name, path in task.files.items()},
        "read": [task.kind, task.text, task.choices, task.label, task.header, task.format, task.labels],
    }
    if standardizes(task):
        described["targets"] = "standardized"
    if soft_targets:
        described["soft_targets"] = [task.metric, VERSION, sklearn.__version__]
        if task.unlabeled_train:
            described["unlabeled"] = digest([task.unlabeled_train])
    return _digest_of(described)


def unlabeled_digest(task: Task) -> str:
    """Return the digest of a task's unlabeled files, which no score depends on."""
    return _digest_of([[file.name, file.text, file.format, digest([file.path])] for file in task.unlabeled])


def _digest_of(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def fingerprint(model: str, rows: str, protocol: Protocol, setting: Setting, seed: int, random: bool) -> str:
    """Return the digest of everything that a run's numbers depend on, software included, threads and device excluded.

    Args:
        model, rows: digests of the model and of the task.
        random: the weights are random, not loaded.
    """
    import tokenizers
    import transformers

    # Settings of other tasks, and how runs are summarized, change no run.
    alone = dataclasses.replace(
        protocol, name="", epochs=(), rates=(), batch=0, seeds=0, own=(), reported="", selection="", starts=()
    )
    identity = {
        "software": [__version__, torch.__version__, transformers.__version__, tokenizers.__version__],
        "model": [model, random],
        "rows": rows,
        "protocol": to_dict(alone),
        "setting": to_dict(setting),
        "seed": seed,
    }
    return _digest_of(identity)
