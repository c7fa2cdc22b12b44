"""Numbers on their way into a plot."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from daybreak.reporting.series import POINTS_PER_TRACE, rounded, thinned, time_unit, to_script, token_unit


@given(st.integers(0, 20_000), st.integers(2, 3_000))
def test_thinning_keeps_order_ends_and_bound(length, most):
    kept = thinned(range(length), most)
    assert len(kept) == min(length, most)
    assert kept == sorted(set(kept))
    if length:
        assert kept[0] == 0 and kept[-1] == length - 1


def test_traces_stay_small():
    assert len(thinned(range(10**6))) == POINTS_PER_TRACE


@given(
    st.recursive(
        st.none() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_any_value_becomes_json_that_cannot_leave_its_script(value):
    text = to_script(value)
    assert "<" not in text and "\u2028" not in text
    assert json.loads(text, parse_constant=lambda name: 1 / 0) == rounded(value)


def test_rounding_keeps_five_digits_and_drops_what_is_no_number():
    assert rounded([1.23456789, 123456.7, math.nan, math.inf, 7]) == [1.2346, 123460.0, None, None, 7]


def test_units_read_well():
    assert [time_unit(seconds)[1] for seconds in (60, 1200, 86_400)] == ["seconds", "minutes", "hours"]
    assert [token_unit(tokens)[1] for tokens in (900, 4e6, 3e9)] == ["tokens", "million tokens", "billion tokens"]
