"""Moments as users write them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.core.budget import Budget, Deadline
from daybreak.core.errors import UserError

NOW = datetime(2026, 11, 22, 23, 30, 15)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("07:00", datetime(2026, 11, 23, 7, 0)),
        ("23:31", datetime(2026, 11, 22, 23, 31)),
        ("23:30", datetime(2026, 11, 23, 23, 30)),  # that minute has begun
        (" 7:05 ", datetime(2026, 11, 23, 7, 5)),
        ("2026-12-01 06:00", datetime(2026, 12, 1, 6, 0)),
        ("2026-12-01T06:00", datetime(2026, 12, 1, 6, 0)),
    ],
)
def test_moments(text: str, at: datetime) -> None:
    assert Deadline.parse(text, NOW).at == at


@pytest.mark.parametrize("text", ["", "24:00", "7", "07:60", "tomorrow", "2026-11-22 23:30", "2020-01-01 00:00", "8h"])
def test_what_is_no_moment_to_come(text: str) -> None:
    with pytest.raises(UserError, match="--deadline"):
        Deadline.parse(text, NOW)


@given(st.integers(0, 23), st.integers(0, 59), st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)))
def test_a_time_of_day_is_the_next_one(hour: int, minute: int, now: datetime) -> None:
    at = Deadline.parse(f"{hour}:{minute:02d}", now).at
    assert timedelta(0) < at - now <= timedelta(days=1) and (at.hour, at.minute) == (hour, minute)


def test_what_is_left() -> None:
    assert 3500 < Deadline(datetime.now() + timedelta(hours=1)).left() <= 3600
    assert Deadline(datetime.now() - timedelta(minutes=1)).left() < 0


def test_a_number_without_a_unit_is_no_budget() -> None:
    with pytest.raises(UserError, match="'900' is not a budget"):
        Budget.parse(900)  # type: ignore[arg-type]
    assert Budget.parse("900s").seconds == 900
