"""An average is computed only in a published convention whose tasks are all there, and says which."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
import small_tasks
from hypothesis import given
from hypothesis import strategies as st

from daybreak.evaluation.protocols.conventions import CONVENTIONS, SIZES, averages
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.schemas.tasks import Average, TaskResult

SCORES = {
    "cola": {"mcc": 0.50, "accuracy": 0.80},
    "sst2": {"accuracy": 0.90, "f1": 0.91},
    "mrpc": {"accuracy": 0.80, "f1": 0.86},
    "qqp": {"accuracy": 0.88, "f1": 0.84},
    "stsb": {"pearson": 0.82, "spearman": 0.80},
    "mnli": {"accuracy": 0.75, "mismatched_accuracy": 0.77},
    "qnli": {"accuracy": 0.85},
    "rte": {"accuracy": 0.60},
    "wnli": {"accuracy": 0.56},
}


def result(task: str, scores: dict[str, list[float]], protocol: str = "cramming", name: str = "a") -> TaskResult:
    train, dev = SIZES[task]
    return small_tasks.result(task, scores, protocol=protocol, model_name=name, train_rows=train, dev_rows=dev)


def glue(protocol: str = "cramming", seeds: int = 5, name: str = "a") -> list[TaskResult]:
    """Every task of GLUE with the same score for each seed."""
    return [
        result(task, {metric: [value] * seeds for metric, value in scores.items()}, protocol, name)
        for task, scores in SCORES.items()
    ]


def by_name(results: list[TaskResult]) -> dict[str, Average]:
    return {average.convention: average for average in averages(results)}


def test_each_convention_counts_as_its_publication_does() -> None:
    found = {name: average.value for name, average in by_name(glue()).items()}
    assert found == {
        "cramming": pytest.approx((0.50 + 0.90 + 0.86 + 0.84 + 0.82 + 0.75 + 0.77 + 0.85 + 0.60) / 9),
        "electra": pytest.approx((0.50 + 0.90 + 0.80 + 0.88 + 0.80 + 0.75 + 0.85 + 0.60) / 8),
        "transfer": pytest.approx((0.50 + 0.90 + 0.83 + 0.86 + 0.80 + 0.76 + 0.85 + 0.60) / 8),
        "bert": pytest.approx((0.50 + 0.90 + 0.86 + 0.84 + 0.80 + 0.75 + 0.77 + 0.85 + 0.60) / 9),
        "leaderboard": pytest.approx((0.50 + 0.90 + 0.83 + 0.86 + 0.81 + 0.76 + 0.85 + 0.60 + 0.56) / 9),
    }


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_stated_value_of_the_seeds_stands_for_a_task(values: list[float]) -> None:
    others = [each for each in glue(seeds=len(values)) if each.task not in ("rte", "mrpc")]
    f1 = values[::-1]
    rows = [*others, result("rte", {"accuracy": values}), result("mrpc", {"accuracy": values, "f1": f1})]
    found = by_name(rows)
    assert found["cramming"].numbers["rte accuracy"] == statistics.median(values)
    assert found["transfer"].numbers["rte accuracy"] == pytest.approx(statistics.fmean(values))
    both = [(one + other) / 2 for one, other in zip(values, f1)]
    assert found["transfer"].numbers["mrpc accuracy and f1"] == pytest.approx(statistics.fmean(both))


@pytest.mark.parametrize("missing", SCORES)
def test_without_one_task_there_is_no_average(missing: str) -> None:
    found = set(by_name([each for each in glue() if each.task != missing]))
    assert found == (set(CONVENTIONS) - {"leaderboard"} if missing == "wnli" else set())


def test_a_part_of_a_task_is_not_the_task() -> None:
    rows = [dataclasses.replace(each, task="mnli-subset") if each.task == "mnli" else each for each in glue()]
    assert averages(rows) == []


def test_protocols_and_models_are_never_mixed() -> None:
    half = [each for each in glue("cramming") if each.task in ("cola", "sst2", "mrpc", "rte", "wnli")]
    other = [each for each in glue("electra") if each.task not in ("cola", "sst2", "mrpc", "rte", "wnli")]
    assert averages([*half, *other]) == []
    names = [dataclasses.replace(each, model_name=each.task) for each in glue()]
    assert averages(names) == []
    untrained = [dataclasses.replace(each, model="untrained") for each in glue()]
    assert averages([*glue()[:4], *untrained[4:]]) == []
    found = averages([*glue(), *untrained, *glue("quick", name="b")])
    assert [(each.protocol, each.model, each.model_name) for each in found] == [
        *[("cramming", "pretrained", "a")] * 5,
        *[("cramming", "untrained", "a")] * 5,
        *[("quick", "pretrained", "b")] * 5,
    ]


@pytest.mark.parametrize("name", ["cramming", "electra", "transfer"])
def test_only_the_conventions_own_protocol_and_seeds_are_comparable(name: str) -> None:
    def rows(fewer: str = "") -> list[TaskResult]:
        seeds = {task: PROTOCOLS[name].seeds_of(task) - (task == fewer) for task in SCORES}
        return [
            result(task, {metric: [value] * seeds[task] for metric, value in scores.items()}, name)
            for task, scores in SCORES.items()
            if task != "wnli" and seeds[task]
        ]

    assert {each.convention for each in averages(rows()) if each.comparable} == {name}
    assert by_name(rows())[name].seeds == min(PROTOCOLS[name].seeds_of(task) for task in SCORES if task != "wnli")
    assert not any(each.comparable for each in averages(rows(fewer="rte")))
    assert not any(each.comparable for each in averages(glue("quick", seeds=10)))
    changed = PROTOCOLS[name].changed(epochs=1).name
    assert not any(each.comparable for each in averages(glue(changed, seeds=10)))
    assert not any(each.comparable for each in averages(glue(f"{name}, from mnli-subset", seeds=10)))


@pytest.mark.parametrize(("name", "share", "comparable"), [("qqp", 0.9995, True), ("qqp", 0.99, False)])
@pytest.mark.parametrize("part", ["train_rows", "dev_rows"])
def test_only_whole_files_are_comparable(name: str, share: float, comparable: bool, part: str) -> None:
    rows = [
        dataclasses.replace(each, **{part: round(share * getattr(each, part))}) if each.task == name else each
        for each in glue()
    ]
    assert by_name(rows)["cramming"].comparable == comparable


def test_results_of_other_weights_are_another_model() -> None:
    other = [dataclasses.replace(each, weights="b") for each in glue()]
    assert averages([*glue()[:4], *other[4:]]) == []
    assert len(averages([*glue(), *other])) == 2 * len(averages(glue()))


def test_dev_numbers_are_never_comparable_with_published_test_numbers() -> None:
    found = by_name(glue("bert", seeds=10))
    assert not found["bert"].comparable
    assert not found["leaderboard"].comparable
