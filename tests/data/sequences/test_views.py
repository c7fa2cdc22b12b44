from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.data.sequences.sampler import StreamRows
from daybreak.data.sequences.shards import TokenStream
from daybreak.data.sequences.views import ViewRows
from daybreak.schemas.run import SpecialIds

SPECIAL = SpecialIds()
FIRST = 10
"""The token at place p of the stream is p + FIRST, so that a view shows where it came from."""
LENGTH = 128


MakeStream = Callable[..., TokenStream]


@pytest.fixture(scope="module")
def stream(make_stream: MakeStream) -> TokenStream:
    return make_stream(np.arange(50_000) + FIRST)


def views(row: np.ndarray) -> list[np.ndarray]:
    """The views of a sequence; the last one may be cut off by its end."""
    assert row[0] == SPECIAL.cls
    ends = np.flatnonzero(row == SPECIAL.sep)
    return np.split(row[1:], ends)[: len(ends)]


def tokens_of(view: np.ndarray) -> np.ndarray:
    return view[view != SPECIAL.sep]


@settings(max_examples=25)
@given(
    shortest=st.integers(2, 20),
    more=st.integers(0, 30),
    drop=st.floats(0, 0.9),
    length=st.sampled_from([16, 64, 128, 200]),
    seed=st.integers(0, 99),
)
def test_a_sequence_holds_damaged_copies_of_one_window(
    stream: TokenStream, shortest: int, more: int, drop: float, length: int, seed: int
) -> None:
    config = ViewRows(fraction=1.0, shortest=shortest, longest=shortest + more, drop=drop)
    ids = config.build(stream, length, seed, SPECIAL).take(0, 8).input_ids
    assert ids.shape == (8, length) and ids.dtype == np.int64
    for row in ids:
        read = row[row >= FIRST]
        assert len(read) + (row == SPECIAL.sep).sum() == length - 1
        if len(read):
            assert read.max() - read.min() < config.longest + config.longest // 3 + 1
        for view in views(row):
            tokens = tokens_of(view)
            assert len(tokens) <= config.longest
            assert (np.diff(tokens) > 0).all()


def test_without_damage_views_are_verbatim_and_shifted(stream: TokenStream) -> None:
    config = ViewRows(fraction=1.0, drop=0.0)
    sizes, starts = set(), []
    for row in config.build(stream, LENGTH, 0, SPECIAL).take(0, 64).input_ids:
        found = [tokens_of(view) for view in views(row)]
        assert len(found) >= 3
        assert len({len(view) for view in found}) == 1
        assert all((np.diff(view) == 1).all() for view in found)
        sizes.add(len(found[0]))
        starts.append(len({int(view[0]) for view in found}))
    assert min(sizes) == config.shortest and max(sizes) == config.longest
    assert np.mean(starts) > 2.5  # the views of a sequence begin at different places of the window


def test_views_of_a_window_begin_at_most_a_third_of_its_size_apart(stream: TokenStream) -> None:
    config = ViewRows(fraction=1.0, shortest=12, longest=12, drop=0.0)
    ids = config.build(stream, LENGTH, 0, SPECIAL).take(0, 64).input_ids
    apart = [np.ptp([tokens_of(view)[0] for view in views(row)]) for row in ids]
    assert max(apart) == 4 and min(apart) >= 1


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 0.7), (0.2499, 0.7), (0.25, 0.1), (1.0, 0.1)])
def test_the_fraction_follows_progress(stream: TokenStream, progress: float, expected: float) -> None:
    plain = StreamRows().build(stream, LENGTH, 3, SPECIAL).take(0, 4000).input_ids
    ids = ViewRows().build(stream, LENGTH, 3, SPECIAL).take(0, 4000, progress).input_ids
    changed = (ids != plain).any(axis=1)
    assert abs(changed.mean() - expected) < 0.03
    held = np.array([(row == SPECIAL.sep).any() for row in ids])
    assert (held == changed).all()  # all others are the cuts of the stream that StreamRows gives


def test_a_long_run_has_its_views_early(stream: TokenStream) -> None:
    config = ViewRows(fraction=1.0, later_fraction=0.0, most=100)
    ids = config.build(stream, LENGTH, 3, SPECIAL).take(90, 20, 0.01).input_ids
    assert [bool((row == SPECIAL.sep).any()) for row in ids] == [True] * 10 + [False] * 10


def test_fewer_views_later_are_a_part_of_those_before(stream: TokenStream) -> None:
    sampler = ViewRows().build(stream, LENGTH, 4, SPECIAL)
    early, late = sampler.take(0, 400, 0.0).input_ids, sampler.take(0, 400, 0.5).input_ids
    with_views = np.array([(row == SPECIAL.sep).any() for row in late])
    assert 10 < with_views.sum() < 100
    assert (early[with_views] == late[with_views]).all()


@pytest.mark.parametrize("tokens", [130, 64, 20])
def test_a_short_stream_still_gives_views(make_stream: MakeStream, tokens: int) -> None:
    ids = ViewRows(fraction=1.0).build(make_stream(np.arange(tokens) + FIRST), 16, 0, SPECIAL).take(0, 20).input_ids
    assert ids.max() < tokens + FIRST and (ids == SPECIAL.sep).any()


def test_separators_of_documents_are_no_tokens_of_a_view(make_stream: MakeStream) -> None:
    ids = np.arange(4000) + FIRST
    ids[4::5] = SPECIAL.sep
    stream = make_stream(ids, np.arange(5, 4001, 5))
    for row in ViewRows(fraction=1.0, drop=0.0, shortest=20).build(stream, LENGTH, 0, SPECIAL).take(0, 20).input_ids:
        assert max(len(view) for view in views(row)) >= 16  # not cut at the documents' ends
        assert not ((row[1:-1] == SPECIAL.sep) & (row[2:] == SPECIAL.sep)).any()


def test_measurements_read_plain_sequences_and_seeds_give_other_views(stream: TokenStream) -> None:
    first, second = (ViewRows(fraction=1.0).build(stream, LENGTH, seed, SPECIAL) for seed in (0, 1))
    plain = StreamRows().build(stream, LENGTH, 0, SPECIAL)
    assert np.array_equal(first.at(np.arange(16)).input_ids, plain.at(np.arange(16)).input_ids)
    assert not (first.take(0, 8).input_ids == second.take(0, 8).input_ids).all(axis=1).any()


@pytest.mark.parametrize(
    "wrong", [{"fraction": 1.5}, {"until": -0.1}, {"drop": 1.0}, {"shortest": 1}, {"shortest": 9, "longest": 8}]
)
def test_values_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        ViewRows(**wrong)  # type: ignore[arg-type]
