"""One fine-tuning job: a model, a task, a setting and a seed. Its run is kept in a file of its own."""

from __future__ import annotations

import functools
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_text
from daybreak.core.formatting import score
from daybreak.core.serialization import to_dict
from daybreak.core.terminal import say
from daybreak.evaluation.baselines.bag_of_words import held_out_predictions
from daybreak.evaluation.finetuning.baseline_files import read_or_make
from daybreak.evaluation.finetuning.classifier import build_classifier, load_config, load_tokenizer, save_classifier
from daybreak.evaluation.finetuning.finetune import Show, compute_precision, fine_tune, predict
from daybreak.evaluation.finetuning.target_units import Units, standardized
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.kinds import kind_of, load_task
from daybreak.evaluation.tasks.known_tasks import standardizes
from daybreak.evaluation.tasks.sequences import with_segments
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.schemas.tasks import FinetuningRun
from daybreak.training.hardware.probe import choose_device

SUBSET_SEED = 0
"""Seed of the training subset of a protocol; every seed and every model uses the same rows."""
PADDING_OFFSET_FAMILIES = (
    "camembert", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xmod",
)  # fmt: skip
"""Model types whose position table begins with rows up to the padding id, which no token uses."""
DIGITS = 6
"""Decimals of each value of ``FinetuningRun.scored_rows``; the scores are computed before rounding."""
_ONE_AT_A_TIME = threading.Lock()
"""A cluster worker may run jobs in several threads, which share one random generator."""


def training_subset(rows: LabeledRows, count: int | None) -> LabeledRows:
    """Return the first ``count`` rows (None: all) of a shuffle with SUBSET_SEED."""
    order = np.random.default_rng(SUBSET_SEED).permutation(len(rows))
    return rows.take(order[:count].tolist())


@dataclass(frozen=True)
class EncodedTask:
    """The tokenized rows of a task."""

    data: TaskRows
    padding: Padding
    train: EncodedRows
    parts: dict[str, EncodedRows]
    """The labeled parts to evaluate, dev first."""
    unlabeled: dict[str, EncodedRows]
    """The rows to predict for a submission, by name of its file."""
    length: int
    """Most tokens of a sequence."""
    units: Units | None = None
    """Those of the training targets, if these are standardized."""


def max_sequence_length(config: Any, tokenizer: Any, protocol: Protocol) -> int:
    """Return the largest number of tokens that protocol, model and tokenizer allow."""
    # Encoders with relative positions may have no maximum.
    longest = getattr(config, "max_position_embeddings", protocol.length)
    if config.model_type in PADDING_OFFSET_FAMILIES:
        longest -= config.pad_token_id + 1
    return int(min(protocol.length, longest, tokenizer.model_max_length))


def encode_task(
    folder: Path, data: TaskRows, protocol: Protocol, unlabeled: bool = False, kept: Path | None = None
) -> EncodedTask:
    """Tokenize the rows with the tokenizer in ``folder``; the unlabeled files only if ``unlabeled``.

    Args:
        kept: folder that keeps the predictions of the bag of words for soft targets.
    """
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    length = max_sequence_length(config, tokenizer, protocol)
    kind = kind_of(data.task)
    compares = protocol.head_of(data.task) == "segments"

    def encoded(rows: LabeledRows) -> EncodedRows:
        found = kind.encode(tokenizer, rows, length, config.vocab_size)
        return with_segments(found, tokenizer) if compares else found

    train = training_subset(data.train, protocol.train_rows)
    if weight := protocol.distillation_of(data.task):
        train = with_soft_targets(kind, data, train, weight, kept)
    units = None
    if standardizes(data.task):
        train, units = standardized(train)
    names = [file.name for file in data.task.unlabeled] if unlabeled else []
    return EncodedTask(
        data,
        Padding.of(tokenizer),
        train=encoded(train),
        parts={name: encoded(rows) for name, rows in data.parts.items()},
        unlabeled={name: encoded(kind.load_unlabeled(data.task, name)) for name in names},
        length=length,
        units=units,
    )


def with_soft_targets(kind: Kind, data: TaskRows, train: LabeledRows, weight: float, kept: Path | None) -> LabeledRows:
    """Return classification rows whose targets are probabilities, with ``weight`` for those of the bag of words.

    Rows without labels follow, with the probabilities of the bag of words alone, as a small network learns from rows
    that another model labels (Bucila et al. 2006, Model Compression).
    """
    more = data.unlabeled_train or LabeledRows([], [])

    def predict() -> dict[str, Any]:
        return {"predictions": held_out_predictions(kind, data, train, more).tolist()}

    def read(content: Mapping[str, Any]) -> np.ndarray:
        return np.array(content["predictions"], dtype=np.float64).reshape(len(train) + len(more), len(data.labels))

    if kept is None:
        guesses = read(predict())
    else:
        file = kept / "held-out-predictions.json"
        guesses = read_or_make(file, data.task, len(train), read, predict, soft_targets=True)
    mixed = (1 - weight) * np.eye(len(data.labels))[train.targets] + weight * guesses[: len(train)]
    probabilities = np.concatenate((mixed, guesses[len(train) :]))
    return replace(train, texts=train.texts + more.texts, targets=np.round(probabilities, DIGITS).tolist())


@dataclass(frozen=True, kw_only=True)
class FinetuningJob:
    """The input of one fine-tuning, which a worker process can run."""

    folder: Path
    """The model folder."""
    model_name: str
    task: Task
    protocol: Protocol
    setting: Setting
    seed: int
    """Draws the new head (with ``random``: every weight), dropout and the order of the batches."""
    untrained: bool
    """The result is reported as that of an untrained model."""
    random: bool
    """Draw every weight. False for a job that starts from another task's fine-tuned model."""
    threads: int
    file: Path
    """Where the run is kept."""
    unlabeled_digest: str
    """Digest of the unlabeled files, which are then predicted too; empty if they are not."""
    source: str
    """Digests of the files of the model and the task: the key of the cache of encoded rows."""
    files: str
    """Digest of the labeled files of the task, for the result."""
    fingerprint: str
    keep: Path | None = None
    """Save the fine-tuned model in this folder."""

    def finished(self) -> FinetuningRun | None:
        """Return the kept run if it has the same fingerprint and everything that this job requests."""
        if not self.file.is_file() or (self.keep and not self.keep.is_dir()):
            return None
        try:
            run: FinetuningRun = read_json(self.file, FinetuningRun)
        except UserError:
            return None  # an older version or an edited file: run the job again
        predicted = self.unlabeled_digest in ("", run.unlabeled_digest)
        return run if run.fingerprint == self.fingerprint and predicted else None

    def keeping_model(self) -> FinetuningJob:
        """Return the same job with its model saved beside its file."""
        return replace(self, keep=self.file.with_name(f"model-{self.fingerprint[:16]}"))


def run_job(job: FinetuningJob, show: Show = lambda fraction, loss: None) -> FinetuningRun:
    """Fine-tune, evaluate and write the job's file, or read the file if the job is finished."""
    if (run := job.finished()) is not None:
        return run
    kept = replace(job, keep=None).finished()  # repeated only to save its model: results refer to the file on disk
    with _ONE_AT_A_TIME, using_threads(kept.threads if kept else job.threads):
        return _run(job, kept, show)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Set the number of CPU threads of torch, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(job: FinetuningJob, kept: FinetuningRun | None, show: Show) -> FinetuningRun:
    started = time.monotonic()
    rows = encoded_task(job)
    kind, labels = kind_of(job.task), rows.data.labels
    device = choose_device()
    model = initial_model(job, rows).to(device)
    precision = compute_precision(model, kind, job.protocol)
    loss = fine_tune(model, kind, rows.padding, rows.train, job.protocol, job.setting, job.seed, show)
    if rows.units:
        rows.units.give_back_to(model)
    outputs = {part: predict(model, kind, rows.padding, encoded) for part, encoded in rows.parts.items()}
    if not np.isfinite(loss) or not all(np.isfinite(output).all() for part in outputs.values() for output in part):
        raise UserError(
            f"Fine-tuning on '{job.task.name}' with seed {job.seed} diverged ({job.setting}).",
            "Check the model's weights, or lower the learning rate.",
        )
    scored_rows = {part: kind.evaluate(encoded, outputs[part], labels) for part, encoded in rows.parts.items()}
    run = FinetuningRun(
        fingerprint=job.fingerprint,
        protocol=job.protocol.name,
        task=job.task.name,
        model="untrained" if job.untrained else "pretrained",
        model_name=job.model_name,
        epochs=job.setting.epochs,
        learning_rate=job.setting.rate,
        batch=job.setting.batch,
        seed=job.seed,
        scores=part_scores(kind, scored_rows, labels),
        scored_rows=rounded(scored_rows),
        predictions={
            name: kind.predictions(predict(model, kind, rows.padding, encoded))
            for name, encoded in rows.unlabeled.items()
        },
        unlabeled_digest=job.unlabeled_digest,
        device=torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        threads=job.threads,
        precision=precision,
        seconds=time.monotonic() - started,
    )
    if kept is None:
        job.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(job.file, json.dumps(to_dict(run), separators=(",", ":")) + "\n")
    elif kept.scores != run.scores:
        say(
            f"The saved model of '{job.task.name}' scores {score(run.scores[job.task.metric])} and not "
            f"{score(kept.scores[job.task.metric])} as in the results, because it is trained again on another device."
        )
    if job.keep is not None:  # last: if it fails, the run is not lost
        facts = {
            "task": job.task.name,
            "task_files": job.files,
            "untrained": job.untrained,
            "texts": len(job.task.text),
            "length": rows.length,
            "most_train_rows": job.protocol.train_rows,
            "fingerprint": job.fingerprint,
        }
        save_classifier(model, job.folder, job.keep, facts)
    return kept or run


def part_scores(kind: Kind, scored_rows: Mapping[str, np.ndarray], labels: Sequence[str]) -> dict[str, float]:
    """Return the metrics of each part of a task; the names of those of other parts than dev begin with the part."""
    return {
        name if part == "dev" else f"{part}_{name}": value
        for part, table in scored_rows.items()
        for name, value in kind.score(table, labels).items()
    }


def rounded(scored_rows: Mapping[str, np.ndarray]) -> dict[str, list[list[float]]]:
    """Return the rows of each part with DIGITS decimals, as files keep them.

    Where no value of a column reaches 1, as in a regression of small numbers, the digits are counted from its largest
    value. Columns do not affect each other, so that all models on the same rows have the same targets.
    """

    def column(values: np.ndarray) -> np.ndarray:
        largest = float(np.abs(values).max(initial=0.0))
        more = max(0, -math.floor(math.log10(largest)) - 1) if 0 < largest < math.inf else 0
        return np.round(values, DIGITS + more)

    return {
        part: np.stack([column(values) for values in table.T], axis=1).tolist() for part, table in scored_rows.items()
    }


def initial_model(job: FinetuningJob, rows: EncodedTask) -> Any:
    """Return the model of a job before fine-tuning, with the head that the protocol gives the task."""
    head, labels = job.protocol.head_of(job.task), rows.data.labels
    model = build_classifier(job.folder, kind_of(job.task), labels, job.seed, job.random, head, job.protocol.dropout)
    if head != "stock" and kind_of(job.task).numeric:
        with torch.no_grad():  # start at the mean of the training targets
            model.classifier.bias.fill_(float(np.mean(rows.train.targets)))
    return model


def encoded_task(job: FinetuningJob) -> EncodedTask:
    """Return the tokenized rows of a job's task."""
    return _encoded_task(
        job.folder, job.task, job.protocol, bool(job.unlabeled_digest), job.source, job.file.parents[1]
    )


@functools.lru_cache(maxsize=2)
def _encoded_task(
    folder: Path, task: Task, protocol: Protocol, unlabeled: bool, source: str, kept: Path
) -> EncodedTask:
    """Cached, because a worker runs the jobs of one task one after the other; ``source`` detects changed files."""
    # The task of a job names a file of rows without labels only if its protocol uses them.
    return encode_task(folder, load_task(task, unlabeled_train=True), protocol, unlabeled, kept)
