"""Published numbers stand beside ours only under the same convention, and each says where it was read."""

from __future__ import annotations

import statistics

import pytest

from daybreak.evaluation.protocols.anchors import ANCHORS, comparable_published
from daybreak.evaluation.protocols.conventions import CONVENTIONS, number_name
from daybreak.schemas.tasks import Average, PublishedAverage

ROUNDING = 0.0015
"""Averages are printed rounded or cut to a tenth of a point, and so are the numbers that they are the mean of."""


def average(convention: str, comparable: bool = True) -> Average:
    return Average(
        convention=convention, what="", protocol=convention, model="pretrained", model_name="a", value=0.7, numbers={},
        seeds=5, comparable=comparable,
    )  # fmt: skip


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda anchor: anchor.model)
def test_an_anchor_names_its_source(anchor: PublishedAverage) -> None:
    assert any(mark in anchor.source for mark in ("arXiv:", "github.com/", "README of ", "model card of "))
    assert anchor.convention in CONVENTIONS
    assert CONVENTIONS[anchor.convention].protocol == anchor.convention, "nothing on dev would ever stand beside it"
    assert 0.4 < anchor.value < 1


@pytest.mark.parametrize("anchor", [each for each in ANCHORS if each.numbers], ids=lambda anchor: anchor.model)
def test_an_anchors_average_is_that_of_its_numbers(anchor: PublishedAverage) -> None:
    assert set(anchor.numbers) == {number_name(number) for number in CONVENTIONS[anchor.convention].numbers}
    assert abs(statistics.fmean(anchor.numbers.values()) - anchor.value) < ROUNDING


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_anchors_stand_under_their_own_convention_alone(convention: str) -> None:
    found = comparable_published(average(convention))
    assert {anchor.convention for anchor in found} <= {convention}
    assert len(found) == sum(anchor.convention == convention for anchor in ANCHORS)
    assert sorted(found, key=lambda anchor: -anchor.value) == found
    assert bool(found) == (convention in ("cramming", "electra", "transfer"))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_nothing_stands_beside_what_is_not_comparable(convention: str) -> None:
    assert comparable_published(average(convention, comparable=False)) == []


def test_no_model_is_listed_twice() -> None:
    assert len({(anchor.convention, anchor.model) for anchor in ANCHORS}) == len(ANCHORS)
