"""One task under one protocol: a fine-tuning for each seed, scored on dev."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daybreak.base.errors import UserError
from daybreak.base.records import TaskResult
from daybreak.base.terminal import Work
from daybreak.evaluation.batches import EncodedRows, encode
from daybreak.evaluation.classifier import build_classifier, load_config, load_tokenizer, save_classifier
from daybreak.evaluation.finetune import answers, fine_tune, predict
from daybreak.evaluation.metrics import constant_answer, score
from daybreak.evaluation.protocols import Protocol
from daybreak.evaluation.tasks import LabelledRows, TaskRows

SUBSET_SEED = 0
"""Draws the training rows of a protocol that takes only some: the same ones for every seed and every model."""


def training_subset(rows: LabelledRows, most: int) -> LabelledRows:
    """The first ``most`` rows of a shuffle by SUBSET_SEED."""
    order = np.random.default_rng(SUBSET_SEED).permutation(len(rows))
    return rows.take(order[:most].tolist())


@dataclass(frozen=True)
class EncodedTask:
    """A task's rows in the tokens of one model, as a protocol takes them."""

    tokenizer: Any
    width: int
    length: int
    """Tokens a row at most: what protocol, model and tokenizer all allow."""
    train: EncodedRows
    dev: EncodedRows
    test: EncodedRows | None


def encode_task(folder: Path, data: TaskRows, protocol: Protocol) -> EncodedTask:
    """Tokenize the rows with the tokenizer in ``folder``.

    Raises:
        UserError: config or tokenizer cannot be loaded, or they do not fit each other.
    """
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    length = min(protocol.length, config.max_position_embeddings, tokenizer.model_max_length)

    def encoded(rows: LabelledRows) -> EncodedRows:
        return encode(tokenizer, rows, length, config.vocab_size)

    return EncodedTask(
        tokenizer,
        config.hidden_size,
        length,
        train=encoded(training_subset(data.train, protocol.train_rows)),
        dev=encoded(data.dev),
        test=encoded(data.test) if data.test else None,
    )


def measure(
    folder: Path,
    data: TaskRows,
    protocol: Protocol,
    seeds: int,
    work: Work,
    *,
    untrained: bool = False,
    save: Path | None = None,
) -> TaskResult:
    """Fine-tune the model in ``folder`` once for each of ``seeds`` seeds and score it on the whole of dev.

    Seed i draws the fresh classifier (with ``untrained``: every weight), dropout and the order of the batches. The
    training rows are the same for all. With ``save``, the model of the first seed is kept there.

    Raises:
        UserError: the folder cannot be loaded, its tokenizer does not fit, or training diverged.
    """
    started = time.monotonic()
    rows = encode_task(folder, data, protocol)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, list[float]] = {}
    for seed in range(seeds):

        def show(share: float, loss: float, seed: int = seed) -> None:
            work.show((seed + share) / seeds, f"seed {seed + 1}/{seeds}  loss {loss:.3f}")

        model = build_classifier(folder, data, seed, untrained).to(device)
        if not np.isfinite(fine_tune(model, rows.tokenizer, rows.train, protocol, seed, show)):
            raise UserError(
                f"Fine-tuning on '{data.task.name}' with seed {seed} diverged.",
                "Check that the model's weights are sound.",
            )
        for name, value in _scores(model, data, rows).items():
            found.setdefault(name, []).append(value)
        if save is not None and seed == 0:
            save_classifier(model, folder, save)
    headline = found[data.task.metric]
    return TaskResult(
        protocol=protocol.name,
        task=data.task.name,
        model="untrained" if untrained else "pretrained",
        kind=data.task.kind,
        metric=data.task.metric,
        scores=found,
        seeds=list(range(seeds)),
        mean=statistics.fmean(headline),
        spread=statistics.stdev(headline) if seeds > 1 else 0.0,
        selection=protocol.selection,
        train_rows=len(rows.train),
        dev_rows=len(rows.dev),
        baseline=_baseline(data),
        settings=_settings(protocol, rows),
        labels=list(data.labels),
        seconds=time.monotonic() - started,
    )


def _scores(model: Any, data: TaskRows, rows: EncodedTask) -> dict[str, float]:
    """Every metric on dev and, with the prefix ``test_``, on a labelled test file."""

    def scored(part: EncodedRows) -> dict[str, float]:
        logits = predict(model, rows.tokenizer, part)
        return score(data.task.kind, len(data.labels), part.targets, answers(logits, data.task.kind))

    on_test = scored(rows.test) if rows.test else {}
    return scored(rows.dev) | {f"test_{name}": value for name, value in on_test.items()}


def _baseline(data: TaskRows) -> float:
    constant = constant_answer(data.task.kind, data.train.targets)
    scores = score(data.task.kind, len(data.labels), data.dev.targets, [constant] * len(data.dev))
    return scores[data.task.metric]


def _settings(protocol: Protocol, rows: EncodedTask) -> dict[str, float]:
    return {
        "learning_rate": protocol.learning_rate(rows.width),
        "epochs": protocol.epochs,
        "batch": protocol.batch,
        "length": rows.length,
        "warmup": protocol.warmup,
        "weight_decay": protocol.weight_decay,
        "clip": protocol.clip,
        "most_train_rows": protocol.train_rows,
        "subset_seed": SUBSET_SEED,
    }
