from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.data.sequences.sampler import Sampler
from daybreak.data.sequences.sentence_pairs import SentencePairs, check_pairs
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds

SPECIAL = SpecialIds()
FIRST = 10


MakeText = Callable[..., "Text"]


class Text:
    """Documents of sentences; the token at place p of the stream is p + FIRST, so that it tells where it came from."""

    def __init__(self, make_stream: Callable[..., TokenStream], documents: list[list[int]], sentences: bool = True):
        self.starts, self.document_of, self.start_of, ends = [], [], [], []
        for number, document in enumerate(documents):
            self.starts.append(len(self.document_of))
            for size in document:
                self.start_of += [len(self.start_of)] * size
                self.document_of += [number] * size
                ends.append(len(self.document_of))
            self.document_of.append(-1)  # the separator
            self.start_of.append(-1)
            ends[-1] += 1
        documents_end = np.flatnonzero(np.array(self.document_of) == -1) + 1
        ids = np.arange(len(self.document_of)) + FIRST
        ids[documents_end - 1] = SPECIAL.sep
        self.stream = make_stream(ids, documents_end, np.array(ends) if sentences else None)


@pytest.fixture(scope="module")
def make_text(make_stream: Callable[..., TokenStream]) -> MakeText:
    return lambda *arguments, **more: Text(make_stream, *arguments, **more)


def drawn(rng: random.Random, documents: int, sentences: int, size: int) -> list[list[int]]:
    return [[rng.randrange(1, 2 * size) for _ in range(rng.randrange(1, 2 * sentences))] for _ in range(documents)]


def segments(batch: Batch, row: int) -> tuple[list[int], list[int]]:
    ids = batch.input_ids[row].tolist()
    first = ids.index(SPECIAL.sep)
    second = ids.index(SPECIAL.sep, first + 1)
    return ids[1:first], ids[first + 1 : second]


def build(text: Text, length: int, seed: int = 3, **fractions: float) -> Sampler:
    return SentencePairs(**fractions).build(text.stream, length, seed, SPECIAL)


@settings(max_examples=40)
@given(seed=st.integers(0, 999), length=st.integers(5, 80), documents=st.integers(2, 12), size=st.integers(1, 30))
def test_rows_are_pairs_as_their_labels_say(
    make_text: MakeText, seed: int, length: int, documents: int, size: int
) -> None:
    text = make_text(drawn(random.Random(seed), documents, 9, size))
    batch = build(text, length, seed).take(seed, 40)
    assert batch.input_ids.shape == batch.token_type_ids.shape == batch.attention_mask.shape == (40, length)
    for row in range(40):
        a, b = segments(batch, row)
        end = len(a) + len(b) + 3
        assert a and b and end <= length
        assert batch.input_ids[row, 0] == SPECIAL.cls and (batch.input_ids[row, end:] == SPECIAL.pad).all()
        assert batch.attention_mask[row].tolist() == [place < end for place in range(length)]
        assert batch.token_type_ids[row].tolist() == [int(len(a) + 2 <= place < end) for place in range(length)]
        for segment in (a, b):
            assert min(segment) >= FIRST  # no special token inside
            assert segment == list(range(segment[0], segment[-1] + 1))
        (of_a, *others_a), (of_b, *others_b) = ({text.document_of[id - FIRST] for id in part} for part in (a, b))
        assert not others_a and not others_b
        if batch.next_sentence_label[row]:
            assert of_a != of_b
        else:
            assert of_a == of_b and b[0] > a[-1]
            # Between them are only tokens that were dropped, when the row is full.
            assert b[0] == a[-1] + 1 or end == length


def test_sequences_in_stream_order(make_text: MakeText) -> None:
    text = make_text(drawn(random.Random(4), 9, 12, 8))
    sampler = build(text, 32)
    found = sampler.at(np.arange(sampler.rows_per_epoch))
    of = [text.document_of[ids[1] - FIRST] for ids in found.input_ids]
    assert of == sorted(of)
    epoch = sampler.take(0, len(found))
    assert sorted(epoch.input_ids.tolist()) == sorted(found.input_ids.tolist())


def original(documents: list[list[int]], length: int, rng: random.Random) -> list[tuple[int, int]]:
    """(label, filled positions) of the original's walk over documents given as sizes of sentences.

    With the target drawn anew for each pair, which is one of the differences that the module names.
    """
    found = []
    for number, document in enumerate(documents):
        chunk: list[int] = []
        place, target = 0, 0
        while place < len(document):
            if not chunk:
                target = rng.randint(2, length - 3) if rng.random() < 0.1 else length - 3
            chunk.append(document[place])
            if place == len(document) - 1 or sum(chunk) >= target:
                cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                size = sum(chunk[:cut])
                label = int(len(chunk) == 1 or rng.random() < 0.5)
                if label:
                    place -= len(chunk) - cut
                    other = documents[rng.choice([n for n in range(len(documents)) if n != number])]
                    second = 0
                    for more in other[rng.randrange(len(other)) :]:
                        second += more
                        if second >= target - size:
                            break
                else:
                    second = sum(chunk[cut:])
                found.append((label, min(size + second + 3, length)))
                chunk = []
            place += 1
    return found


@pytest.mark.parametrize(("documents", "sentences", "length"), [(60, 4, 64), (60, 20, 64), (60, 20, 160), (3, 400, 96)])
def test_labels_and_lengths_are_distributed_as_in_the_original(
    make_text: MakeText, documents: int, sentences: int, length: int
) -> None:
    sizes = drawn(random.Random(5), documents, sentences, 12)
    batch = build(make_text(sizes), length).take(0, 3000)
    theirs = np.array([pair for copy in range(20) for pair in original(sizes, length, random.Random(copy))])
    assert abs(batch.next_sentence_label.mean() - theirs[:, 0].mean()) < 0.035
    assert abs(batch.attention_mask.sum(axis=1).mean() / theirs[:, 1].mean() - 1) < 0.03


def test_fractions(make_text: MakeText) -> None:
    text = make_text(drawn(random.Random(6), 20, 60, 5))
    whole = build(text, 64, short_fraction=0.0, random_fraction=0.0).take(0, 1500)
    assert whole.next_sentence_label.mean() < 0.03  # a lone last sentence
    assert (whole.attention_mask.sum(axis=1) == 64).mean() > 0.7  # all but the ends of documents
    short = build(text, 64, short_fraction=1.0, random_fraction=1.0).take(0, 1500)
    assert short.next_sentence_label.all()
    filled = short.attention_mask.sum(axis=1)
    assert 30 < filled.mean() < 45 and np.unique(filled).size > 40
    with pytest.raises(UserError, match=r"--rows.random-fraction is 1.5. Give a number"):
        SentencePairs(random_fraction=1.5)


@pytest.mark.parametrize("length", [32, 120])
def test_sentences_are_visited_about_equally_often(make_text: MakeText, length: int) -> None:
    sizes = [[8] * count for count in (3, 6, 12, 40, 400)] * 2
    text = make_text(sizes)
    sampler = build(text, length)
    epochs = 20 if length < 100 else 60  # enough visits for the bounds below
    visits: Counter[int] = Counter()
    batch = sampler.take(0, epochs * sampler.rows_per_epoch)
    for row in range(0, len(batch)):
        a, b = segments(batch, row)
        for segment in (a, b) if not batch.next_sentence_label[row] else (a,):  # the random B goes everywhere
            visits.update({text.start_of[id - FIRST] for id in segment})
    for document in (3, 4):
        start, count = text.starts[document], len(sizes[document])
        inside = np.array([visits[start + 8 * place] for place in range(count)]) / epochs
        assert 0.6 < inside.mean() < 1.3
        tenths = np.array([part.mean() for part in np.array_split(inside, 10)])
        assert tenths.min() > 0.7 * inside.mean() and tenths.max() < 1.3 * inside.mean()
    assert min(visits[place] for place in set(text.start_of) - {-1}) > epochs / 5


def test_truncation_takes_from_the_longer_segment_at_both_ends(make_text: MakeText) -> None:
    text = make_text([[19, 4], [5, 40], [50, 50]])
    batch = build(text, 23, random_fraction=0.0, short_fraction=0.0).take(0, 400)
    found: dict[int, set[tuple[int, int, int]]] = {0: set(), 1: set(), 2: set()}
    for row in range(len(batch)):
        a, b = segments(batch, row)
        assert len(a) + len(b) == 20 or batch.next_sentence_label[row]
        place = a[0] - FIRST if text.document_of[a[0] - FIRST] == 0 else b[0] - FIRST
        document = text.document_of[a[0] - FIRST]
        found[document].add((len(a), len(b), place - text.start_of[place]))
    # From A 3 of 19, of which any number in front; from B 25 of 40; where both are long they end equal.
    assert found[0] == {(16, 4, front) for front in range(4)}
    assert {sizes[:2] for sizes in found[1]} == {(5, 15)} and len(found[1]) > 8
    assert (10, 10) in {sizes[:2] for sizes in found[2]}


def test_text_that_cannot_give_pairs(make_text: MakeText) -> None:
    with pytest.raises(UserError, match=r"has no sentence boundaries.*Prepare it with --split-sentences, or"):
        build(make_text([[4, 4], [4, 4]], sentences=False), 16)
    with pytest.raises(UserError, match=r"is one document, but random sentences"):
        build(make_text([[4] * 50]), 16)
    with pytest.raises(UserError, match=r"4 tokens are too few for a pair"):
        build(make_text([[4, 4], [4, 4]]), 4)
    assert check_pairs(make_text([[4, 4], [4, 4]]).stream) is None
    warning = check_pairs(make_text([[4], [4, 4], [4]]).stream)
    assert warning is not None and warning.startswith("Documents have 1.3 sentences on average")


def test_documents_of_which_no_token_is_left_are_passed_over(make_text: MakeText) -> None:
    text = make_text([[0], [4, 4, 4], [0], [0], [4, 4], [0]])
    batch = build(text, 12).take(0, 200)
    for row in range(200):
        a, b = segments(batch, row)
        assert a and b
    with pytest.raises(UserError, match="Fewer than two documents hold any token"):
        build(make_text([[0], [4, 4]]), 12)
