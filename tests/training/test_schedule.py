"""The learning rate as a pure function of progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.training.schedule import Trapezoid


@pytest.mark.parametrize(
    ("progress", "expected"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.4, 1.0), (0.6, 1.0), (0.8, 0.5), (1.0, 0.0)]
)
def test_it_rises_stays_and_falls(progress: float, expected: float) -> None:
    assert Trapezoid(warmup=0.1, decay=0.4)(progress) == pytest.approx(expected)


def test_without_ramps_it_is_flat() -> None:
    assert [Trapezoid(warmup=0.0, decay=0.0)(p) for p in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


@given(warmup=st.floats(0, 1), decay=st.floats(0, 1), progress=st.floats(0, 1.2))
def test_it_stays_within_0_and_1(warmup: float, decay: float, progress: float) -> None:
    assert 0.0 <= Trapezoid(warmup=warmup, decay=decay)(progress) <= 1.0
