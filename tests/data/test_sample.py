from __future__ import annotations

import random
from pathlib import Path

from daybreak.data.deduplication import DROPPED, TRAIN, Ledger, document_key
from daybreak.data.sample import SampleSpool

TEXTS = [f"document {number} " + "x" * (number % 50) for number in range(3000)]


def sample(texts: list[str], folder: Path, limit: int) -> list[str]:
    folder.mkdir()
    ledger, spool = Ledger(folder / "keys"), SampleSpool(folder / "sample", limit)
    for number, text in enumerate(texts):
        ledger.add(document_key(text), len(text))
        spool.add(number, document_key(text), text)
    verdict = ledger.decide()
    found = spool.texts(verdict)
    assert list(found) == list(found)  # it can be read again
    fates = dict(zip(texts, verdict.fates.tolist(), strict=True)) if len(set(texts)) == len(texts) else {}
    assert all(fates.get(text, TRAIN) == TRAIN for text in found)
    return list(found)


def test_a_small_corpus_is_sampled_whole_without_heldout_and_duplicates(tmp_path: Path) -> None:
    whole = sample(TEXTS, tmp_path / "a", 1 << 30)
    assert 0.95 * len(TEXTS) < len(whole) < len(TEXTS)
    assert sorted(sample(TEXTS + TEXTS, tmp_path / "b", 1 << 30)) == sorted(whole)
    assert DROPPED != TRAIN


def test_a_large_corpus_is_sampled_within_the_limit_whatever_its_order(tmp_path: Path) -> None:
    limit = sum(map(len, TEXTS)) // 5
    found = sample(TEXTS, tmp_path / "a", limit)
    assert 0.4 * limit < sum(map(len, found)) <= limit
    assert sorted(sample(random.Random(3).sample(TEXTS, len(TEXTS)), tmp_path / "b", limit)) == sorted(found)
