"""Evaluate a model on one task under one protocol: its fine-tuning jobs, and the result that their runs give."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import shutil
import statistics
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.core.errors import TooLate, UserError, reason
from daybreak.core.files import copy_files, whole_folder
from daybreak.core.terminal import duration, working
from daybreak.evaluation.baselines.bag_of_words import bag_of_words
from daybreak.evaluation.finetuning.baseline_files import read_or_make
from daybreak.evaluation.finetuning.classifier import load_config, load_tokenizer, saved_fingerprint
from daybreak.evaluation.finetuning.fingerprints import fingerprint, model_digest, task_digest, unlabeled_digest
from daybreak.evaluation.finetuning.forecast import job_seconds, waiting_seconds
from daybreak.evaluation.finetuning.jobs import (
    SUBSET_SEED,
    FinetuningJob,
    encoded_task,
    max_sequence_length,
    part_scores,
    rounded,
    run_job,
    training_subset,
    using_threads,
)
from daybreak.evaluation.finetuning.parallel import resource_errors, run_jobs
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.scoring.resampling import lead_interval
from daybreak.evaluation.tasks.kinds import kind_of, task_type
from daybreak.evaluation.tasks.task import LabeledRows, Task, TaskRows
from daybreak.schemas.tasks import FinetuningRun, SettingTried, TaskResult, spread

MOST_LONGER = 5
"""Rows without labels lengthen a fine-tuning at most this many times, unless one epoch takes longer."""


@dataclass(frozen=True, kw_only=True)
class TaskEvaluation:
    """One task under one protocol, and the folder of its finished runs.

    Seed i draws the new head (with ``untrained``: every weight), dropout and the order of the batches. All seeds use
    the same training rows. If the protocol has several settings, the dev score selects one; the test file does not.
    """

    folder: Path
    """The model folder."""
    model_name: str
    data: TaskRows
    protocol: Protocol
    seeds: int
    untrained: bool
    threads: int = 1
    """CPU threads of each fine-tuning."""
    unlabeled: bool
    """Also predict the unlabeled files."""
    cells: Path
    weights: str
    """Digest of the evaluated model."""
    chained: bool = False
    """``folder`` is the fine-tuned model of another task."""
    baselines: bool = True
    """Also fit the bag-of-words baseline."""
    shortens: bool = True
    """Fine-tune for fewer epochs if there are many rows without labels."""
    jobs: tuple[FinetuningJob, ...] = ()
    """Set by ``planned``, as are the next two."""
    remaining: int = 0
    """Jobs that are not finished."""
    seconds: float = 0.0
    """Estimated time of the remaining jobs, one after the other."""

    @property
    def train_rows(self) -> int:
        """Number of training rows of each fine-tuning."""
        return min(len(self.data.train), self.protocol.train_rows or len(self.data.train))

    @property
    def unlabeled_rows(self) -> int:
        """Number of rows without labels that each fine-tuning trains on."""
        return len(self.data.unlabeled_train or ())

    def settings(self, hidden_size: int) -> list[Setting]:
        """Return the settings of the protocol for this task, with fewer epochs if there are many unlabeled rows."""
        found, rows = self.protocol.settings(hidden_size, self.data.task.whole), self.train_rows + self.unlabeled_rows

        def shorter(epochs: int) -> int:
            return max(1, min(epochs, epochs * MOST_LONGER * self.train_rows // rows)) if self.shortens else epochs

        return list(dict.fromkeys(replace(each, epochs=shorter(each.epochs)) for each in found))

    @property
    def is_start(self) -> bool:
        """Whether other tasks of the protocol start from this task's model."""
        return self.data.task.whole in dict(self.protocol.starts).values()

    def all_jobs(self) -> tuple[FinetuningJob, ...]:
        """Return the jobs, setting by setting and seed by seed."""
        task = _with_absolute_paths(self.data.task)
        protocol = self.protocol.for_task(task)
        settings = self.settings(load_config(self.folder).hidden_size)
        random = self.untrained and not self.chained
        unlabeled = unlabeled_digest(task) if self.unlabeled else ""
        model = model_digest(self.folder, random)
        files = task_digest(task)
        rows = task_digest(task, soft_targets=True) if protocol.distillation else files
        side = "untrained" if self.untrained else "pretrained"
        cells = self._folder / _slug(f"{self.model_name}-{side}")
        return tuple(
            FinetuningJob(
                folder=self.folder.resolve(),
                model_name=self.model_name,
                task=task,
                protocol=protocol,
                setting=setting,
                seed=seed,
                untrained=self.untrained,
                random=random,
                threads=self.threads,
                unlabeled_digest=unlabeled,
                file=cells.resolve() / f"{_slug(str(setting))}-seed-{seed}.json",
                source=f"{model} {rows} {unlabeled}",
                files=files,
                fingerprint=fingerprint(model, rows, protocol, setting, seed, random),
            )
            for setting in settings
            for seed in range(self.seeds)
        )

    def planned(self, *, overwrite: bool = False, target: Path | None = None) -> TaskEvaluation:
        """Return this evaluation with its jobs and an estimate of their time.

        The estimate runs a few training steps, which also shows whether the model and the rows fit each other.

        Args:
            overwrite: remove the runs of earlier calls.
            target: folder for the model of the first seed, which is saved unless it is there. With several settings,
                ``keep_model`` does so later.
        """
        jobs = self.all_jobs()
        missing = target is not None and (overwrite or saved_fingerprint(target) != jobs[0].fingerprint)
        if (self.is_start or missing) and len(jobs) == self.seeds:
            jobs = (jobs[0].keeping_model(), *jobs[1:])
        if overwrite:
            for job in jobs:
                job.file.unlink(missing_ok=True)
        remaining = [job for job in jobs if job.finished() is None]
        seconds = 0.0
        if remaining:
            first = remaining[0]
            with resource_errors(first), using_threads(first.threads):
                seconds = job_seconds(first, encoded_task(first))
            seconds *= sum(job.setting.epochs for job in remaining) / first.setting.epochs
        return replace(self, jobs=jobs, remaining=len(remaining), seconds=seconds)

    def result(self, runs: Sequence[FinetuningRun]) -> TaskResult:
        """Return the result of the runs of ``jobs``."""
        data, metric = self.data, self.data.task.metric
        by_setting: dict[Setting, list[FinetuningRun]] = {}
        for job, run in zip(self.jobs, runs, strict=True):
            by_setting.setdefault(job.setting, []).append(run)
        tried = []
        for setting, found in by_setting.items():
            dev = [run.scores[metric] for run in found]
            mean, rate = statistics.fmean(dev), setting.rate
            tried.append(
                SettingTried(epochs=setting.epochs, learning_rate=rate, dev=dev, mean=mean, spread=spread(dev))
            )
        index = select_setting(tried, self.protocol.selection)
        setting, chosen = list(by_setting.items())[index]
        scores = {name: [run.scores[name] for run in chosen] for name in chosen[0].scores}
        part = "test" if self.protocol.reported == "test" and data.test is not None else "dev"
        headline = metric if part == "dev" else f"test_{metric}"
        kind = kind_of(data.task)
        train = training_subset(data.train, self.protocol.train_rows)
        constant = kind.constant(replace(data, train=train), data.parts[part])
        baseline = kind.score(constant, data.labels)[metric]
        words, words_rows, predicted = self._bag_of_words(train) if self.baselines else ({}, 0, {})
        averaged = self._averaged(chosen, part, predicted.get(part))
        better = predicted[part] if words.get(headline, -math.inf) >= baseline else constant.tolist()
        return TaskResult(
            protocol=self.protocol.name,
            task=data.task.name,
            model="untrained" if self.untrained else "pretrained",
            model_name=self.model_name,
            weights=self.weights,
            files=task_digest(data.task, soft_targets=True) if self.unlabeled_rows else self.jobs[0].files,
            kind=data.task.kind,
            metric=headline,
            scores=scores,
            seeds=list(range(self.seeds)),
            mean=statistics.fmean(scores[headline]),
            spread=spread(scores[headline]),
            selection=selection_words(setting, len(tried), self.seeds, self.protocol.selection),
            train_rows=self.train_rows,
            unlabeled_rows=self.unlabeled_rows,
            dev_rows=len(data.dev),
            test_rows=len(data.test) if data.test else 0,
            mismatched_rows=len(data.mismatched) if data.mismatched else 0,
            leaked_rows=data.leaked_rows.get(part, 0),
            baseline=baseline,
            bag_of_words=words,
            bag_of_words_rows=words_rows,
            lead=self._lead(chosen, better, headline),
            combined=[kind.score(np.array(run.scored_rows[part]), data.labels)[metric] for run in averaged],
            combined_lead=self._lead(averaged, better, headline) if averaged else [],
            settings=self._settings(setting),
            settings_tried=tried if len(tried) > 1 else [],
            labels=list(data.labels),
            hardware=" and ".join(sorted({run.hardware for run in runs})),
            seconds=sum(run.seconds for run in runs),
        )

    @property
    def _folder(self) -> Path:
        return self.cells / _slug(self.protocol.name) / _slug(self.data.task.name)

    def _averaged(
        self, runs: Sequence[FinetuningRun], part: str, words: Sequence[Sequence[float]] | None
    ) -> list[FinetuningRun]:
        """Return the runs with their predictions averaged with those of the bag of words; none if these are unknown.

        ``words`` are the rows of the bag of words on this part, as in ``FinetuningRun.scored_rows``.
        """
        kind, labels = kind_of(self.data.task), self.data.labels
        found = []
        for run in runs:
            first, second = np.array(run.scored_rows.get(part, ())), np.array(words or ())
            if first.ndim != 2 or second.ndim != 2 or not np.array_equal(first[:, 0], second[:, 0]):
                return []
            if (mean := kind.mean_prediction(first, second, labels)) is None:
                return []
            found.append(replace(run, scored_rows={part: mean.tolist()}))
        return found

    def _lead(self, runs: Sequence[FinetuningRun], baseline: list[list[float]], metric: str) -> list[float]:
        """Return ``lead_interval``; nothing for an own kind of task, whose metric has no count on resampled rows."""
        with contextlib.suppress(UserError):
            return lead_interval(runs, baseline, kind=self.data.task.kind, metric=metric, classes=len(self.data.labels))
        return []

    def _bag_of_words(self, train: LabeledRows) -> tuple[dict[str, float], int, dict[str, list[list[float]]]]:
        """Return the scores of the bag-of-words baseline, the number of its training rows, and its values by part.

        A file beside the runs keeps them for all models that use the same rows.
        """
        kind, labels = kind_of(self.data.task), self.data.labels

        def make() -> dict[str, Any]:
            found = bag_of_words(kind, self.data, train)
            scores = part_scores(kind, found.scored_rows, labels)
            return {"scores": scores, "fitted_rows": found.rows, "scored_rows": rounded(found.scored_rows)}

        def read(kept: Mapping[str, Any]) -> tuple[dict[str, float], int, dict[str, list[list[float]]]]:
            scores = {name: float(score) for name, score in kept["scores"].items()}
            return scores, int(kept["fitted_rows"]), dict(kept["scored_rows"])

        return read_or_make(self._folder / "bag-of-words.json", self.data.task, self.train_rows, read, make)

    def _settings(self, setting: Setting) -> dict[str, float]:
        subset = {} if self.protocol.train_rows is None else {"subset_seed": SUBSET_SEED}
        config = load_config(self.folder)
        length = max_sequence_length(config, load_tokenizer(self.folder), self.protocol)
        recorded = self.protocol.recorded(setting, config.hidden_size, task_type(self.data.task))
        return {**recorded, "length": length, **subset}


def _with_absolute_paths(task: Task) -> Task:
    files: dict[str, Any] = {name: path.resolve() for name, path in task.files.items()}
    if task.unlabeled_train:
        files["unlabeled_train"] = task.unlabeled_train.resolve()
    unlabeled = tuple(replace(file, path=file.path.resolve()) for file in task.unlabeled)
    return replace(task, **files, unlabeled=unlabeled)


def _slug(name: str) -> str:
    """Return a folder name; if characters had to change, a checksum keeps different names apart."""
    slug = re.sub(r"[^\w.-]+", "-", name).strip("-")
    return slug if slug == name else f"{slug}-{zlib.crc32(name.encode()):08x}"


# ---------------------------------------------------------------- which of several settings is reported


def select_setting(tried: Sequence[SettingTried], rule: str) -> int:
    """Return the index of the selected setting, by the mean dev score over seeds; the first of equal ones.

    Args:
        rule: ``best``, or ``shortest`` (SciBERT): among the settings within one standard deviation of the best
            setting's mean (its own deviation), the one with the fewest epochs, then with the highest mean.
    """
    best = max(tried, key=lambda one: one.mean)
    if rule == "best":
        return list(tried).index(best)
    near = [index for index, one in enumerate(tried) if one.mean >= best.mean - best.spread]
    return min(near, key=lambda index: (tried[index].epochs, -tried[index].mean))


def selection_words(chosen: Setting, tried: int, seeds: int, rule: str) -> str:
    """Describe how the reported numbers were selected."""
    if tried == 1:
        return "after the last epoch"
    over = f"the mean of {seeds} seeds" if seeds > 1 else "one seed"
    which = "the best on dev" if rule == "best" else "the fewest epochs within one deviation of the best on dev"
    return f"{chosen}: of {tried} settings {which}, {over}; after the last epoch"


# ---------------------------------------------------------------- several tasks


def total_work(evaluations: Sequence[TaskEvaluation]) -> tuple[int, int]:
    """Return the number of fine-tunings and of training rows, counted once per epoch."""
    count = rows = 0
    for each in evaluations:
        settings = each.settings(0)
        count += len(settings) * each.seeds
        rows += (each.train_rows + each.unlabeled_rows) * sum(setting.epochs for setting in settings) * each.seeds
    return count, rows


def stages(evaluations: Sequence[TaskEvaluation]) -> Iterator[list[TaskEvaluation]]:
    """Yield the evaluations that start from the model, then those that start from another task's fine-tuned model."""
    starts = dict(evaluations[0].protocol.starts)
    second = [each for each in evaluations if each.data.task.whole in starts]
    first = [each for each in evaluations if each not in second]
    sources = {each.data.task.whole: each for each in first} | {each.data.task.name: each for each in first}
    evaluations[0].protocol.check_starts([each.data.task for each in evaluations])
    if first:
        yield first
    if second:
        # all_jobs() reads all files of a task, so it is called once per start.
        needed_starts = {starts[each.data.task.whole] for each in second}
        kept = {start: sources[start].all_jobs()[0].keeping_model().keep for start in needed_starts}
        chained = []
        for each in second:
            start = starts[each.data.task.whole]
            folder, learned = kept[start], sources[start].data.task.name
            assert folder is not None
            # If only a part of the task was learned, the name of the protocol says so.
            name = each.protocol.name if learned == start else f"{each.protocol.name}, from {learned}"
            chained.append(replace(each, folder=folder, chained=True, protocol=replace(each.protocol, name=name)))
        yield chained


def planned_from(evaluation: TaskEvaluation, folder: Path, *, overwrite: bool = False) -> TaskEvaluation:
    """Plan a chained evaluation; the model in ``folder`` replaces its starting model if that does not exist yet.

    Args:
        overwrite: as for ``TaskEvaluation.planned``.
    """
    if not evaluation.folder.is_dir():
        evaluation = replace(evaluation, folder=folder, chained=False)
    return evaluation.planned(overwrite=overwrite)


def forecast(planned: Sequence[TaskEvaluation], workers: int, price: float | None, within: float | None) -> str:
    """Describe how long the remaining jobs take; empty if none remain.

    Raises:
        TooLate: it is more than ``within`` seconds.
    """
    remaining = sum(each.remaining for each in planned)
    if not remaining:
        return ""
    seconds = waiting_seconds(sum(each.seconds for each in planned), remaining, workers)
    if within is not None and seconds > within:
        raise TooLate(
            f"{remaining} fine-tunings take about {duration(seconds)} and {duration(within)} are left.",
            "Evaluate later: daybreak evaluate RUN.",
        )
    side = f", {workers} at a time" if workers > 1 else ""
    cost = "" if price is None else f", cost about {price * seconds / 3600:.2f}"
    return f"{remaining} fine-tuning{'s' if remaining > 1 else ''}{side}: about {duration(seconds)}{cost}."


def run_all(
    planned: Sequence[TaskEvaluation], workers: int, backend: str
) -> Iterator[tuple[TaskEvaluation, list[FinetuningRun]]]:
    """Yield each planned evaluation with its runs as soon as they are finished."""
    with working("Fine-tuning") as work:
        runs = run_jobs([job for each in planned for job in each.jobs], workers, backend, work)
        for each in planned:
            yield each, list(itertools.islice(runs, len(each.jobs)))


def keep_model(evaluation: TaskEvaluation, result: TaskResult, target: Path) -> None:
    """Move the model of the first seed of the selected setting to ``target``, unless it is there."""
    chosen = (result.settings["epochs"], result.settings["learning_rate"])
    first = next(job for job in evaluation.jobs if (job.setting.epochs, job.setting.rate) == chosen)
    job = first.keeping_model()
    if saved_fingerprint(target) == job.fingerprint and not (job.keep and job.keep.is_dir()):
        return
    with working(f"{result.task}, model to keep") as work, resource_errors(job):
        run_job(job, lambda fraction, loss: work.show(fraction, f"loss {loss:.3f}"))
    assert job.keep is not None
    try:
        with whole_folder(target) as new:
            copy_files(job.keep, new)
    except OSError as error:
        why = error.strerror or reason(error)
        raise UserError(
            f"The model cannot be written to '{target}' ({why}).",
            "Free disk space or correct the permissions, then repeat the command.",
        ) from None
    if not evaluation.is_start:
        # Hidden first, because a folder whose removal was killed would be taken for the whole model.
        removed = job.keep.with_name(f".{job.keep.name}.old")
        shutil.rmtree(removed, ignore_errors=True)
        os.replace(job.keep, removed)
        shutil.rmtree(removed)
