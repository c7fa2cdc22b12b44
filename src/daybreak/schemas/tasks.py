"""Results of fine-tuning on disk: one file per run, results.json, and comparisons. Units as in ``schemas.run``."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT_PROTOCOL = "quick"
"""Fine-tuning protocol of ``daybreak evaluate`` and ``study`` unless another one is named."""
CLAIM_SEEDS = 3
"""Smallest number of seeds for a claim (RULES.md)."""
LEAK = 0.01
"""Fraction of the reported rows that are also training rows, from which on reports say so."""
ROUNDING = 1e-9
"""Differences of scores up to this are ties: the mean of three equal scores may differ from them in its last digit."""


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
    """By name of a submission's file: the class id or number for each unlabeled row."""
    unlabeled_digest: str = ""
    """Digest of the unlabeled files."""
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
    """One of the settings that a protocol selects from by the headline metric on dev."""

    epochs: int
    learning_rate: float
    dev: list[float]
    """One value per seed, in the order of ``TaskResult.seeds``."""
    mean: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Result of one task under one protocol; ``results.json`` holds a list of these."""

    protocol: str
    task: str
    model: str
    """'pretrained', or 'untrained' for the same shape with random weights."""
    model_name: str = ""
    """Name of the run's or the model's folder."""
    weights: str = ""
    """Digest of the model, which distinguishes models of the same name."""
    files: str = ""
    """Digest of the files, with those of unlabeled training rows, and of how they are read; empty in results of earlier
    versions."""
    kind: str
    metric: str
    """Name of the headline metric, a key of ``scores``; it begins with ``test_`` if test is reported instead of dev."""
    scores: dict[str, list[float]]
    """All metrics, one value per seed in the order of ``seeds``; fractions in [0, 1], correlations in [-1, 1]. Metrics
    of a labeled test file begin with ``test_``, those of a second dev file with ``mismatched_``."""
    seeds: list[int]
    mean: float
    spread: float
    """Standard deviation of the headline metric over seeds (n - 1); 0 for a single seed."""
    selection: str
    train_rows: int
    """Labeled training rows."""
    unlabeled_rows: int = 0
    """Training rows without labels."""
    dev_rows: int
    test_rows: int = 0
    mismatched_rows: int = 0
    leaked_rows: int = 0
    """Rows of the reported part whose texts are also those of a training row; 0 in results of earlier versions."""
    baseline: float
    """Headline metric of a constant answer: the most frequent label (the positive one for f1), or the training mean."""
    bag_of_words: dict[str, float] = field(default_factory=dict)
    """Metrics of the bag-of-words baseline on the same training rows, by name as in ``scores``; empty if the kind
    of task has none, with ``--no-baselines``, and in results of earlier versions."""
    bag_of_words_rows: int = 0
    """Training rows of that baseline: fewer than ``train_rows`` if the training text is very long; 0 without it."""
    lead: list[float] = field(default_factory=list)
    """Both ends of the 95 % interval by which the encoder is above the better baseline, over rows and seeds as in
    ``Comparison``; empty in results of earlier versions, and if rows do not determine the metric."""
    combined: list[float] = field(default_factory=list)
    """Headline metric of the mean of the encoder's and the bag of words' predictions, one value per seed: what the
    encoder adds. Empty without a bag of words, for other tasks than classification and regression, and in results of
    earlier versions."""
    combined_lead: list[float] = field(default_factory=list)
    """As ``lead``, for ``combined``."""
    settings: dict[str, float]
    """learning_rate, epochs, batch, length and others; the selected ones if the protocol selects."""
    settings_tried: list[SettingTried] = field(default_factory=list)
    """Settings that were compared; empty if there was only one."""
    labels: list[str] = field(default_factory=list)
    hardware: str = ""
    """Devices of the fine-tunings, with the threads of a CPU."""
    seconds: float
    """Sum over all fine-tunings."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", _current_names(self.scores))
        object.__setattr__(self, "bag_of_words", _current_names(self.bag_of_words))
        if not all(self.scores.values()):
            raise ValueError("a metric without scores")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identity of the result; a newer result with the same key replaces it."""
        return self.protocol, self.task, self.model_name, self.model

    def has_files_of(self, other: TaskResult) -> bool:
        """Whether both results are from the same files, as far as that is known."""
        return not (self.files and other.files) or self.files == other.files

    @property
    def training_size(self) -> str:
        """``2,000``, or with unlabeled rows ``2,000 (and 9,000 unlabeled)``."""
        more = f" (and {self.unlabeled_rows:,} unlabeled)" if self.unlabeled_rows else ""
        return f"{self.train_rows:,}{more}"

    @property
    def median(self) -> float:
        """Median of the headline metric over seeds."""
        return statistics.median(self.scores[self.metric])

    @property
    def bag_of_words_part(self) -> str:
        """``fitted on 45,000 of 392,702 rows`` if the bag of words uses only a part of the training set, else empty."""
        if not self.bag_of_words or self.bag_of_words_rows in (0, self.train_rows):
            return ""
        return f"fitted on {self.bag_of_words_rows:,} of {self.train_rows:,} rows"

    @property
    def best_baseline(self) -> tuple[str, float]:
        """The better baseline without a network: its name and its headline metric."""
        words = self.bag_of_words.get(self.metric, -math.inf)
        return ("bag of words", words) if words >= self.baseline else ("constant answer", self.baseline)

    @property
    def above_baseline(self) -> bool:
        """Whether the mean minus the standard deviation over seeds is above the best baseline.

        The baselines are deterministic and have no standard deviation.
        """
        return self.mean - self.spread > self.best_baseline[1] + ROUNDING

    @property
    def beats_baseline(self) -> bool:
        """Whether it is ``above_baseline``, and the interval of ``lead``, where known, is above 0."""
        return self.above_baseline and (not self.lead or self.lead[0] > 0)

    @property
    def combined_beats_baseline(self) -> bool:
        """The same for the mean of both predictions."""
        values = self.combined
        above = bool(values) and statistics.fmean(values) - spread(values) > self.best_baseline[1] + ROUNDING
        return above and (not self.combined_lead or self.combined_lead[0] > 0)

    @property
    def leaks(self) -> bool:
        """Whether so many of the reported rows are also training rows that reports say so."""
        return self.leaked_rows >= LEAK * self.reported_rows > 0

    @property
    def reported(self) -> str:
        """Part of the headline metric: dev or test."""
        return "test" if self.metric.startswith("test_") else "dev"

    @property
    def reported_rows(self) -> int:
        """Rows of that part."""
        return self.test_rows if self.reported == "test" else self.dev_rows


@dataclass(frozen=True, kw_only=True)
class Average:
    """Mean over tasks in the convention of one publication; it exists only if all its tasks are there."""

    convention: str
    """Name of the convention in ``evaluation.protocols.conventions``."""
    what: str
    """The convention in words: the numbers, and how the seeds of a task are combined."""
    protocol: str
    """Protocol of the fine-tunings."""
    model: str
    model_name: str
    value: float
    numbers: dict[str, float]
    """The averaged numbers, in order: 'mnli mismatched_accuracy' -> 0.801."""
    seeds: int
    """Smallest number of seeds among its tasks."""
    comparable: bool
    """Whether protocol and seeds match the publication, so that its published numbers are comparable."""


@dataclass(frozen=True, kw_only=True)
class PublishedAverage:
    """A published average, to compare with an ``Average`` of the same convention."""

    convention: str
    """As ``Average.convention``; empty if the metrics are not stated."""
    model: str
    value: float
    """In [0, 1]."""
    numbers: dict[str, float]
    """As ``Average.numbers``; empty if only the average is published."""
    source: str
    exaflop: float | None = None
    """10^18 operations that its devices could do at their peak rate in the time of pretraining; None if unknown."""
    how: str = ""
    """Devices, time and peak rate behind ``exaflop``."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Model B against model A on one task and protocol, with the same seeds and examples."""

    task: str
    protocol: str
    metric: str
    model_a: str
    model_b: str
    seeds: list[int]
    rows: int
    a: float
    """Mean over the seeds."""
    b: float
    spread: float
    """Standard deviation over the seeds (n - 1), the larger of the two models; 0 for a single seed."""
    low: float
    """Lower end of the 95 % interval of b - a: by paired resampling of rows and seeds, from CLAIM_SEEDS seeds on joined
    with Student's t over the seeds."""
    high: float
    better: float
    """Fraction of the resamples in which b is above a, ties counted half."""

    @property
    def verdict(self) -> str:
        """Conclusion in words. A difference needs an interval without zero; a claim also needs CLAIM_SEEDS seeds and a
        difference above the standard deviation over seeds."""
        ahead = f"{'B' if self.low > 0 else 'A'} is ahead"
        if self.low <= 0 <= self.high:
            return "no difference shown"
        if len(self.seeds) < CLAIM_SEEDS:
            return f"{ahead}, no claim from fewer than {CLAIM_SEEDS} seeds"
        if abs(self.b - self.a) <= self.spread + ROUNDING:
            return f"{ahead} by no more than the standard deviation, no claim"
        return "B is better" if self.low > 0 else "A is better"
