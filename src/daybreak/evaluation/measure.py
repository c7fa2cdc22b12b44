"""One task under one protocol: a fine-tuning for each setting and seed, scored on dev and test."""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daybreak.base.errors import UserError
from daybreak.base.task_records import TaskResult
from daybreak.base.terminal import Work
from daybreak.evaluation.batches import EncodedRows, encode
from daybreak.evaluation.classifier import build_classifier, load_config, load_tokenizer, save_classifier
from daybreak.evaluation.finetune import Show, answers, chances, fine_tune, predict
from daybreak.evaluation.metrics import constant_answer, score
from daybreak.evaluation.protocols import Protocol, Setting
from daybreak.evaluation.selection import Tried, choose, sentence, spread
from daybreak.evaluation.tasks import LabelledRows, TaskRows

SUBSET_SEED = 0
"""Draws the training rows of a protocol that takes only some: the same ones for every seed and every model."""


def training_subset(rows: LabelledRows, most: int | None) -> LabelledRows:
    """The first ``most`` rows (None: all) of a shuffle by SUBSET_SEED."""
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
    # Some encoders, those with relative positions among them, name no longest row.
    longest = getattr(config, "max_position_embeddings", protocol.length)
    length = min(protocol.length, longest, tokenizer.model_max_length)

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
    model_name: str = "",
    untrained: bool = False,
    save: Path | None = None,
) -> TaskResult:
    """Fine-tune the model in ``folder`` once for each setting and each of ``seeds`` seeds; score it on whole files.

    Seed i draws the fresh classifier (with ``untrained``: every weight), dropout and the order of the batches. The
    training rows are the same for all. Of several settings, dev chooses; test, where it is, decides nothing. With
    ``save``, the chosen setting's model of the first seed is kept there (trained once more where there were several).

    Raises:
        UserError: the folder cannot be loaded, its tokenizer does not fit, or training diverged.
    """
    started = time.monotonic()
    rows = encode_task(folder, data, protocol)
    tuning = _Tuning(folder, data, rows, protocol, untrained)
    settings = protocol.settings(rows.width)
    tried = []
    for setting in settings:
        scores: dict[str, list[float]] = {}
        for seed in range(seeds):
            model = tuning.model(setting, seed, _shown(work, settings, setting, seed, seeds))
            for name, value in tuning.scores(model).items():
                scores.setdefault(name, []).append(value)
            if save is not None and seed == 0 and len(settings) == 1:
                save_classifier(model, folder, save)
        tried.append(Tried(setting, scores))
    chosen = choose(tried, data.task.metric)
    if save is not None and len(settings) > 1:
        model = tuning.model(chosen.setting, 0, lambda share, loss: work.show(share, f"to keep  loss {loss:.3f}"))
        save_classifier(model, folder, save)
    result = _result(tuning, tried, chosen, seeds)
    return dataclasses.replace(result, model_name=model_name, seconds=time.monotonic() - started)


@dataclass(frozen=True)
class _Tuning:
    """What all fine-tunings of one measurement share."""

    folder: Path
    data: TaskRows
    rows: EncodedTask
    protocol: Protocol
    untrained: bool

    def model(self, setting: Setting, seed: int, show: Show) -> Any:
        """The fine-tuned classifier of one setting and seed."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = build_classifier(self.folder, self.data, seed, self.untrained).to(device)
        loss = fine_tune(model, self.rows.tokenizer, self.rows.train, self.protocol, setting, seed, show)
        if not np.isfinite(loss):
            raise UserError(
                f"Fine-tuning on '{self.data.task.name}' with seed {seed} diverged ({setting}).",
                "Check that the model's weights are sound, or lower the learning rate.",
            )
        return model

    def scores(self, model: Any) -> dict[str, float]:
        """Every metric on dev and, with the prefix ``test_``, on a labelled test file."""

        def scored(part: EncodedRows) -> dict[str, float]:
            logits = predict(model, self.rows.tokenizer, part)
            kind = self.data.task.kind
            return score(kind, len(self.data.labels), part.targets, answers(logits, kind), chances(logits))

        on_test = scored(self.rows.test) if self.rows.test else {}
        return scored(self.rows.dev) | {f"test_{name}": value for name, value in on_test.items()}


def _shown(work: Work, settings: list[Setting], setting: Setting, seed: int, seeds: int) -> Show:
    """Show the share of all epochs of all fine-tunings that is done, and which one is under way."""
    place = settings.index(setting)
    total = seeds * sum(each.epochs for each in settings)
    before = seeds * sum(each.epochs for each in settings[:place]) + seed * setting.epochs
    note = f"setting {place + 1}/{len(settings)}  " if len(settings) > 1 else ""

    def show(share: float, loss: float) -> None:
        work.show((before + share * setting.epochs) / total, f"{note}seed {seed + 1}/{seeds}  loss {loss:.3f}")

    return show


def _result(tuning: _Tuning, tried: list[Tried], chosen: Tried, seeds: int) -> TaskResult:
    """Everything but the model's name and the time that it took."""
    data, rows, metric = tuning.data, tuning.rows, tuning.data.task.metric
    test = data.test if tuning.protocol.reported == "test" else None
    headline = metric if test is None else f"test_{metric}"
    return TaskResult(
        protocol=tuning.protocol.name,
        task=data.task.name,
        model="untrained" if tuning.untrained else "pretrained",
        kind=data.task.kind,
        metric=headline,
        scores=chosen.scores,
        seeds=list(range(seeds)),
        mean=statistics.fmean(chosen.scores[headline]),
        spread=spread(chosen.scores[headline]),
        selection=sentence(chosen.setting, len(tried), seeds),
        train_rows=len(rows.train),
        dev_rows=len(rows.dev),
        test_rows=len(rows.test) if rows.test else 0,
        baseline=_baseline(data, data.dev if test is None else test),
        settings=_settings(tuning.protocol, chosen.setting, rows),
        settings_tried=[each.record(metric) for each in tried] if len(tried) > 1 else [],
        labels=list(data.labels),
        seconds=0.0,
    )


def _baseline(data: TaskRows, judged: LabelledRows) -> float:
    """The headline metric on ``judged`` of the answer that suits the training rows best and ignores the text."""
    kind, metric = data.task.kind, data.task.metric
    constant = [constant_answer(kind, data.train.targets, metric)] * len(judged)
    return score(kind, len(data.labels), judged.targets, constant, constant)[metric]


def _settings(protocol: Protocol, setting: Setting, rows: EncodedTask) -> dict[str, float]:
    settings = {
        "learning_rate": setting.rate,
        "epochs": setting.epochs,
        "batch": protocol.batch,
        "length": rows.length,
        "warmup": protocol.warmup,
        "weight_decay": protocol.weight_decay,
        "clip": protocol.clip,
    }
    if protocol.train_rows is not None:
        settings |= {"most_train_rows": protocol.train_rows, "subset_seed": SUBSET_SEED}
    return settings | ({} if protocol.dropout is None else {"dropout": protocol.dropout})
