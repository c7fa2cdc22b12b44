"""Published GLUE averages, each comparable only with an average of the same convention and protocol.

All numbers come from papers, model cards, repositories or threads of their authors. Not included, because Daybreak does
not compute their conventions: averages of test files (BERT's, the leaderboard's), of unstated metrics, of settings
searched per task, and with F1 where the convention has accuracy.

Anchors of the Cramming paper's convention also have their compute as that paper counts it, if hardware and time are
published and the paper's own numbers give the peak rate of the hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from daybreak.evaluation.protocols.conventions import CONVENTIONS, Convention, averages, number_name
from daybreak.schemas.tasks import Average, PublishedAverage, TaskResult

COMPUTED = "cramming"
"""The convention whose averages have a compute estimate: operations that the devices could do at their peak rate in the
time of pretraining, not those that they did (Geiping and Goldstein 2022, arXiv:2212.14034)."""


def comparable_published(average: Average) -> list[PublishedAverage]:
    """Return the published averages that are comparable with ``average``, best first."""
    fitting = [anchor for anchor in ANCHORS if average.comparable and anchor.convention == average.convention]
    return sorted(fitting, key=lambda anchor: -anchor.value)


def published_by_compute() -> list[PublishedAverage]:
    """Return the anchors with a compute estimate, in ascending order of compute."""
    found = [(anchor.exaflop, -anchor.value, anchor) for anchor in ANCHORS if anchor.exaflop is not None]
    return [anchor for _, _, anchor in sorted(found, key=lambda entry: entry[:2])]


def average_for_compute(results: Iterable[TaskResult]) -> tuple[float | None, str]:
    """Return a pretrained model's average for the comparison with the anchors that have a compute estimate.

    Returns:
        The average in [0, 1] and "", if all its numbers exist under the convention's protocol; else None and what is
        missing. The text is empty if no task of the convention was evaluated.
    """
    convention = CONVENTIONS[COMPUTED]
    tasks = dict(convention.numbers)
    found = [result for result in results if result.model == "pretrained" and result.task in tasks]
    counted = [average for average in averages(found) if average.convention == convention.name]
    whole = [average.value for average in counted if average.comparable]
    if whole:
        return whole[0], ""
    under = [result for result in found if result.protocol == convention.protocol]
    newest = [(result.model_name, result.weights) for result in under[-1:]]
    under = [result for result in under if (result.model_name, result.weights) in newest]
    if any(average.protocol == convention.protocol for average in counted):
        return None, f"all {len(convention.numbers)} numbers, but from fewer seeds or rows than the published ones"
    if under:
        return None, _lacking(convention, under)
    if not found:
        return None, ""
    count = len({result.task for result in found})
    protocols = " and ".join(dict.fromkeys(result.protocol for result in found))
    return None, f"{count} of the {len(tasks)} tasks, under {protocols} and none under {convention.protocol}"


def _lacking(convention: Convention, results: Sequence[TaskResult]) -> str:
    scores = {result.task: result.scores.keys() for result in results}
    lacking = [
        number_name((task, metrics)) for task, metrics in convention.numbers if set(metrics) - set(scores.get(task, ()))
    ]
    there = len(convention.numbers) - len(lacking)
    return f"{there} of the {len(convention.numbers)} numbers under {convention.protocol}; not {', '.join(lacking)}"


def _anchors(convention: str, columns: str, *rows: tuple[str, str, float, tuple[float, ...]]) -> list[PublishedAverage]:
    """Return anchors from (model, source, average, one number per column or none) in percent; ", " divides columns."""
    names = columns.split(", ")
    return [
        PublishedAverage(
            convention=convention,
            model=model,
            value=round(average / 100, 6),
            numbers={name: round(value / 100, 6) for name, value in zip(names, numbers, strict=bool(numbers))},
            source=source,
            exaflop=exaflop,
            how=how,
        )
        for model, source, average, numbers in rows
        for exaflop, how in [CAPACITIES.get(model, (None, "")) if convention == COMPUTED else (None, "")]
    ]


_CRAMMING = "Geiping and Goldstein 2022, arXiv:2212.14034, GLUE dev"
_ELECTRA = "Clark et al. 2020, arXiv:2003.10555, GLUE dev"
_ELECTRA_README = "README of google-research/electra, expected results; the average is counted here"
_MOSAIC = "MosaicBERT, arXiv:2312.17482, GLUE dev"
_ISSUE = "github.com/JonasGeiping/cramming/issues/45"
_SIMPLIFYING = "He and Hofmann 2023, arXiv:2311.01906, GLUE dev; fine-tuned at rate 1.5e-4 with batches of 32, 3 seeds"

_A4000 = (7.64, "one A4000 for 24 h at 88.45 TFLOP/s; the Cramming paper says 8")
_A6000 = (13.37, "one A6000 for 24 h at 154.8 TFLOP/s; the Cramming paper says 13")

CAPACITIES: dict[str, tuple[float, str]] = {
    "BERT-base, fully trained": (680, "16 TPUv3 for 4 days, as the Cramming paper counts it"),
    "RoBERTa-base": (13_824, "1,024 V100 for 1.25 days, as the Cramming paper counts it"),
    "crammed BERT, first version, one A6000 for a day": _A6000,
    "crammed BERT, second version, one A6000 for a day, best of 5": _A6000,
    "crammed BERT, second version, one A6000 for a day": _A6000,
    "crammed BERT, second version, one A4000 for a day": _A4000,
    "crammed BERT by others, one 2080 Ti for a day": (
        4.65,
        "one 2080 Ti for 24 h at 53.8 TFLOP/s; the Cramming paper says 5",
    ),
}
"""10^18 operations and how they are counted, by model. The rates reproduce the paper's own table.

Not here: Izsak et al. (86), of which no GLUE numbers in this convention were found; an A5500 for a day (80.3 in issue
45) and an RTX 3060 Ti for 100 hours (72.7, its metrics unstated), for which no source states the peak rate; the network
without pretraining (0).
"""

_NINE = (
    "mnli accuracy, mnli mismatched_accuracy, sst2 accuracy, stsb pearson, rte accuracy, qnli accuracy, qqp f1, "
    "mrpc f1, cola mcc"
)
"""The columns of the Cramming paper's table."""

# fmt: off
ANCHORS = (
    *_anchors(
        COMPUTED,
        _NINE,
        ("BERT-base, fully trained", f"{_CRAMMING}; fine-tuned at rate 2e-5 with batches of 32", 80.9,
         (83.2, 83.4, 91.9, 86.7, 59.2, 90.6, 87.7, 89.3, 56.5)),
        ("BERT-base, no pretraining", _CRAMMING, 45.5, (34.1, 34.1, 79.9, 17.8, 47.3, 50.0, 68.6, 77.9, 0.0)),
        ("RoBERTa-base", _CRAMMING, 85.1, (86.6, 86.4, 93.7, 90.4, 77.3, 92.1, 88.3, 91.4, 60.2)),
        ("crammed BERT, first version, one A6000 for a day", "model card of JonasGeiping/crammed-bert-legacy", 78.6,
         (83.9, 84.1, 92.2, 84.6, 53.8, 89.5, 87.3, 87.5, 44.5)),
        ("crammed BERT, second version, one A6000 for a day, best of 5", "model card of JonasGeiping/crammed-bert",
         80.7, (84.1, 84.6, 92.0, 87.4, 58.5, 90.2, 87.5, 88.9, 53.3)),
        ("crammed BERT, second version, one A6000 for a day", _ISSUE, 80.4, ()),
        ("crammed BERT, second version, one A4000 for a day", _ISSUE, 79.2, ()),
        ("crammed BERT by others, one 2080 Ti for a day", _SIMPLIFYING, 78.9,
         (81.2, 81.6, 89.9, 87.6, 56.3, 88.9, 87.1, 88.3, 49.4)),
    ),
    *_anchors(
        "electra",
        "cola mcc, sst2 accuracy, mrpc accuracy, stsb spearman, qqp accuracy, mnli accuracy, qnli accuracy, "
        "rte accuracy",
        ("ELECTRA-Large", _ELECTRA_README, 89.46, (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0)),
        ("ELECTRA-Base", _ELECTRA_README, 87.46, (67.7, 95.1, 89.5, 91.2, 91.5, 88.8, 93.2, 82.7)),
        ("ELECTRA-Small", _ELECTRA_README, 81.14, (57.0, 91.2, 88.0, 87.5, 89.0, 81.3, 88.4, 66.7)),
        ("ELECTRA-Small-OWT", _ELECTRA_README, 80.36, (56.8, 88.3, 87.4, 86.8, 88.3, 78.9, 87.9, 68.5)),
        ("BERT-base", _ELECTRA, 82.2, ()),
        ("BERT-Small, as long as ELECTRA-Small", _ELECTRA, 75.1, ()),
        ("ELECTRA-Small, a sixteenth of its training: 6 hours of one V100", _ELECTRA, 74.1, ()),
    ),
    *_anchors(
        "transfer",
        "mnli accuracy and mismatched_accuracy, qqp accuracy and f1, qnli accuracy, sst2 accuracy, cola mcc, "
        "stsb spearman, mrpc accuracy and f1, rte accuracy",
        ("MosaicBERT-base, fully trained", "model card of mosaicml/mosaic-bert-base", 84.28,
         (84.95, 90.3, 90.7, 92.5, 55.1, 89.3, 90.0, 81.4)),
        ("MosaicBERT-base, 4.6 hours of 8 A100", _MOSAIC, 83.2, ()),
        ("MosaicBERT-base, 1.13 hours of 8 A100", _MOSAIC, 79.6, ()),
        ("BERT-base on the same data, 11.5 hours of 8 A100", _MOSAIC, 83.2, ()),
    ),
)
# fmt: on
UNSTATED_METRICS = _anchors(
    "",
    _NINE,
    (
        "8 GB BERT, one RTX 3060 Ti for about 100 hours",
        "README of sradc/pretraining-BERT, GLUE dev; the metrics of its columns are not stated",
        72.7,
        (79.3, 80.1, 89.1, 61.9, 55.9, 86.3, 86.4, 74.8, 41.0),
    ),
)
"""A row for the table of GLUE scores only: with unstated metrics, it is comparable with no average."""


def table_anchors() -> list[PublishedAverage]:
    """Return the models with published scores on each GLUE task in the Cramming paper's columns, best first."""
    found = [anchor for anchor in ANCHORS if anchor.convention == COMPUTED and anchor.numbers]
    return sorted([*found, *UNSTATED_METRICS], key=lambda anchor: -anchor.value)
