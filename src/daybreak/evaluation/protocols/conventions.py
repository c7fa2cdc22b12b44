"""What publications call a GLUE average: the same results give numbers that lie points apart, so each has its name.

An average exists where all its numbers are there, under one protocol, of one model. A part of a task is not the task.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.schemas.tasks import Average, TaskResult

Number = tuple[str, tuple[str, ...]]
"""(task, metrics on dev): one of the numbers that are averaged is the mean of these metrics of the task."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """How one publication counts."""

    name: str
    source: str
    numbers: tuple[Number, ...]
    """The average is their mean."""
    value: Callable[[Sequence[float]], float]
    """Which value of the seeds stands for a task."""
    value_name: str
    protocol: str | None
    """The protocol whose results may stand beside the publication's own; None: no dev results may."""

    @property
    def what(self) -> str:
        """How it counts, in words."""
        tasks = len({task for task, _ in self.numbers})
        told = ", ".join(map(number_name, self.numbers))
        return f"mean of {len(self.numbers)} numbers of {tasks} tasks on dev ({told}), {self.value_name} of the seeds"

    def average(self, results: dict[str, TaskResult]) -> Average | None:
        """The average over one model's results under one protocol, by task; None where a number is missing."""
        if any(task not in results or set(metrics) - results[task].scores.keys() for task, metrics in self.numbers):
            return None
        numbers = {}
        for task, metrics in self.numbers:
            by_seed = zip(*(results[task].scores[metric] for metric in metrics), strict=True)
            numbers[number_name((task, metrics))] = self.value([statistics.fmean(each) for each in by_seed])
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
"""Share of them that a file must have: a few lines of QQP and MNLI are malformed, and left out by some."""


def _as_published(result: TaskResult) -> bool:
    """Whether a result has the protocol's seeds and was made of the whole task."""
    train, dev = SIZES[result.task]
    enough = len(result.seeds) >= PROTOCOLS[result.protocol].seeds_of(result.task)
    return enough and result.train_rows >= WHOLE * train and result.dev_rows >= WHOLE * dev


def number_name(number: Number) -> str:
    """``('qqp', ('accuracy', 'f1'))`` -> ``qqp accuracy and f1``."""
    task, metrics = number
    return f"{task} {' and '.join(metrics)}"


_ALIKE: tuple[Number, ...] = (
    ("cola", ("mcc",)),
    ("sst2", ("accuracy",)),
    ("qnli", ("accuracy",)),
    ("rte", ("accuracy",)),
)
"""Counted alike by all."""
_TWO_MNLI: tuple[Number, ...] = (("mnli", ("accuracy",)), ("mnli", ("mismatched_accuracy",)))
_ONE_MNLI: Number = ("mnli", ("accuracy", "mismatched_accuracy"))
_BOTH: tuple[Number, ...] = (("mrpc", ("accuracy", "f1")), ("qqp", ("accuracy", "f1")))
_F1: tuple[Number, ...] = (("mrpc", ("f1",)), ("qqp", ("f1",)))

CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention(
            name="cramming",
            source="Geiping and Goldstein 2022, arXiv:2212.14034, and eval.py of JonasGeiping/cramming",
            numbers=(*_ALIKE, *_F1, ("stsb", ("pearson",)), *_TWO_MNLI),
            value=statistics.median,
            value_name="median",
            protocol="cramming",
        ),
        # Their README's table and their code score MNLI on the matched part alone (dev_matched in
        # finetune/classification/classification_tasks.py).
        Convention(
            name="electra",
            source="Clark et al. 2020, arXiv:2003.10555, and the README of google-research/electra",
            numbers=(
                *_ALIKE,
                ("mrpc", ("accuracy",)),
                ("qqp", ("accuracy",)),
                ("stsb", ("spearman",)),
                ("mnli", ("accuracy",)),
            ),
            value=statistics.median,
            value_name="median",
            protocol="electra",
        ),
        Convention(
            name="transfer",
            source="MosaicBERT, arXiv:2312.17482, and glue.py of mosaicml/examples",
            numbers=(*_ALIKE, *_BOTH, ("stsb", ("spearman",)), _ONE_MNLI),
            value=statistics.fmean,
            value_name="mean",
            protocol="transfer",
        ),
        Convention(
            name="bert",
            source="Devlin et al. 2019, arXiv:1810.04805, table 1, whose numbers are of the test files",
            numbers=(*_ALIKE, *_F1, ("stsb", ("spearman",)), *_TWO_MNLI),
            value=statistics.fmean,
            value_name="mean",
            protocol=None,
        ),
        Convention(
            name="leaderboard",
            source="gluebenchmark.com, whose numbers are of the test files; Wang et al. 2019, arXiv:1804.07461",
            numbers=(*_ALIKE, *_BOTH, ("stsb", ("pearson", "spearman")), _ONE_MNLI, ("wnli", ("accuracy",))),
            value=statistics.fmean,
            value_name="mean",
            protocol=None,
        ),
    )
}


def averages(results: Iterable[TaskResult]) -> list[Average]:
    """Each average that the results give, model by model and protocol by protocol, in the order of CONVENTIONS.

    Results of one name that came from other weights are other models.
    """
    groups: dict[tuple[str, ...], dict[str, TaskResult]] = {}
    for result in results:
        of = result.protocol, result.model_name, result.model, result.weights
        groups.setdefault(of, {})[result.task] = result
    found = (convention.average(group) for group in groups.values() for convention in CONVENTIONS.values())
    return [average for average in found if average is not None]
