from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.data.sequences import sampler as module
from daybreak.data.sequences.sampler import (
    ChunkRows,
    PackedRows,
    RowSampler,
    SequencesConfig,
    StreamRows,
    evenly_spaced,
    fixed_point,
    permute,
    uniforms,
)
from daybreak.data.sequences.sentence_pairs import SentencePairs
from daybreak.data.sequences.shards import TokenStream
from daybreak.data.sequences.span_pairs import SpanSampler
from daybreak.data.sequences.views import ViewRows
from daybreak.data.tokenizers.tokenizer import CLS
from daybreak.schemas.run import SpecialIds

MakeStream = Callable[..., TokenStream]


@settings(max_examples=200)
@given(st.integers(1, 5000), st.integers(0, 2**63), st.integers(0, 1000))
def test_the_permutation_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, seed, epoch)), np.arange(size))


@settings(max_examples=50)
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


@settings(max_examples=30)
@given(tokens=st.integers(1, 3000), length=st.integers(2, 64), seed=st.integers(0, 99))
def test_an_epoch_uses_every_token_once(make_stream: MakeStream, tokens: int, length: int, seed: int) -> None:
    if tokens < length - 1:
        with pytest.raises(UserError, match=f"too small: {tokens} tokens do not fill one sequence of {length}"):
            RowSampler(make_stream(np.arange(tokens)), length, seed)
        return
    sampler = RowSampler(make_stream(np.arange(tokens)), length, seed)
    assert tokens - sampler.rows_per_epoch * (length - 1) < length - 1
    for epoch in (0, 5):
        rows = sampler.take(epoch * sampler.rows_per_epoch, sampler.rows_per_epoch).input_ids
        assert rows.dtype == np.int64 and rows.shape == (sampler.rows_per_epoch, length)
        assert (rows[:, 0] == CLS).all()
        assert np.array_equal(np.sort(rows[:, 1:].ravel()), np.arange(sampler.rows_per_epoch * (length - 1)))
        assert (np.diff(rows[:, 1:], axis=1) == 1).all()


class Spans(StreamRows):
    """The pairs of spans of a finish, built as the classes of a recipe are."""

    def build(self, stream: TokenStream, length: int, seed: int, special: SpecialIds, **_: object) -> SpanSampler:
        return SpanSampler(stream, length, seed, special, shortest=4, longest=12, views=0.3, ordinary=0.2)


@pytest.fixture(scope="module")
def documents(make_stream: MakeStream) -> TokenStream:
    """60 documents of one to nine sentences."""
    rng = np.random.default_rng(4)
    sentences = [np.cumsum(rng.integers(1, 16, rng.integers(1, 10))) for _ in range(60)]
    sizes = np.array([ends[-1] for ends in sentences])
    starts = np.cumsum(sizes) - sizes
    ids = rng.integers(5, 300, sizes.sum())
    ids[starts + sizes - 1] = SpecialIds().sep
    return make_stream(ids, starts + sizes, np.concatenate([start + own for start, own in zip(starts, sentences)]))


@pytest.mark.parametrize(
    "rows",
    [
        StreamRows(),
        *(PackedRows(order=order) for order in ("shuffled", "stream", "full-stops", "prevalence")),
        ChunkRows(),
        SentencePairs(),
        ViewRows(),
        Spans(),
    ],
    ids=lambda rows: f"{type(rows).__name__} {getattr(rows, 'order', '')}",
)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8), start=st.integers(0, 10_000))
def test_rows_do_not_depend_on_how_they_are_asked_for(
    documents: TokenStream, rows: SequencesConfig, cuts: list[int], start: int
) -> None:
    """The cuts cross epochs; each part is from a new sampler, and the last part is taken first."""
    names = {".": 7}
    whole, *fresh = (rows.build(documents, 17, 3, SpecialIds(), token_ids=names.get) for _ in range(1 + len(cuts)))
    places = np.cumsum([start, *cuts]).tolist()
    parts = [one.take(place, cut) for one, place, cut in list(zip(fresh, places, cuts))[::-1]][::-1]
    batch = whole.take(start, sum(cuts))
    for name in ("input_ids", "attention_mask", "token_type_ids", "next_sentence_label", "passage_ids"):
        wanted, found = getattr(batch, name), [getattr(part, name) for part in parts]
        assert found == [None] * len(parts) if wanted is None else np.array_equal(np.concatenate(found), wanted)


def test_rows_in_order(make_stream: MakeStream) -> None:
    sampler = RowSampler(make_stream(np.arange(100)), 11, 3)
    assert np.array_equal(sampler.at(np.arange(3)).input_ids[:, 1:].ravel(), np.arange(30))
    assert np.array_equal(sampler.at(np.array([7, 2])).input_ids[:, 1:], [np.arange(70, 80), np.arange(20, 30)])


@given(count=st.integers(1, 600), size=st.integers(1, 3000))
def test_spread_numbers_lie_at_equal_distances(count: int, size: int) -> None:
    numbers = evenly_spaced(count, size)
    assert len(numbers) == min(count, size)
    gaps = np.diff([*numbers, size])
    assert numbers[0] == 0 and gaps.min() >= 1 and gaps.max() - gaps.min() <= 1


def test_a_tokenizer_that_was_taken_over_has_its_own_ids(make_stream: MakeStream) -> None:
    special = SpecialIds(pad=1, unk=2, cls=101, sep=102, mask=103)
    batch = StreamRows().build(make_stream(np.arange(100)), 11, 3, special).take(0, 4)
    assert (batch.input_ids[:, 0] == 101).all() and batch.special == special


@settings(max_examples=20)
@given(tokens=st.integers(1, 2000), length=st.integers(2, 64), order=st.sampled_from(["shuffled", "stream"]))
def test_packed_rows_are_the_stream_and_nothing_else(
    make_stream: MakeStream, tokens: int, length: int, order: str
) -> None:
    config = PackedRows(order=order)
    if tokens < length:
        with pytest.raises(UserError, match="too small"):
            config.build(make_stream(np.arange(tokens)), length, 5, SpecialIds())
        return
    sampler = config.build(make_stream(np.arange(tokens)), length, 5, SpecialIds())
    count = tokens // length
    assert sampler.rows_per_epoch == count
    for epoch in (0, 3):
        ids = sampler.take(epoch * count, count).input_ids
        assert np.array_equal(np.sort(ids[:, 0]), np.arange(count) * length)
        assert (np.diff(ids, axis=1) == 1).all()
        if order == "stream":
            assert np.array_equal(ids, sampler.at(np.arange(count)).input_ids)


def test_rows_with_most_full_stops_come_first_and_equals_as_the_text_lies(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNTED_ROWS", 7)
    ids = np.random.default_rng(1).integers(5, 9, 1003)
    stream, names = make_stream(ids), {".": 6}
    sampler = PackedRows(order="full-stops").build(stream, 10, 0, SpecialIds(), token_ids=names.get)
    rows = ids[:1000].reshape(100, 10)
    wanted = rows[np.argsort(-(rows == 6).sum(axis=1), kind="stable")]
    assert np.array_equal(sampler.take(0, 250).input_ids, np.concatenate([wanted, wanted, wanted[:50]]))
    with pytest.raises(UserError, match=r"no '.' to order sequences by. Use --rows.order shuffled"):
        PackedRows(order="full-stops").build(stream, 10, 0, SpecialIds(), token_ids={"a": 1}.get)


@settings(max_examples=30)
@given(
    words=st.integers(1, 300), tokens=st.integers(1, 3000), length=st.integers(1, 40), block=st.integers(1, 50),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_rows_of_the_most_frequent_tokens_come_first_and_equals_as_the_text_lies(
    make_stream: MakeStream, words: int, tokens: int, length: int, block: int, seed: int
) -> None:
    """Against the same in plain numpy, all in memory: exactly in fixed point, and by the mean logarithm itself."""
    frequent = np.random.default_rng(seed).zipf(1.3, max(tokens, length))
    ids = 5 + np.minimum(words, frequent) - 1
    rows = ids[: len(ids) // length * length].reshape(-1, length)
    counts = np.bincount(rows.ravel(), minlength=words + 5)
    logarithms = np.log2((counts + 1) / (counts.sum() + len(counts)))
    exact = np.rint(np.log2(counts + 1.0) * fixed_point(length)).astype(np.int64)[rows].sum(axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COUNTED_ROWS", block)
        sampler = PackedRows(order="prevalence").build(make_stream(ids), length, 0, SpecialIds())
    found = sampler.take(0, len(rows)).input_ids
    assert np.array_equal(found, rows[np.argsort(-exact, kind="stable")])
    assert np.diff(logarithms[found].mean(axis=1)).max(initial=0) < 1e-4
    assert np.array_equal(sampler.at(np.arange(len(rows))).input_ids, rows)


def test_an_order_that_does_not_exist() -> None:
    with pytest.raises(UserError, match=r"--rows.order cannot be 'full-stop'. Did you mean 'full-stops'\?"):
        PackedRows(order="full-stop")


def test_uniform_numbers_are_fixed_for_ever() -> None:
    """Replay of old runs hangs on these numbers."""
    assert uniforms("1 0 walk 3", 2).tolist() == [0.8309251776129131, 0.13159640532845507]
    assert uniforms("1 0 walk 3", 1000)[:2].tolist() == [0.8309251776129131, 0.13159640532845507]
    many = uniforms("other", 100_000)
    assert abs(many.mean() - 0.5) < 0.005 and abs(many.var() - 1 / 12) < 0.002
    assert many.min() >= 0 and many.max() < 1
    assert uniforms("key", 0).tolist() == []


OTHER = SpecialIds(pad=7, unk=8, cls=9, sep=10, mask=11)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30), length=st.integers(3, 24))
def test_every_document_is_a_row_once_an_epoch(make_stream: MakeStream, sizes: list[int], length: int) -> None:
    ends = np.cumsum(np.array(sizes) + 1)
    ids = np.arange(100, 100 + ends[-1])
    ids[ends - 1] = OTHER.sep
    sampler = ChunkRows().build(make_stream(ids, ends), length, 3, OTHER)
    wanted = []
    for end, size in zip(ends, sizes):
        row = [OTHER.cls, *ids[end - 1 - size : end - 1][: length - 2].tolist(), OTHER.sep]
        wanted.append(row + [OTHER.pad] * (length - len(row)))
    assert sampler.rows_per_epoch == len(sizes)
    assert sampler.at(np.arange(len(sizes))).input_ids.tolist() == wanted
    for epoch in (0, 2):
        batch = sampler.take(epoch * len(sizes), len(sizes))
        assert sorted(batch.input_ids.tolist()) == sorted(wanted)
        assert np.array_equal(batch.attention_mask, batch.input_ids != OTHER.pad)


def test_the_original_attends_to_padding(documents: TokenStream) -> None:
    faithful, masked = (ChunkRows(mask_padding=on).build(documents, 30, 3, OTHER).take(0, 9) for on in (False, True))
    assert faithful.attention_mask is None and masked.attention_mask is not None
    assert np.array_equal(faithful.input_ids, masked.input_ids)
