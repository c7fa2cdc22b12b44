"""Texts whose entropy is known, and texts that repeat."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from daybreak.forecasting.difficulty import BIGRAM_WEIGHT, bigram, compression, difficulty

VOCABULARY = 256


@dataclass(frozen=True)
class Ids:
    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.ids[start:stop].astype(np.uint32)


def chain(tokens: int, sure: float, seed: int) -> Ids:
    """With chance ``sure`` each token is the last one's successor, else any."""
    chance = np.random.default_rng(seed)
    steps = np.where(chance.random(tokens) < sure, 1, chance.integers(0, VOCABULARY, tokens))
    return Ids(np.cumsum(steps) % VOCABULARY)


def entropy(sure: float) -> float:
    """Of a token of ``chain`` after the one before it, in nats."""
    likely, other = sure + (1 - sure) / VOCABULARY, (1 - sure) / VOCABULARY
    return -likely * math.log(likely) - (VOCABULARY - 1) * other * math.log(other)


def frequencies(ids: np.ndarray) -> np.ndarray:
    counts = np.bincount(ids, minlength=VOCABULARY) + 1.0
    return counts / counts.sum()


def compressed(train: Ids, heldout: Ids) -> float:
    return compression(train.ids, heldout.ids, frequencies(train.ids))


def total(train: Ids, heldout: Ids) -> float:
    return difficulty(train, heldout, np.bincount(train.ids, minlength=VOCABULARY))


def test_random_ids_have_difficulty_zero() -> None:
    train, heldout = chain(200_000, 0.0, 0), chain(30_000, 0.0, 1)
    assert compressed(train, heldout) == pytest.approx(0.0, abs=0.1)
    assert bigram(train.ids, heldout.ids, frequencies(train.ids)) == pytest.approx(0.0, abs=0.1)


def test_a_more_predictable_text_is_easier_and_never_below_its_entropy() -> None:
    found = []
    for sure in (0.3, 0.6, 0.9):
        found.append(compressed(chain(200_000, sure, 0), chain(30_000, sure, 1)))
        assert math.exp(found[-1]) > entropy(sure) / math.log(VOCABULARY)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("sure", [0.3, 0.6, 0.9])
def test_the_bigram_model_nearly_reaches_the_entropy_of_a_chain(sure: float) -> None:
    """Each token of a chain depends on the one before it alone."""
    train, heldout = chain(1_000_000, sure, 0), chain(100_000, sure, 1)
    reached = math.exp(bigram(train.ids, heldout.ids, frequencies(train.ids))) * math.log(VOCABULARY)
    assert entropy(sure) < reached < 1.04 * entropy(sure)


def test_the_bigram_model_smooths_as_witten_and_bell() -> None:
    """Compared with the definition, word by word; some words of the held-out text are new, or end the known text."""
    chance = np.random.default_rng(0)
    known, new = chance.integers(0, 30, 200), chance.integers(0, 40, 100)
    known[-1] = 35  # nothing follows it
    unigram = frequencies(known)
    pairs = Counter(zip(known[:-1].tolist(), known[1:].tolist()))
    losses = []
    for first, second in zip(new[:-1].tolist(), new[1:].tolist()):
        after = {pair: count for pair, count in pairs.items() if pair[0] == first}
        likely = float(unigram[second])
        if after:
            weight = len(after) / (len(after) + sum(after.values()))
            likely = (1 - weight) * after.get((first, second), 0) / sum(after.values()) + weight * likely
        losses.append(-math.log(likely))
    alone = -np.log(unigram)[new[1:]].mean()
    assert bigram(known, new, unigram) == pytest.approx(math.log(np.mean(losses) / alone))


def test_the_two_measures_are_added() -> None:
    train, heldout = chain(100_000, 0.5, 0), chain(20_000, 0.5, 1)
    expected = compressed(train, heldout) + BIGRAM_WEIGHT * bigram(train.ids, heldout.ids, frequencies(train.ids))
    assert total(train, heldout) == pytest.approx(expected)


def test_a_text_that_repeats_its_training_text_is_easy() -> None:
    train = chain(200_000, 0.0, 2)
    assert compressed(train, Ids(train.ids[50_000:80_000])) < math.log(0.05)


def test_all_sources_of_a_text_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks come from the whole training text, so its second half helps."""
    monkeypatch.setattr("daybreak.forecasting.difficulty.TRAIN_TOKENS", 100_000)
    first, second = chain(300_000, 0.0, 2), chain(300_000, 0.9, 3)
    both = Ids(np.concatenate([first.ids, second.ids]))
    heldout = chain(30_000, 0.9, 4)
    assert total(both, heldout) < total(first, heldout)


def test_large_vocabularies_are_compressed_with_wider_ids() -> None:
    ids = np.random.default_rng(0).integers(0, 100_000, 60_000)
    counts = np.bincount(ids, minlength=100_000) + 1.0
    assert -0.1 < compression(ids[:50_000], ids[50_000:], counts / counts.sum()) < 0.7
