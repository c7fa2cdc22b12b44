"""Tasks that a very small encoder can learn, and results and runs that nobody trained."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.evaluation.finetuning.classifier import build_classifier, load_tokenizer
from daybreak.evaluation.finetuning.finetune import fine_tune, predict
from daybreak.evaluation.finetuning.task_evaluation import TaskEvaluation
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.protocols.protocol import Setting
from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.kinds import load_task
from daybreak.evaluation.tasks.task import LabeledRows, Task
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.schemas.tasks import FinetuningRun, TaskResult, spread

VOCABULARY = 200
"""Rows of the embedding tables of the small encoders, more than their tokenizer has pieces."""
SUNNY = "sun warm bright summer beach".split()
RAINY = "rain cold dark winter storm".split()
FILLER = "the day was very and it will be some more of this there again today town people walk home late".split()


def quiet(*_: float) -> None:
    """Show nothing."""


def sentence(chance: random.Random, words: list[str]) -> str:
    """Two to twelve fillers with two telling words among them."""
    picked = chance.choices(FILLER, k=chance.randint(2, 12)) + chance.choices(words, k=2)
    chance.shuffle(picked)
    return " ".join(picked)


def weather_rows(count: int, seed: int) -> list[tuple[str, str]]:
    """(text, label) with labels rainy and sunny in turn."""
    chance = random.Random(seed)
    return [(sentence(chance, RAINY if i % 2 else SUNNY), "rainy" if i % 2 else "sunny") for i in range(count)]


def learned(
    folder: Path, kind: Kind, labels: tuple[str, ...], train: LabeledRows, dev: LabeledRows, setting: Setting,
    length: int = 64, untrained: bool = False,
) -> tuple[Any, EncodedRows, list[np.ndarray]]:  # fmt: skip
    """Fine-tune; return the model, the encoded dev rows, and what the model says of them."""
    tokenizer = load_tokenizer(folder)
    seen, asked = (kind.encode(tokenizer, rows, length, VOCABULARY) for rows in (train, dev))
    model, padding = build_classifier(folder, kind, labels, 0, untrained), Padding.of(tokenizer)
    fine_tune(model, kind, padding, seen, PROTOCOLS["quick"], setting, 0, quiet)
    return model, asked, predict(model, kind, padding, asked)


def evaluation_of(folder: Path, task: Task, cells: Path, **changes: Any) -> TaskEvaluation:
    """The evaluation of a model on a task under the protocol quick, with one seed."""
    usual = {
        "folder": folder, "model_name": "toy", "data": load_task(task), "protocol": PROTOCOLS["quick"], "seeds": 1,
        "untrained": False, "unlabeled": False, "cells": cells, "weights": "",
    }  # fmt: skip
    return TaskEvaluation(**{**usual, **changes})


def result(task: str, scores: dict[str, list[float]], **changes: Any) -> TaskResult:
    """A result whose headline is the first of its metrics."""
    metric, values = next(iter(scores.items()))
    usual = {
        "protocol": "quick", "task": task, "model": "pretrained", "model_name": "a", "kind": "classification",
        "metric": metric, "scores": scores, "seeds": list(range(len(values))), "mean": statistics.fmean(values),
        "spread": spread(values), "selection": "", "train_rows": 9, "dev_rows": 9, "baseline": 0.5, "settings": {},
        "seconds": 1.0,
    }  # fmt: skip
    return TaskResult(**{**usual, **changes})


def run(**changes: Any) -> FinetuningRun:
    """A fine-tuning that nobody did."""
    usual = {
        "fingerprint": "x", "protocol": "quick", "task": "toy", "model": "pretrained", "model_name": "toy", "epochs": 5,
        "learning_rate": 3e-4, "batch": 16, "seed": 0, "scores": {}, "scored_rows": {}, "threads": 1, "seconds": 1.0,
    }  # fmt: skip
    return FinetuningRun(**{**usual, **changes})
