from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from daybreak.core.errors import UserError
from daybreak.data.sequences.shards import TokenStream
from daybreak.data.sequences.word_vectors import WordVectors, word_vectors
from daybreak.schemas.run import SpecialIds

SPECIAL = SpecialIds()
VOCABULARY, SIZE = 60, 16
FIRST, TOPICS, WORDS = 5, 5, 10
"""Topic t has the ids FIRST + t * WORDS and the next WORDS - 1; ids from FIRST + TOPICS * WORDS on never occur."""


MakeStream = Callable[..., TokenStream]


def topics(documents: int) -> np.ndarray:
    """Documents of 30 tokens, each of one topic, separated by [SEP]."""
    random = np.random.default_rng(0)
    rows = FIRST + random.integers(0, TOPICS, (documents, 1)) * WORDS + random.integers(0, WORDS, (documents, 30))
    return np.concatenate([rows, np.full((documents, 1), SPECIAL.sep)], axis=1).reshape(-1)


@pytest.fixture(scope="module")
def stream(make_stream: MakeStream) -> TokenStream:
    return make_stream(topics(2_000))


def test_tokens_of_one_topic_have_similar_unit_vectors_and_all_others_none(stream: TokenStream) -> None:
    vectors = word_vectors(stream, VOCABULARY, SIZE, SPECIAL, WordVectors(weight=1.0), 0)
    assert vectors.shape == (VOCABULARY, SIZE) and vectors.dtype == np.float32
    unknown, used, unused = np.split(vectors, [FIRST, FIRST + TOPICS * WORDS])
    assert not unknown.any() and not unused.any()
    np.testing.assert_allclose(np.linalg.norm(used, axis=1), 1.0, atol=1e-5)
    similar = used @ used.T
    topic = np.arange(TOPICS * WORDS) // WORDS
    same = topic[:, None] == topic[None, :]
    assert similar[same].min() > 0.8 > 0.3 > similar[~same].max()


def test_vectors_equal_the_decomposition_of_a_table_counted_one_pair_at_a_time(make_stream: MakeStream) -> None:
    ids = np.random.default_rng(1).integers(FIRST, FIRST + 12, 900)
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for place, token in enumerate(ids):
        for distance in (1, 2, 3):
            for other in (place - distance, place + distance):
                if 0 <= other < len(ids):
                    counts[token, ids[other]] += 1 / distance
    counts = counts[FIRST : FIRST + 12, FIRST : FIRST + 12]
    smoothed = counts.sum(0) ** 0.75
    ratio = counts / counts.sum(1, keepdims=True) / (smoothed / smoothed.sum())
    ppmi = np.log(np.maximum(ratio, 1.0))
    left, scale, _ = np.linalg.svd(ppmi)
    expected = left * np.sqrt(scale)
    expected -= expected.mean(0)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)

    config = WordVectors(weight=1.0, window=3)
    vectors = word_vectors(make_stream(ids), VOCABULARY, SIZE, SPECIAL, config, 0)[FIRST : FIRST + 12]
    # The rotation keeps products of vectors.
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=1e-3)


def test_the_same_seed_gives_the_same_vectors(stream: TokenStream) -> None:
    config = WordVectors(weight=1.0)
    first, again, *others = (word_vectors(stream, VOCABULARY, SIZE, SPECIAL, config, seed) for seed in (0, 0, 1, -1))
    np.testing.assert_array_equal(first, again)
    assert not any(np.allclose(first, other) for other in others) and not np.allclose(*others)


def test_any_number_of_threads_gives_the_same_bits(make_stream: MakeStream) -> None:
    """A replay on another number of cores repeats the vectors. The table must be large enough to be divided."""
    random = np.random.default_rng(0)
    stream, config = make_stream(FIRST + random.zipf(1.2, 60_000) % 900), WordVectors(weight=1.0)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(word_vectors(stream, 1000, 64, SPECIAL, config, 0))
    assert found[0].any() and found[0].tobytes() == found[1].tobytes()


def test_only_so_many_tokens_are_counted(make_stream: MakeStream) -> None:
    """With one block of 300 tokens of topic 0, the tokens of the topics after it stay unknown."""
    ids = np.repeat(np.arange(TOPICS), 3_000) * WORDS + FIRST + np.random.default_rng(0).integers(0, WORDS, 15_000)
    vectors = word_vectors(make_stream(ids), VOCABULARY, SIZE, SPECIAL, WordVectors(weight=1, tokens=300), 0)
    assert np.flatnonzero(vectors.any(axis=1)).max() < FIRST + WORDS


@pytest.mark.parametrize("ids", [[7], [7, 8], [SPECIAL.sep] * 50, [7] * 50])
def test_a_text_without_information_gives_finite_vectors(make_stream: MakeStream, ids: list[int]) -> None:
    stream = make_stream(np.array(ids))
    vectors = word_vectors(stream, VOCABULARY, SIZE, SPECIAL, WordVectors(weight=1.0), 0)
    assert vectors.shape == (VOCABULARY, SIZE) and np.isfinite(vectors).all()


@pytest.mark.parametrize("wrong", [{"weight": 1.1}, {"weight": -0.1}, {"tokens": 0}, {"window": 0}, {"window": 101}])
def test_values_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="--word-vectors"):
        WordVectors(**wrong)  # type: ignore[arg-type]
