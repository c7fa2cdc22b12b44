"""Pairs of spans: two neighbours of one document, whatever is asked for in whatever order, however short it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.data.sequences.shards import TokenStream
from daybreak.data.sequences.span_pairs import FEWEST, GAP, NO_DOCUMENT, OVERLAP, PASSAGE, SpanSampler, passages
from daybreak.schemas.run import SpecialIds

SPECIAL = SpecialIds(pad=90_000, unk=90_001, cls=90_002, sep=90_003, mask=90_004)
"""Above all tokens: a token is its place in the stream."""

MakeStream = Callable[[list[int]], TokenStream]


@pytest.fixture(scope="module")
def of_sizes(make_stream: Callable[..., TokenStream]) -> MakeStream:
    """Streams of documents of these sizes, separator not counted, whose token at place p is p."""

    def make(sizes: list[int]) -> TokenStream:
        ends = np.cumsum(np.array(sizes) + 1)
        return make_stream(np.arange(ends[-1]), ends)

    return make


def sampler(
    stream: TokenStream, *, length: int = 64, seed: int = 5, shortest: int = 12, longest: int = 60
) -> SpanSampler:
    return SpanSampler(stream, length, seed, SPECIAL, shortest=shortest, longest=longest)


def spans(batch: Batch) -> list[np.ndarray]:
    """The tokens of each sequence, once its frame is as it should be."""
    found = []
    for ids, attention_mask in zip(batch.input_ids, batch.attention_mask, strict=True):
        size = int(attention_mask.sum())
        assert attention_mask[:size].all() and (ids[size:] == SPECIAL.pad).all()
        assert ids[0] == SPECIAL.cls and ids[size - 1] == SPECIAL.sep
        assert np.array_equal(ids[1 : size - 1], np.arange(ids[1], ids[1] + size - 2))
        found.append(ids[1 : size - 1])
    return found


def test_a_pair_is_two_neighbouring_spans_of_one_document(of_sizes: MakeStream) -> None:
    sizes = [400, 300, 5 * PASSAGE, 150, 3, 200]
    stream = of_sizes(sizes)
    ends = stream.document_ends().astype(np.int64)
    made, lengths, gaps = sampler(stream), [], []
    batch = made.take(0, 400)
    found = spans(batch)
    for place in range(0, 400, 2):
        one, other = found[place], found[place + 1]
        assert np.searchsorted(ends, one[0], side="right") == np.searchsorted(ends, other[-1] + 1, side="right")
        lengths += [len(one), len(other)]
        gaps.append(int(other[0] - one[-1] - 1))
    assert min(lengths) == 12 and max(lengths) == 60 and min(gaps) == -OVERLAP and max(gaps) == GAP
    assert (batch.passage_ids[::2] == batch.passage_ids[1::2]).all()
    # Every passage once an epoch: 5 of the long document, one of each other, none of the shortest.
    assert sorted(batch.passage_ids[: 2 * 9 : 2].tolist()) == list(range(9))


def test_another_seed_and_another_epoch_draw_other_spans(of_sizes: MakeStream) -> None:
    stream = of_sizes([500, 600])
    first, other = sampler(stream).take(0, 8).input_ids, sampler(stream, seed=6).take(0, 8).input_ids
    assert not np.array_equal(first, other)
    assert len({tuple(row) for row in first.tolist()}) == 8  # two epochs and more


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(0, 60), min_size=2, max_size=12), length=st.integers(8, 70), seed=st.integers(0, 9))
def test_short_documents_give_halves_and_the_shortest_nothing(
    sizes: list[int], length: int, seed: int, of_sizes: MakeStream
) -> None:
    stream = of_sizes(sizes)
    enough = sum(size >= FEWEST for size in sizes)
    if enough < 2:
        with pytest.raises(UserError, match=f"The text has {enough} documents of at least {FEWEST} tokens"):
            sampler(stream, length=length, seed=seed, shortest=6)
        return
    ends = stream.document_ends().astype(np.int64)
    batch = sampler(stream, length=length, seed=seed, shortest=6).take(seed, 30)
    for span in spans(batch):
        size = sizes[int(np.searchsorted(ends, span[0], side="right"))]
        assert size >= FEWEST and span[-1] + 1 < ends[np.searchsorted(ends, span[0], side="right")]
        assert min(6, size // 2, length - 2) <= len(span) <= min(size // 2, length - 2)


@given(position=st.integers(0, 300), rows=st.integers(1, 40))
@settings(max_examples=25)
def test_a_fraction_of_the_pairs_are_views_of_one_window(position: int, rows: int, of_sizes: MakeStream) -> None:
    """They have no document and no padding, and repeat tokens."""
    stream = of_sizes([400, 300, 150, 200])
    made = SpanSampler(stream, 64, 5, SPECIAL, shortest=12, longest=60, views=0.4)
    batch, plain = made.take(position, rows), sampler(stream).take(position, rows)
    shown = batch.passage_ids == NO_DOCUMENT
    for name in ("input_ids", "attention_mask", "passage_ids"):
        assert np.array_equal(getattr(batch, name)[~shown], getattr(plain, name)[~shown])
    for ids in batch.input_ids[shown]:
        assert ids[0] == SPECIAL.cls and (ids == SPECIAL.sep).sum() >= 2
        tokens = ids[1:][ids[1:] != SPECIAL.sep]
        assert len(set(tokens)) < len(tokens) and np.ptp(tokens) < 62
    assert batch.attention_mask[shown].all()
    pairs = {pair: set() for pair in range(position // 2, (position + rows) // 2 + 1)}
    for place, is_shown in enumerate(shown, start=position):
        pairs[place // 2].add(bool(is_shown))
    assert all(len(kinds) < 2 for kinds in pairs.values())


def test_a_fraction_of_the_pairs_are_cuts_of_the_stream(of_sizes: MakeStream) -> None:
    """Half of the unpaired sequences repeat a window, the other half run on; both keep their pair together."""
    stream = of_sizes([400, 300, 150, 200])
    made = SpanSampler(stream, 64, 5, SPECIAL, shortest=12, longest=60, views=0.2, ordinary=0.2)
    batch = made.take(0, 4000)
    unpaired = batch.passage_ids == NO_DOCUMENT
    assert unpaired.mean() == pytest.approx(0.4, abs=0.03)
    runs_on = np.array([bool((np.diff(ids[1:]) == 1).mean() > 0.9) for ids in batch.input_ids[unpaired]])
    assert runs_on.mean() == pytest.approx(0.5, abs=0.05)
    assert (batch.input_ids[unpaired] != SPECIAL.pad).all() and batch.attention_mask[unpaired].all()
    assert (unpaired[::2] == unpaired[1::2]).all()


def test_passages_are_counted_as_they_are_read(of_sizes: MakeStream) -> None:
    assert passages(of_sizes([400, 3, 5 * PASSAGE + 1, FEWEST])) == 1 + 0 + 6 + 1


def test_sequences_in_order_are_those_of_the_passages(of_sizes: MakeStream) -> None:
    made = sampler(of_sizes([100, 100, 100]))
    batch = made.at(np.arange(6))
    assert batch.passage_ids.tolist() == [0, 0, 1, 1, 2, 2]
    again = made.at(np.array([3, 4]))
    assert np.array_equal(again.input_ids, batch.input_ids[[3, 4]]) and np.array_equal(
        again.attention_mask, batch.attention_mask[[3, 4]]
    )
    assert made.rows_per_epoch == int(300 / 36)
