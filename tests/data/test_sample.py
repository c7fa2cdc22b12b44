from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from daybreak.data.deduplication import DROPPED, HELDOUT, TRAIN, Ledger, document_key
from daybreak.data.sample import SampleSpool, SampleTexts, shrink

TEXTS = [f"document {number} " + "x" * (number % 50) for number in range(3000)]


def sample(texts: list[str], folder: Path, limit: int, *, parts: int = 1, late: bool = False) -> list[str]:
    """The sample of ``texts`` in so many parts; ``late`` shrinks once all are there, else after each."""
    folder.mkdir()
    ledger, spools, offsets = Ledger(folder / "keys"), [], []
    for part, own in enumerate(np.array_split(np.array(texts), parts)):
        spools.append(folder / f"sample-{part}")
        offsets.append(ledger.documents)
        spool = SampleSpool(spools[-1], limit)
        for number, text in enumerate(own.tolist()):
            spool.add(number, document_key(text), text)
        spool.close()
        keys = np.array([document_key(text) for text in own.tolist()], np.uint64)
        ledger.add(keys, np.array([len(text) for text in own.tolist()]), np.ones(len(own), bool))
        if not late:
            shrink(spools, limit)
    shrink(spools, limit)
    verdict = ledger.decide()
    found = SampleTexts(spools, offsets, verdict)
    assert list(found) == list(found)  # it can be read again
    fates = dict(zip(texts, verdict.fates.tolist(), strict=True)) if len(set(texts)) == len(texts) else {}
    assert all(fates.get(text, TRAIN) == TRAIN for text in found)
    held = SampleTexts(spools, offsets, verdict, HELDOUT)
    assert all(fates.get(text, HELDOUT) == HELDOUT for text in held)
    return list(found)


def test_a_small_corpus_is_sampled_whole_without_heldout_and_duplicates(tmp_path: Path) -> None:
    whole = sample(TEXTS, tmp_path / "a", 1 << 30)
    assert 0.95 * len(TEXTS) < len(whole) < len(TEXTS)
    assert sorted(sample(TEXTS + TEXTS, tmp_path / "b", 1 << 30, parts=3)) == sorted(whole)
    assert DROPPED != TRAIN


@pytest.mark.parametrize("parts", [1, 4])
def test_a_large_corpus_is_sampled_within_the_limit_whatever_its_order(tmp_path: Path, parts: int) -> None:
    limit = sum(map(len, TEXTS)) // 5
    found = sample(TEXTS, tmp_path / "a", limit)
    assert 0.3 * limit < sum(map(len, found)) <= limit
    shuffled = random.Random(3).sample(TEXTS, len(TEXTS))
    for late in (False, True):
        assert sorted(sample(shuffled, tmp_path / f"b{late}", limit, parts=parts, late=late)) == sorted(found)
