"""One cell of an evaluation: a model, a task, a setting and a seed, fine-tuned once and kept in a file of its own."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_text
from daybreak.core.serialization import to_dict
from daybreak.evaluation.finetuning.classifier import build_classifier, load_config, load_tokenizer, save_classifier
from daybreak.evaluation.finetuning.finetune import Show, compute_precision, fine_tune, predict
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.tasks.batches import EncodedRows, Padding, joined
from daybreak.evaluation.tasks.kinds import kind_of, load_task
from daybreak.evaluation.tasks.sequences import with_pair_features
from daybreak.evaluation.tasks.task import LabelledRows, Task, TaskRows
from daybreak.schemas.tasks import Cell
from daybreak.training.hardware.probe import choose_device

SUBSET_SEED = 0
"""Draws the training rows of a protocol that takes only some: the same ones for every seed and every model."""
COUNTED_FROM_PADDING = ("camembert", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xmod")
"""Families whose position table begins with rows for padding, which no token takes."""
DIGITS = 6
"""Decimals that a cell file keeps of each judged row; its scores are counted before rounding."""
_ALONE = threading.Lock()
"""Workers of a cluster may have several threads, and these one stream of random numbers: their cells must queue."""


def training_subset(rows: LabelledRows, most: int | None) -> LabelledRows:
    """The first ``most`` rows (None: all) of a shuffle by SUBSET_SEED."""
    order = np.random.default_rng(SUBSET_SEED).permutation(len(rows))
    return rows.take(order[:most].tolist())


@dataclass(frozen=True)
class EncodedTask:
    """A task's rows in the tokens of one model, as a protocol takes them."""

    data: TaskRows
    padding: Padding
    train: EncodedRows
    parts: dict[str, EncodedRows]
    """What is scored, by part, dev first."""
    hidden: dict[str, EncodedRows]
    """What a submission answers, by its file."""
    swapped: dict[str, EncodedRows] = field(default_factory=dict)
    """Each of both with its pairs the other way round, where a protocol takes both orders."""


def row_length(config: Any, tokenizer: Any, protocol: Protocol) -> int:
    """Tokens a sequence at most: what protocol, model and tokenizer all allow."""
    # Some encoders, those with relative positions among them, name no longest row.
    longest = getattr(config, "max_position_embeddings", protocol.length)
    if config.model_type in COUNTED_FROM_PADDING:
        longest -= config.pad_token_id + 1
    return int(min(protocol.length, longest, tokenizer.model_max_length))


def encode_task(folder: Path, data: TaskRows, protocol: Protocol, hidden: bool = False) -> EncodedTask:
    """Tokenize the rows with the tokenizer in ``folder``; those without labels only if ``hidden``.

    Raises:
        UserError: config or tokenizer cannot be loaded, or they do not fit each other.
    """
    config, tokenizer = load_config(folder), load_tokenizer(folder)
    length = row_length(config, tokenizer, protocol)
    kind = kind_of(data.task)

    head, both = protocol.head_of(data.task), protocol.both_orders and data.task.symmetric

    def encoded(rows: LabelledRows) -> EncodedRows:
        found = kind.encode(tokenizer, rows, length, config.vocab_size)
        return with_pair_features(found, tokenizer, length, head) if len(data.task.text) == 2 else found

    train = training_subset(data.train, protocol.train_rows)
    names = [file.name for file in data.task.hidden] if hidden else []
    unlabelled = {name: kind.unlabelled(data.task, name) for name in names}
    return EncodedTask(
        data,
        Padding.of(tokenizer),
        train=joined(encoded(train), encoded(train.swapped())) if both else encoded(train),
        parts={name: encoded(rows) for name, rows in data.parts.items()},
        hidden={name: encoded(rows) for name, rows in unlabelled.items()},
        swapped={name: encoded(rows.swapped()) for name, rows in (data.parts | unlabelled).items()} if both else {},
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker process needs to know to fill one cell."""

    folder: Path
    """Of the model."""
    model_name: str
    task: Task
    protocol: Protocol
    setting: Setting
    seed: int
    """Draws the fresh head (with ``random``: every weight), dropout and the order of the batches."""
    untrained: bool
    """What the result is called."""
    random: bool
    """Draw every weight. What starts from the fine-tuned model of another task does not, even of an untrained one."""
    threads: int
    hidden: bool
    """Answer the files of a submission too."""
    file: Path
    """Where the cell is kept."""
    hidden_rows: str
    """Digest of those files, where they are to be answered."""
    source: str
    """Digest of the files of model and task: of what the encoded rows are made of."""
    fingerprint: str
    keep: Path | None = None
    """Save the fine-tuned model here."""

    def finished(self) -> Cell | None:
        """The cell, if an earlier call of the same fingerprint left all that is wanted now."""
        if not self.file.is_file() or (self.keep and not self.keep.is_dir()):
            return None
        try:
            cell: Cell = read_json(self.file, Cell)
        except UserError:
            return None  # of an older version, or changed by hand: filled again
        answered = not self.hidden or cell.hidden_rows == self.hidden_rows
        return cell if cell.fingerprint == self.fingerprint and answered else None


def fill(job: Job, show: Show = lambda share, loss: None) -> Cell:
    """Fine-tune, score, and write the cell's file; or read it where it is finished already.

    Raises:
        UserError: the folder cannot be loaded, its tokenizer does not fit, or training diverged.
    """
    if (cell := job.finished()) is not None:
        return cell
    with _ALONE, using_threads(job.threads):
        return _filled(job, show)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Compute with so many threads on the CPU, and leave the process as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _filled(job: Job, show: Show) -> Cell:
    started = time.monotonic()
    rows = encoded(job)
    kind, labels = kind_of(job.task), rows.data.labels
    device = choose_device()
    model = fresh_model(job, rows).to(device)
    precision = compute_precision(model, kind, job.protocol)
    loss = fine_tune(model, kind, rows.padding, rows.train, job.protocol, job.setting, job.seed, show)

    def answers(part: str, encoded: EncodedRows) -> list[np.ndarray]:
        found = predict(model, kind, rows.padding, encoded)
        if part not in rows.swapped:
            return found
        return [(a + b) / 2 for a, b in zip(found, predict(model, kind, rows.padding, rows.swapped[part]))]

    said = {part: answers(part, encoded) for part, encoded in rows.parts.items()}
    if not np.isfinite(loss) or not all(np.isfinite(answer).all() for part in said.values() for answer in part):
        raise UserError(
            f"Fine-tuning on '{job.task.name}' with seed {job.seed} diverged ({job.setting}).",
            "Check that the model's weights are sound, or lower the learning rate.",
        )
    judged = {part: kind.evaluate(encoded, said[part], labels) for part, encoded in rows.parts.items()}
    cell = Cell(
        fingerprint=job.fingerprint,
        protocol=job.protocol.name,
        task=job.task.name,
        model="untrained" if job.untrained else "pretrained",
        model_name=job.model_name,
        epochs=job.setting.epochs,
        learning_rate=job.setting.rate,
        batch=job.setting.batch,
        seed=job.seed,
        scores={
            name if part == "dev" else f"{part}_{name}": value
            for part, table in judged.items()
            for name, value in kind.score(table, labels).items()
        },
        judged={part: np.round(table, DIGITS).tolist() for part, table in judged.items()},
        hidden={name: kind.decided(answers(name, encoded)) for name, encoded in rows.hidden.items()},
        hidden_rows=job.hidden_rows,
        device=torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        threads=job.threads,
        precision=precision,
        seconds=time.monotonic() - started,
    )
    if job.keep is not None:
        save_classifier(model, job.folder, job.keep)
    if replace(job, keep=None).finished() is not None:
        return cell  # done again for its model alone: what is on disk is what results were made of
    job.file.parent.mkdir(parents=True, exist_ok=True)
    write_text(job.file, json.dumps(to_dict(cell), separators=(",", ":")) + "\n")
    return cell


def fresh_model(job: Job, rows: EncodedTask) -> Any:
    """The model of a job before its fine-tuning, with the head that the protocol gives the task."""
    head, labels = job.protocol.head_of(job.task), rows.data.labels
    pair = len(job.task.text) == 2
    model = build_classifier(job.folder, kind_of(job.task), labels, job.seed, job.random, head, pair)
    if head != "stock" and job.task.kind == "regression":
        with torch.no_grad():  # the answer that suits all rows best, as a start
            model.classifier.bias.fill_(float(np.mean(rows.train.targets)))
    return model


def encoded(job: Job) -> EncodedTask:
    """The rows of a job's task in the model's tokens."""
    return _encoded(job.folder, job.task, job.protocol, job.hidden, job.source)


@functools.lru_cache(maxsize=2)
def _encoded(folder: Path, task: Task, protocol: Protocol, hidden: bool, source: str) -> EncodedTask:
    """The cells of one task follow each other in a worker, and read its files once, unless those are others now."""
    return encode_task(folder, load_task(task), protocol, hidden)
