from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.data.sequences import row_orders as module
from daybreak.data.sequences.row_orders import ascending, fixed_point
from daybreak.data.sequences.sampler import PackedRows, RowSampler, StreamRows, permute, spread, uniforms
from daybreak.data.sequences.shards import ShardWriter, TokenStream
from daybreak.data.tokenizers.tokenizer import CLS
from daybreak.schemas.run import SpecialIds

MakeStream = Callable[[int], TokenStream]


@pytest.fixture(scope="module")
def make_stream(tmp_path_factory: pytest.TempPathFactory) -> MakeStream:
    """Streams whose token at place p is p, so that a row shows where it came from."""

    def make(tokens: int) -> TokenStream:
        folder = tmp_path_factory.mktemp("stream")
        writer = ShardWriter(folder, "train", 4)
        writer.write(np.arange(tokens), np.array([tokens]))
        return TokenStream(folder, writer.close(), 4)

    return make


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 1000))
def test_the_permutation_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, seed, epoch)), np.arange(size))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2**50), st.integers(0, 2**32), st.data())
def test_the_permutation_stays_inside_a_huge_range_and_never_meets_itself(
    size: int, seed: int, data: st.DataObject
) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=50))
    found = permute(np.array(places, np.int64), size, seed, 0)
    assert ((found >= 0) & (found < size)).all()
    assert len(set(found.tolist())) == len(places)


def test_the_permutation_is_fixed_for_ever() -> None:
    """Replay of old runs hangs on these numbers."""
    assert permute(np.arange(8), 8, 1, 0).tolist() == [1, 5, 0, 6, 4, 3, 7, 2]
    assert permute(np.arange(4), 10**9, 12345, 3).tolist() == [948515864, 954188802, 540312825, 878410758]


def test_seeds_and_epochs_give_orders_that_look_unrelated() -> None:
    size = 4096
    orders = [permute(np.arange(size), size, seed, epoch) for seed in (1, 2) for epoch in (0, 1)]
    for index, order in enumerate(orders):
        for other in [np.arange(size), *orders[:index]]:
            assert abs(np.corrcoef(order, other)[0, 1]) < 0.08
            assert (order == other).sum() < 12  # 1 expected by chance
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.08


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 3000), length=st.integers(2, 64), seed=st.integers(0, 99))
def test_an_epoch_uses_every_token_once(make_stream: MakeStream, tokens: int, length: int, seed: int) -> None:
    if tokens < length - 1:
        with pytest.raises(UserError, match=f"too small: {tokens} tokens do not fill one sequence of {length}"):
            RowSampler(make_stream(tokens), length, seed)
        return
    sampler = RowSampler(make_stream(tokens), length, seed)
    assert tokens - sampler.rows_per_epoch * (length - 1) < length - 1
    for epoch in (0, 5):
        rows = sampler.take(epoch * sampler.rows_per_epoch, sampler.rows_per_epoch).ids
        assert rows.dtype == np.int64 and rows.shape == (sampler.rows_per_epoch, length)
        assert (rows[:, 0] == CLS).all()
        assert np.array_equal(np.sort(rows[:, 1:].ravel()), np.arange(sampler.rows_per_epoch * (length - 1)))
        assert (np.diff(rows[:, 1:], axis=1) == 1).all()


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=12), start=st.integers(0, 200))
def test_rows_do_not_depend_on_how_they_are_asked_for(make_stream: MakeStream, cuts: list[int], start: int) -> None:
    sampler = RowSampler(make_stream(500), 17, 3)  # 31 rows, so that the cuts cross epochs
    whole = sampler.take(start, sum(cuts)).ids
    places = np.cumsum([start, *cuts])
    parts = [
        RowSampler(make_stream(500), 17, 3).take(int(place), cut).ids for place, cut in zip(places, cuts, strict=False)
    ]
    assert np.array_equal(np.concatenate(parts), whole)


def test_rows_in_order(make_stream: MakeStream) -> None:
    sampler = RowSampler(make_stream(100), 11, 3)
    assert np.array_equal(sampler.at(np.arange(3)).ids[:, 1:].ravel(), np.arange(30))
    assert np.array_equal(sampler.at(np.array([7, 2])).ids[:, 1:], [np.arange(70, 80), np.arange(20, 30)])


@given(count=st.integers(1, 600), size=st.integers(1, 3000))
def test_spread_numbers_lie_at_equal_distances(count: int, size: int) -> None:
    numbers = spread(count, size)
    assert len(numbers) == min(count, size)
    gaps = np.diff([*numbers, size])
    assert numbers[0] == 0 and gaps.min() >= 1 and gaps.max() - gaps.min() <= 1


def test_a_tokenizer_that_was_taken_over_has_its_own_ids(make_stream: MakeStream) -> None:
    special = SpecialIds(pad=1, unk=2, cls=101, sep=102, mask=103)
    batch = StreamRows().build(make_stream(100), 11, 3, special).take(0, 4)
    assert (batch.ids[:, 0] == 101).all() and batch.special == special


@settings(max_examples=20, deadline=None)
@given(tokens=st.integers(1, 2000), length=st.integers(2, 64), order=st.sampled_from(["shuffled", "stream"]))
def test_packed_rows_are_the_stream_and_nothing_else(
    make_stream: MakeStream, tokens: int, length: int, order: str
) -> None:
    config = PackedRows(order=order)
    if tokens < length:
        with pytest.raises(UserError, match="too small"):
            config.build(make_stream(tokens), length, 5, SpecialIds())
        return
    sampler = config.build(make_stream(tokens), length, 5, SpecialIds())
    count = tokens // length
    assert sampler.rows_per_epoch == count
    for epoch in (0, 3):
        ids = sampler.take(epoch * count, count).ids
        assert np.array_equal(np.sort(ids[:, 0]), np.arange(count) * length)
        assert (np.diff(ids, axis=1) == 1).all()
        if order == "stream":
            assert np.array_equal(ids, sampler.at(np.arange(count)).ids)


def test_rows_with_most_full_stops_come_first_and_equals_as_the_text_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNTED_ROWS", 7)
    ids = np.random.default_rng(1).integers(5, 9, 1003)
    writer = ShardWriter(tmp_path, "train", 2)
    writer.write(ids, np.array([len(ids)]))
    stream = TokenStream(tmp_path, writer.close(), 2)
    names = {".": 6}
    sampler = PackedRows(order="full-stops").build(stream, 10, 0, SpecialIds(), token_ids=names.get)
    rows = ids[:1000].reshape(100, 10)
    wanted = rows[np.argsort(-(rows == 6).sum(axis=1), kind="stable")]
    assert np.array_equal(sampler.take(0, 250).ids, np.concatenate([wanted, wanted, wanted[:50]]))
    assert np.array_equal(sampler.take(77, 5).ids, wanted[77:82])
    with pytest.raises(UserError, match=r"no '.' to order sequences by. Use --rows.order shuffled"):
        PackedRows(order="full-stops").build(stream, 10, 0, SpecialIds(), token_ids={"a": 1}.get)


def spread_ids(words: int, tokens: int, seed: int) -> np.ndarray:
    """Ids from 5 on of very different frequencies."""
    rng = np.random.default_rng(seed)
    return 5 + np.minimum(words - 1, rng.zipf(1.3, tokens) - 1)


@settings(max_examples=60)
@given(
    words=st.integers(1, 300),
    tokens=st.integers(1, 3000),
    length=st.integers(1, 40),
    block=st.integers(1, 50),
    seed=st.integers(0, 99),
)
def test_rows_of_the_most_frequent_tokens_come_first_and_equals_as_the_text_lies(
    tmp_path_factory: pytest.TempPathFactory, words: int, tokens: int, length: int, block: int, seed: int
) -> None:
    """Against the same in plain numpy, all in memory: exactly in fixed point, and by the mean logarithm itself."""
    ids = spread_ids(words, max(tokens, length), seed)
    folder = tmp_path_factory.mktemp("prevalence")
    writer = ShardWriter(folder, "train", 2)
    writer.write(ids, np.array([len(ids)]))
    stream = TokenStream(folder, writer.close(), 2)
    rows = ids[: len(ids) // length * length].reshape(-1, length)
    counts = np.bincount(rows.ravel(), minlength=words + 5)
    logarithms = np.log2((counts + 1) / (counts.sum() + len(counts)))
    exact = np.rint(np.log2(counts + 1.0) * fixed_point(length)).astype(np.int64)[rows].sum(axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COUNTED_ROWS", block)
        patch.setattr(module, "SORTED_ROWS", 3 * block)
        sampler = PackedRows(order="prevalence").build(stream, length, 0, SpecialIds())
    found = sampler.take(0, len(rows)).ids
    assert np.array_equal(found, rows[np.argsort(-exact, kind="stable")])
    assert np.diff(logarithms[found].mean(axis=1)).max(initial=0) < 1e-4
    assert np.array_equal(sampler.at(np.arange(len(rows))).ids, rows)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 3), max_size=200), st.integers(1, 50))
def test_keys_are_sorted_in_blocks_as_they_are_at_once(keys: list[int], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COUNTED_ROWS", block)
        patch.setattr(module, "SORTED_ROWS", 2 * block)
        found = ascending(np.array(keys, np.uint32))
    assert found.tolist() == np.argsort(np.array(keys, np.uint32), kind="stable").tolist()


def test_no_more_rows_are_sorted_at_once_than_have_nearly_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that is the smallest of all keys."""
    sizes: list[int] = []
    argsort = np.argsort

    def watched(values: np.ndarray, **how: Any) -> np.ndarray:
        sizes.append(len(values))
        return argsort(values, **how)

    monkeypatch.setattr(np, "argsort", watched)
    monkeypatch.setattr(module, "COUNTED_ROWS", 10)
    monkeypatch.setattr(module, "SORTED_ROWS", 20)
    order = ascending(np.array([0] * 30 + [number << 16 for number in range(300, 0, -1)], np.uint32))
    assert order.tolist() == [*range(30), *range(329, 29, -1)]
    assert max(sizes) == 30


def test_an_order_that_does_not_exist() -> None:
    with pytest.raises(UserError, match=r"'full-stop' is not a sequence order. Did you mean 'full-stops'\?"):
        PackedRows(order="full-stop")


def test_uniform_numbers_are_fixed_for_ever() -> None:
    """Replay of old runs hangs on these numbers."""
    assert uniforms("1 0 walk 3", 2).tolist() == [0.8309251776129131, 0.13159640532845507]
    assert uniforms("1 0 walk 3", 1000)[:2].tolist() == [0.8309251776129131, 0.13159640532845507]
    many = uniforms("other", 100_000)
    assert abs(many.mean() - 0.5) < 0.005 and abs(many.var() - 1 / 12) < 0.002
    assert many.min() >= 0 and many.max() < 1
    assert uniforms("key", 0).tolist() == []
