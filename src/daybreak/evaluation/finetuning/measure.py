"""One task under one protocol: which cells it takes, and what they say together."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import statistics
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sklearn

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_json
from daybreak.evaluation.baselines.bag_of_words import VERSION, bag_of_words
from daybreak.evaluation.finetuning.cells import SUBSET_SEED, Job, row_length, training_subset
from daybreak.evaluation.finetuning.classifier import load_config, load_tokenizer
from daybreak.evaluation.finetuning.fingerprints import fingerprint, hidden_digest, model_digest, task_digest
from daybreak.evaluation.finetuning.selection import Tried, choose, sentence, spread
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.tasks.kinds import kind_of
from daybreak.evaluation.tasks.task import LabelledRows, Task, TaskRows, task_type
from daybreak.schemas.tasks import Cell, TaskResult


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What is measured, and where its cells are kept.

    Seed i draws the fresh head (with ``untrained``: every weight), dropout and the order of the batches. The training
    rows are the same for all. Of several settings, dev chooses; test, where it is, decides nothing.
    """

    folder: Path
    """Of the model."""
    model_name: str
    data: TaskRows
    protocol: Protocol
    seeds: int
    untrained: bool
    threads: int = 1
    """Of each fine-tuning, on a CPU."""
    hidden: bool
    cells: Path
    weights: str
    """Digest of the model that is measured."""
    started: bool = False
    """``folder`` is the fine-tuned model of another task."""
    baselines: bool = True
    """Fit the bag-of-words baseline too."""

    @property
    def train_rows(self) -> int:
        """Rows that each fine-tuning learns from."""
        return min(len(self.data.train), self.protocol.train_rows or len(self.data.train))

    def jobs(self) -> list[Job]:
        """All cells, setting by setting, seed by seed.

        Raises:
            UserError: the config cannot be loaded.
        """
        task = _anywhere(self.data.task)
        protocol = self.protocol.for_task(task)
        settings = protocol.settings(load_config(self.folder).hidden_size, task.whole, task_type(task))
        random = self.untrained and not self.started
        hidden_rows = hidden_digest(task) if self.hidden else ""
        model, told = model_digest(self.folder, random), task_digest(task)
        side = "untrained" if self.untrained else "pretrained"
        place = self.cells / _slug(self.protocol.name) / _slug(task.name) / _slug(f"{self.model_name}-{side}")
        return [
            Job(
                folder=self.folder.resolve(),
                model_name=self.model_name,
                task=task,
                protocol=protocol,
                setting=setting,
                seed=seed,
                untrained=self.untrained,
                random=random,
                threads=self.threads,
                hidden=self.hidden,
                hidden_rows=hidden_rows,
                file=place.resolve() / f"{_slug(str(setting))}-seed-{seed}.json",
                source=f"{model} {told} {hidden_rows}",
                fingerprint=fingerprint(model, told, protocol, setting, seed, random),
            )
            for setting in settings
            for seed in range(self.seeds)
        ]

    def result(self, jobs: Sequence[Job], cells: Sequence[Cell]) -> TaskResult:
        """What the cells of ``jobs`` say."""
        data, metric = self.data, self.data.task.metric
        by_setting: dict[Setting, list[Cell]] = {}
        for job, cell in zip(jobs, cells, strict=True):
            by_setting.setdefault(job.setting, []).append(cell)
        tried = [Tried(setting, _by_metric(found)) for setting, found in by_setting.items()]
        chosen = choose(tried, metric, self.protocol.selection)
        part = "test" if self.protocol.reported == "test" and data.test is not None else "dev"
        headline = metric if part == "dev" else f"test_{metric}"
        kind = kind_of(data.task)
        seen = dataclasses.replace(data, train=training_subset(data.train, self.protocol.train_rows))
        baseline = kind.score(kind.constant(seen, data.parts[part]), data.labels)[metric]
        words, words_rows = self._bag_of_words(seen.train) if self.baselines else ({}, 0)
        return TaskResult(
            protocol=self.protocol.name,
            task=data.task.name,
            model="untrained" if self.untrained else "pretrained",
            model_name=self.model_name,
            weights=self.weights,
            kind=data.task.kind,
            metric=headline,
            scores=chosen.scores,
            seeds=list(range(self.seeds)),
            mean=statistics.fmean(chosen.scores[headline]),
            spread=spread(chosen.scores[headline]),
            selection=sentence(chosen.setting, len(tried), self.seeds, self.protocol.selection),
            train_rows=self.train_rows,
            dev_rows=len(data.dev),
            test_rows=len(data.test) if data.test else 0,
            mismatched_rows=len(data.mismatched) if data.mismatched else 0,
            baseline=baseline,
            bag_of_words=words,
            bag_of_words_rows=words_rows,
            settings=self._settings(chosen.setting),
            settings_tried=[each.record(metric) for each in tried] if len(tried) > 1 else [],
            labels=list(data.labels),
            hardware=" and ".join(sorted({cell.hardware for cell in cells})),
            seconds=sum(cell.seconds for cell in cells),
        )

    def _bag_of_words(self, train: LabelledRows) -> tuple[dict[str, float], int]:
        """Scores of the bag-of-words baseline and the rows that it was fitted on.

        They are kept in a file beside the cells, for all models that learn from the same rows.
        """
        task, kind = self.data.task, kind_of(self.data.task)
        file = self.cells / _slug(self.protocol.name) / _slug(task.name) / "bag-of-words.json"
        software = [VERSION, sklearn.__version__]
        known = {
            "software": software, "rows": task_digest(task), "train_rows": self.train_rows, "metric": task.metric,
        }  # fmt: skip
        if file.is_file():
            with contextlib.suppress(UserError, TypeError, AttributeError, KeyError, ValueError):  # changed by hand
                kept = read_json(file)
                if {name: kept.get(name) for name in known} == known:
                    return {name: float(score) for name, score in kept["scores"].items()}, int(kept["fitted_rows"])
        found = bag_of_words(kind, self.data, train)
        scores = {
            name if part == "dev" else f"{part}_{name}": score
            for part, table in (found.judged if found else {}).items()
            for name, score in kind.score(table, self.data.labels).items()
        }
        rows = found.rows if found else 0
        make_folder(file.parent)
        write_json(file, {**known, "scores": scores, "fitted_rows": rows})
        return scores, rows

    def _settings(self, setting: Setting) -> dict[str, float]:
        drawn = {} if self.protocol.train_rows is None else {"subset_seed": SUBSET_SEED}
        config = load_config(self.folder)
        length = row_length(config, load_tokenizer(self.folder), self.protocol)
        return {**self.protocol.recorded(setting, config.hidden_size), "length": length, **drawn}


def keeping(job: Job) -> Job:
    """The same cell, whose model is to be kept beside its file."""
    return dataclasses.replace(job, keep=job.file.with_name(f"model-{job.fingerprint[:16]}"))


def _anywhere(task: Task) -> Task:
    """The task with paths that a worker in another folder finds."""
    files: dict[str, Any] = {name: path.resolve() for name, path in task.files.items()}
    hidden = tuple(dataclasses.replace(file, path=file.path.resolve()) for file in task.hidden)
    return dataclasses.replace(task, **files, hidden=hidden)


def _by_metric(cells: Sequence[Cell]) -> dict[str, list[float]]:
    return {name: [cell.scores[name] for cell in cells] for name in cells[0].scores}


def _slug(name: str) -> str:
    """The name as a folder's, with a tail where it had to be changed: two names never meet in one folder."""
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-")
    return slug if slug == name else f"{slug}-{zlib.crc32(name.encode()):08x}"
