"""GLUE averages as publications compute them. The conventions differ by points on the same results, so each has a name.

An average needs all its numbers, from one model under one protocol. A subset of a task does not count as the task.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.schemas.tasks import Average, TaskResult

Number = tuple[str, tuple[str, ...]]
"""(task, metrics on dev): one averaged number, the mean of these metrics of the task."""
SUMMARIES: dict[str, Callable[[Iterable[float]], float]] = {"mean": statistics.fmean, "median": statistics.median}


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How one publication computes its average."""

    name: str
    source: str
    numbers: tuple[Number, ...]
    """The average is the mean of these numbers."""
    value: str
    """Summary over seeds, a name of SUMMARIES."""
    protocol: str | None
    """The protocol whose results are comparable with the published ones; None if no dev results are."""

    @property
    def what(self) -> str:
        """A description of the average."""
        tasks = len({task for task, _ in self.numbers})
        names = ", ".join(map(number_name, self.numbers))
        return f"mean of {len(self.numbers)} numbers of {tasks} tasks on dev ({names}), {self.value} of the seeds"

    def average(self, results: dict[str, TaskResult]) -> Average | None:
        """Return the average of one model's results under one protocol, by task; None if a number is missing."""
        if any(task not in results or set(metrics) - results[task].scores.keys() for task, metrics in self.numbers):
            return None
        numbers = {}
        for task, metrics in self.numbers:
            by_seed = zip(*(results[task].scores[metric] for metric in metrics), strict=True)
            numbers[number_name((task, metrics))] = SUMMARIES[self.value]([statistics.fmean(each) for each in by_seed])
        used = [results[task] for task in dict(self.numbers)]
        one = used[0]
        return Average(
            convention=self.name,
            what=self.what,
            protocol=one.protocol,
            model=one.model,
            model_name=one.model_name,
            value=statistics.fmean(numbers.values()),
            numbers=numbers,
            seeds=min(len(result.seeds) for result in used),
            comparable=one.protocol == self.protocol and all(map(_as_published, used)),
        )


SIZES = {
    "cola": (8551, 1043),
    "sst2": (67349, 872),
    "mrpc": (3668, 408),
    "stsb": (5749, 1500),
    "qqp": (363846, 40430),
    "mnli": (392702, 9815),
    "qnli": (104743, 5463),
    "rte": (2490, 277),
    "wnli": (635, 71),
}
"""Rows of train and dev (Wang et al. 2019, arXiv:1804.07461, and the ``nyu-mll/glue`` data set)."""
WHOLE = 0.999
"""Fraction of the rows that a file must have: some copies omit a few malformed lines of QQP and MNLI."""


def _as_published(result: TaskResult) -> bool:
    """Return whether a result has the protocol's number of seeds and the whole task's rows."""
    train, dev = SIZES[result.task]
    enough = len(result.seeds) >= PROTOCOLS[result.protocol].seeds_of(result.task)
    return enough and result.train_rows >= WHOLE * train and result.dev_rows >= WHOLE * dev


def number_name(number: Number) -> str:
    """``('qqp', ('accuracy', 'f1'))`` -> ``qqp accuracy and f1``."""
    task, metrics = number
    return f"{task} {' and '.join(metrics)}"


_ALIKE: tuple[Number, ...] = (("cola", ("mcc",)), *((task, ("accuracy",)) for task in ("sst2", "qnli", "rte")))
"""The same in all conventions."""
_TWO_MNLI: tuple[Number, ...] = (("mnli", ("accuracy",)), ("mnli", ("mismatched_accuracy",)))
_ONE_MNLI: Number = ("mnli", ("accuracy", "mismatched_accuracy"))
_BOTH: tuple[Number, ...] = (("mrpc", ("accuracy", "f1")), ("qqp", ("accuracy", "f1")))
_F1: tuple[Number, ...] = (("mrpc", ("f1",)), ("qqp", ("f1",)))
_PEARSON: Number = ("stsb", ("pearson",))
_SPEARMAN: Number = ("stsb", ("spearman",))

_TABLE = (
    Convention(
        name="cramming",
        source="Geiping and Goldstein 2022, arXiv:2212.14034, and eval.py of JonasGeiping/cramming",
        numbers=(*_ALIKE, *_F1, _PEARSON, *_TWO_MNLI),
        value="median",
        protocol="cramming",
    ),
    # Their README's table and their code score MNLI on the matched part alone (dev_matched in
    # finetune/classification/classification_tasks.py).
    Convention(
        name="electra",
        source="Clark et al. 2020, arXiv:2003.10555, and the README of google-research/electra",
        numbers=(*_ALIKE, *((task, ("accuracy",)) for task in ("mrpc", "qqp")), _SPEARMAN, ("mnli", ("accuracy",))),
        value="median",
        protocol="electra",
    ),
    Convention(
        name="transfer",
        source="MosaicBERT, arXiv:2312.17482, and glue.py of mosaicml/examples",
        numbers=(*_ALIKE, *_BOTH, _SPEARMAN, _ONE_MNLI),
        value="mean",
        protocol="transfer",
    ),
    Convention(
        name="bert",
        source="Devlin et al. 2019, arXiv:1810.04805, table 1, whose numbers are of the test files",
        numbers=(*_ALIKE, *_F1, _SPEARMAN, *_TWO_MNLI),
        value="mean",
        protocol=None,
    ),
    Convention(
        name="leaderboard",
        source="gluebenchmark.com, whose numbers are of the test files; Wang et al. 2019, arXiv:1804.07461",
        numbers=(*_ALIKE, *_BOTH, ("stsb", ("pearson", "spearman")), _ONE_MNLI, ("wnli", ("accuracy",))),
        value="mean",
        protocol=None,
    ),
)
CONVENTIONS = {convention.name: convention for convention in _TABLE}


def averages(results: Iterable[TaskResult]) -> list[Average]:
    """Return all averages of the results by model and protocol, in the order of CONVENTIONS.

    Results with the same model name but other weights belong to different models.
    """
    groups: dict[tuple[str, ...], dict[str, TaskResult]] = {}
    for result in results:
        of = result.protocol, result.model_name, result.model, result.weights
        groups.setdefault(of, {})[result.task] = result
    found = (convention.average(group) for group in groups.values() for convention in CONVENTIONS.values())
    return [average for average in found if average is not None]
