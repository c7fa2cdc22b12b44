from __future__ import annotations

import random
from pathlib import Path

import pytest

from daybreak.data import deduplication
from daybreak.data.deduplication import DROPPED, HELDOUT, TRAIN, Ledger, Verdict, document_key


def decide(texts: list[str], folder: Path) -> Verdict:
    ledger = Ledger(folder)
    for text in texts:
        ledger.add(document_key(text), len(text))
    return ledger.decide()


def test_duplicates_go_as_a_set_would_drop_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "SPOOL_ROWS", 500)  # many spools
    chance = random.Random(1)
    texts = [f"document {chance.randrange(3000)}" for _ in range(5000)]
    verdict = decide(texts, tmp_path / "keys")
    seen: set[str] = set()
    for text, fate in zip(texts, verdict.fates, strict=True):
        assert (fate == DROPPED) == (text in seen)
        seen.add(text)
    assert verdict.duplicates == len(texts) - len(seen)
    assert verdict.train + verdict.heldout == len(seen)
    assert 0.01 < verdict.heldout / len(seen) < 0.03


def test_the_split_does_not_depend_on_order_or_copies(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(2000)]
    first = dict(zip(texts, decide(texts, tmp_path / "a").fates.tolist(), strict=True))
    shuffled = random.Random(2).sample(texts, len(texts))
    assert dict(zip(shuffled, decide(shuffled, tmp_path / "b").fates.tolist(), strict=True)) == first
    twice = decide(texts + texts, tmp_path / "c").fates
    assert dict(zip(texts, twice.tolist(), strict=False)) == first


@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_small_corpus_holds_out_one_document_and_trains_on_the_rest(tmp_path: Path, count: int) -> None:
    for trial in range(60):
        verdict = decide([f"{trial} {number}" for number in range(count)], tmp_path / str(trial))
        assert verdict.heldout >= 1 and verdict.train >= 1
        assert (verdict.fates == HELDOUT).sum() == verdict.heldout
        assert (verdict.fates == TRAIN).sum() == verdict.train


def test_one_document_cannot_be_split(tmp_path: Path) -> None:
    assert decide(["alone", "alone"], tmp_path / "keys").train == 0


def test_a_large_corpus_holds_out_a_bounded_amount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "HELDOUT_CHARACTERS", 1000)
    verdict = decide([f"{number:010d}" for number in range(50_000)], tmp_path / "keys")
    assert 50 < verdict.heldout < 150


def test_two_documents_are_held_out_where_pairs_need_them(tmp_path: Path) -> None:
    for count, held in ((2, 1), (3, 2), (9, 2)):
        ledger = Ledger(tmp_path / f"{count}", least=2)
        for number in range(count):
            ledger.add(document_key(f"document {number}"), 10)
            ledger.add(document_key(f"document {number}"), 10)
        verdict = ledger.decide()
        assert (verdict.heldout, verdict.train, verdict.duplicates) == (held, count - held, count)
