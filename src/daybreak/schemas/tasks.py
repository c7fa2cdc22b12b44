"""Results of fine-tuning on disk: one file per run, results.json, and comparisons. Units as in ``records``."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CLAIM_SEEDS = 3
"""Fewest seeds that a claim rests on (RULES.md)."""


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation (n - 1); 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _current_names(scores: dict[str, Any]) -> dict[str, Any]:
    """Return the scores as this version names them: earlier versions called the negative log-likelihood surprise."""
    return {re.sub(r"(^|_)surprise$", r"\1nll", name): score for name, score in scores.items()}


@dataclass(frozen=True, kw_only=True)
class FinetuningRun:
    """One fine-tuning of one model on one task, in a file of its own, so that a killed evaluation can resume."""

    fingerprint: str
    """Digest of everything that the numbers depend on: model, rows, protocol, setting, seed, software."""
    protocol: str
    task: str
    model: str
    model_name: str
    epochs: int
    learning_rate: float
    batch: int
    seed: int
    scores: dict[str, float]
    """As ``TaskResult.scores``, of this seed alone."""
    scored_rows: dict[str, list[list[float]]]
    """By part (dev, test, mismatched): the values of each row that the scores are computed from, never text."""
    predictions: dict[str, list[float]] = field(default_factory=dict)
    """By name of a submission's file: the class id or number for each unlabelled row."""
    unlabelled_digest: str = ""
    """Digest of the unlabelled files."""
    device: str = "CPU"
    threads: int
    """CPU threads."""
    precision: str = "float32"
    """Arithmetic of training: float32 or bfloat16. Files without this field that were made on a GPU may be either."""
    seconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", _current_names(self.scores))

    @property
    def hardware(self) -> str:
        """The device; for a CPU also the threads, and the arithmetic if it is not float32."""
        if self.device != "CPU":
            return self.device
        cpu = f"CPU, {self.threads} thread{'s' if self.threads > 1 else ''}"
        return cpu if self.precision == "float32" else f"{cpu}, {self.precision}"


@dataclass(frozen=True, kw_only=True)
class SettingTried:
    """One of the settings that a protocol chooses from, by its headline metric on dev."""

    epochs: int
    learning_rate: float
    dev: list[float]
    """One value a seed, in the order of ``TaskResult.seeds``."""
    mean: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """One task under one protocol; ``results.json`` holds a list of these."""

    protocol: str
    task: str
    model: str
    """What was fine-tuned: 'pretrained', or 'untrained' for the same shape with random weights."""
    model_name: str = ""
    """Name of the run's or the model's folder."""
    weights: str = ""
    """Digest of the model, so that results of two models of one name are told apart."""
    kind: str
    metric: str
    """Name of the headline metric, a key of ``scores``; it begins with ``test_`` where test is reported, not dev."""
    scores: dict[str, list[float]]
    """Every metric, one value a seed, in the order of ``seeds``; shares in [0, 1], correlations in [-1, 1]. Those of
    the labelled test file, where there is one, begin with ``test_``, of a second dev file with ``mismatched_``."""
    seeds: list[int]
    mean: float
    spread: float
    """Standard deviation of the headline metric over seeds (n - 1); 0 for a single seed."""
    selection: str
    train_rows: int
    dev_rows: int
    test_rows: int = 0
    mismatched_rows: int = 0
    baseline: float
    """Headline metric of a constant answer: the most frequent label (for f1 the positive one), or the training mean."""
    bag_of_words: dict[str, float] = field(default_factory=dict)
    """Metrics of the bag-of-words baseline on the same training rows, by name as in ``scores``; empty where the kind of
    task has none, where it was not wanted (``--no-baselines``), and in results of earlier versions."""
    bag_of_words_rows: int = 0
    """Training rows that it was fitted on: fewer than ``train_rows`` where the training text is very long. 0 where
    there is no such baseline."""
    settings: dict[str, float]
    """learning_rate, epochs, batch, length and so on; the chosen ones where the protocol chooses."""
    settings_tried: list[SettingTried] = field(default_factory=list)
    """What was chosen from; empty where there was one setting."""
    labels: list[str] = field(default_factory=list)
    hardware: str = ""
    """Device of the fine-tunings, and on a CPU their threads; several where they differ."""
    seconds: float
    """Sum over all fine-tunings."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", _current_names(self.scores))
        object.__setattr__(self, "bag_of_words", _current_names(self.bag_of_words))

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is a result of; a newer one of the same takes its place."""
        return self.protocol, self.task, self.model_name, self.model

    @property
    def median(self) -> float:
        """Of the headline metric over seeds."""
        return statistics.median(self.scores[self.metric])

    @property
    def bag_of_words_part(self) -> str:
        """``fitted on 45,000 of 392,702 rows`` where the bag of words has not all training rows, else empty."""
        if not self.bag_of_words or self.bag_of_words_rows in (0, self.train_rows):
            return ""
        return f"fitted on {self.bag_of_words_rows:,} of {self.train_rows:,} rows"

    @property
    def best_baseline(self) -> tuple[str, float]:
        """The better of the baselines that need no network: its name and its headline metric."""
        words = self.bag_of_words.get(self.metric, -math.inf)
        return ("bag of words", words) if words >= self.baseline else ("constant answer", self.baseline)

    @property
    def beats_baseline(self) -> bool:
        """Whether the mean, less the spread over seeds, is above the best baseline.

        The baselines have no spread: they are fitted on the rows that all seeds learn from, and draw nothing.
        """
        return self.mean - self.spread > self.best_baseline[1]

    @property
    def reported(self) -> str:
        """The part behind the headline metric: dev or test."""
        return "test" if self.metric.startswith("test_") else "dev"

    @property
    def reported_rows(self) -> int:
        """Rows of that part."""
        return self.test_rows if self.reported == "test" else self.dev_rows


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mean over tasks as one publication counts it; it exists only where all its tasks are there."""

    convention: str
    """Whose way of counting, a name of ``evaluation.conventions``."""
    what: str
    """How it counts, in words: the numbers, and which value of the seeds stands for a task."""
    protocol: str
    """How the tasks were fine-tuned."""
    model: str
    model_name: str
    value: float
    numbers: dict[str, float]
    """What was averaged, in order: 'mnli mismatched_accuracy' -> 0.801."""
    seeds: int
    """Fewest seeds of its tasks."""
    comparable: bool
    """Whether protocol and seeds are the publication's own too, so that its published numbers may stand beside it."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Model B against model A on one task and protocol: the same seeds, the same examples."""

    task: str
    protocol: str
    metric: str
    model_a: str
    model_b: str
    seeds: list[int]
    rows: int
    a: float
    """Mean over those seeds."""
    b: float
    low: float
    """Of the 95 % interval of b - a, by resampling examples and seeds in pairs."""
    high: float
    better: float
    """Share of the resamples in which b was above a, equal ones counted half."""

    @property
    def verdict(self) -> str:
        """In words; only an interval that leaves out zero decides, and only from CLAIM_SEEDS seeds on."""
        if self.low <= 0 <= self.high:
            return "no difference shown"
        if len(self.seeds) < CLAIM_SEEDS:
            return f"{'B' if self.low > 0 else 'A'} is ahead, no claim from fewer than {CLAIM_SEEDS} seeds"
        return "B is better" if self.low > 0 else "A is better"
