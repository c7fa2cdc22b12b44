"""Estimate how long an evaluation takes, from a few of its own training steps."""

from __future__ import annotations

import time

import torch

from daybreak.evaluation.finetuning.finetune import Batches, fine_tune
from daybreak.evaluation.finetuning.jobs import EncodedTask, FinetuningJob, initial_model
from daybreak.evaluation.protocols.protocol import Setting
from daybreak.evaluation.tasks.batches import prediction_batches, training_batches
from daybreak.evaluation.tasks.kinds import kind_of
from daybreak.training.hardware.probe import choose_device

PROBES = 3
"""Number of timed training steps for each task, after one warm-up step."""
START_SECONDS = 10
"""Time that a worker process needs for its imports."""


def job_seconds(job: FinetuningJob, rows: EncodedTask) -> float:
    """Estimate the seconds of this job on an idle machine with the current number of threads, loading included.

    Times PROBES training steps and one prediction on a batch of median length. The cost of every other batch is
    assumed to be proportional to its padded tokens.
    """
    kind = kind_of(job.task)
    started = time.monotonic()
    model = initial_model(job, rows).to(choose_device())
    loading = time.monotonic() - started
    lengths = rows.train.lengths
    epoch = training_batches(lengths, job.setting.batch, torch.Generator().manual_seed(0))
    tokens = [len(indices) * max(lengths[i] for i in indices) for indices in epoch]
    median = sorted(range(len(epoch)), key=lambda number: tokens[number])[len(epoch) // 2]
    few = rows.train.take(epoch[median])

    def timed(steps: int) -> float:
        began = time.monotonic()
        setting = Setting(steps, job.setting.rate, len(few))
        fine_tune(model, kind, rows.padding, few, job.protocol, setting, 0, lambda fraction, loss: None)
        return time.monotonic() - began

    timed(1)
    step = timed(PROBES) / PROBES
    began = time.monotonic()
    model.eval()
    with torch.inference_mode():
        kind.answers(model(**Batches(model, kind, rows.padding, few).inputs(range(len(few)))))
    per_token = (time.monotonic() - began) / tokens[median]
    training = job.setting.epochs * step * (0.5 * len(epoch) + 0.5 * sum(tokens) / tokens[median])
    parts = [*rows.parts.values(), *rows.unlabeled.values()]
    predicting = per_token * sum(
        len(indices) * max(part.lengths[i] for i in indices)
        for part in parts
        for indices in prediction_batches(part.lengths)
    )
    return loading + training + predicting


def waiting_seconds(seconds: float, fine_tunings: int, workers: int) -> float:
    """Return the duration of fine-tunings that take ``seconds`` one after the other, if ``workers`` run at a time."""
    return START_SECONDS + max(seconds / workers, seconds / fine_tunings) if workers > 1 else seconds
