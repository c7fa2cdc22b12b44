"""Texts whose entropy is known, and texts that repeat."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from daybreak.forecasting.difficulty import compression

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


def difficulty(train: Ids, heldout: Ids) -> float:
    return compression(train, heldout, np.bincount(train.ids, minlength=VOCABULARY))


def test_random_ids_do_not_compress() -> None:
    assert difficulty(chain(200_000, 0.0, 0), chain(30_000, 0.0, 1)) == pytest.approx(0.0, abs=0.1)


def test_a_more_predictable_text_is_easier_and_never_below_its_entropy() -> None:
    found = []
    for sure in (0.3, 0.6, 0.9):
        likely, other = sure + (1 - sure) / VOCABULARY, (1 - sure) / VOCABULARY
        entropy = -likely * math.log(likely) - (VOCABULARY - 1) * other * math.log(other)
        found.append(difficulty(chain(200_000, sure, 0), chain(30_000, sure, 1)))
        assert math.exp(found[-1]) > entropy / math.log(VOCABULARY)
    assert found == sorted(found, reverse=True)


def test_a_text_that_repeats_its_training_text_is_easy() -> None:
    train = chain(200_000, 0.0, 2)
    assert difficulty(train, Ids(train.ids[50_000:80_000])) < math.log(0.05)


def test_all_sources_of_a_text_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks come from the whole training text, so its second half helps."""
    monkeypatch.setattr("daybreak.forecasting.difficulty.TRAIN_TOKENS", 100_000)
    first, second = chain(300_000, 0.0, 2), chain(300_000, 0.9, 3)
    both = Ids(np.concatenate([first.ids, second.ids]))
    heldout = chain(30_000, 0.9, 4)
    assert difficulty(both, heldout) < difficulty(first, heldout)


def test_large_vocabularies_are_compressed_with_wider_ids() -> None:
    ids = np.random.default_rng(0).integers(0, 100_000, 60_000)
    counts = np.bincount(ids, minlength=100_000)
    assert -0.1 < compression(Ids(ids[:50_000]), Ids(ids[50_000:]), counts) < 0.7
