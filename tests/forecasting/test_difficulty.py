"""Texts whose pairs are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from daybreak.forecasting import difficulty
from daybreak.forecasting.difficulty import pairs_log_fraction

VOCABULARY = 40


@dataclass(frozen=True)
class Ids:
    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.ids[start:stop].astype(np.uint16)


def chain(tokens: int, sure: float, seed: int) -> Ids:
    """With chance ``sure`` each token is the last one's successor, else any."""
    chance = np.random.default_rng(seed)
    steps = np.where(chance.random(tokens) < sure, 1, chance.integers(0, VOCABULARY, tokens))
    return Ids(np.cumsum(steps) % VOCABULARY)


def share(sure: float, tokens: int = 200_000) -> float:
    train = chain(tokens, sure, 0)
    return pairs_log_fraction(train, chain(30_000, sure, 1), np.bincount(train.ids, minlength=VOCABULARY))


@pytest.mark.parametrize("sure", [0.0, 0.5, 0.9])
def test_the_loss_of_pairs_is_the_entropy_of_the_chain(sure: float) -> None:
    likely, other = sure + (1 - sure) / VOCABULARY, (1 - sure) / VOCABULARY
    entropy = -likely * math.log(likely) - (VOCABULARY - 1) * other * math.log(other)
    assert math.exp(share(sure)) == pytest.approx(entropy / math.log(VOCABULARY), rel=0.03)


def test_all_sources_of_a_text_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difficulty, "TRAIN_TOKENS", 50_000)
    text = Ids(np.concatenate([chain(100_000, 0.0, 2).ids, chain(100_000, 0.9, 3).ids]))
    counts = np.bincount(text.ids, minlength=VOCABULARY)
    hard, easy = share(0.0), share(0.9)
    mixed = pairs_log_fraction(text, chain(30_000, 0.9, 4), counts)
    assert easy < mixed < hard - 0.2
