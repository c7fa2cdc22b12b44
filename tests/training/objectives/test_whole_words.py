"""Words are masked whole or not at all, with the same number of tokens as without whole words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.batch import Batch
from daybreak.training.objectives.masked import Masked, select_words, word_starts


def batch(count: int, length: int) -> Batch:
    """Rows [CLS] A [SEP] B [SEP] where 40 % of the tokens continue a word, some of them first in their segment."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 50, (count, length), generator=rng)
    ids[:, 0], ids[:, length // 3], ids[:, -1] = 2, 3, 3
    return Batch(input_ids=ids, is_continuation=(torch.rand(ids.shape, generator=rng) < 0.4) & (ids > 4))


def groups(rows: Batch) -> list[list[list[int]]]:
    """The words of each row as lists of positions, found one position after the other."""
    found = []
    for ids, is_continuation in zip(rows.input_ids.tolist(), rows.is_continuation.tolist()):
        words: list[list[int]] = []
        for place, (one, goes_on) in enumerate(zip(ids, is_continuation)):
            if one <= 4:
                continue
            if goes_on and words and words[-1][-1] == place - 1:
                words[-1].append(place)
            else:
                words.append([place])
        found.append(words)
    return found


@pytest.mark.parametrize("count", ["fixed", "bernoulli", "rounded"])
def test_no_part_of_a_word_is_ever_masked_alone(count: str) -> None:
    objective, rows = Masked(rate=0.3, count=count, whole_words=True), batch(60, 50)
    chosen = objective.chosen(rows, seed=8, position=0)
    parts, long = 0, 0
    for marks, words in zip(chosen.tolist(), groups(rows)):
        for word in words:
            hidden = sum(marks[place] for place in word)
            parts += hidden not in (0, len(word))
            long += hidden > 1
    assert parts == 0 and long > 50
    if count == "bernoulli":
        pieces = int((rows.input_ids > 4).sum())
        assert chosen.sum().item() / pieces == pytest.approx(0.3, abs=0.05)


def test_the_number_is_reached_as_nearly_as_words_allow() -> None:
    objective, rows = Masked(rate=0.15, count="rounded", whole_words=True), batch(300, 60)
    chosen = objective.chosen(rows, seed=8, position=0)
    short = 9 - chosen.sum(1)
    assert (short >= 0).all()
    for row, (marks, words) in enumerate(zip(chosen.tolist(), groups(rows))):
        left = [len(word) for word in words if not marks[word[0]]]
        assert min(left) > short[row]  # nothing that is left would have fitted


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**31), length=st.integers(1, 40), wanted=st.integers(1, 30), largest=st.integers(1, 9))
def test_fitting_equals_trying_one_word_after_the_other(seed: int, length: int, wanted: int, largest: int) -> None:
    rng = np.random.default_rng(seed)
    keys, sizes = rng.permutation(length), rng.integers(0, largest + 1, length)
    taken = np.zeros(length, bool)
    for place in np.argsort(keys):
        taken[place] = sizes[place] > 0 and sizes[taken].sum() + sizes[place] <= wanted
    tensors = (torch.from_numpy(keys)[None], torch.from_numpy(sizes)[None])
    assert select_words(*tensors, wanted)[0].tolist() == taken.tolist()
    assert select_words(*tensors, torch.tensor([[wanted]]))[0].tolist() == taken.tolist()


def test_words_do_not_go_across_special_tokens() -> None:
    candidates = torch.tensor([[False, True, True, True, False, True, True]])
    is_continuation = torch.tensor([[False, True, True, False, False, True, True]])
    assert word_starts(candidates, is_continuation).tolist() == [[0, 1, 1, 3, 4, 5, 5]]
