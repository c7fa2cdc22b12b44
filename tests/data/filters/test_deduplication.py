from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.data.filters import deduplication
from daybreak.data.filters.deduplication import DROPPED, HELDOUT, TRAIN, Ledger, SplitAssignments, document_key


def decide(texts: list[str], folder: Path, *, least: int = 1, at_once: int = 700) -> SplitAssignments:
    ledger = Ledger(folder, least=least)
    for start in range(0, len(texts), at_once):
        add(ledger, texts[start : start + at_once])
    return ledger.decide()


def add(ledger: Ledger, texts: list[str], stays: list[bool] | None = None) -> None:
    keys, lengths = np.array([document_key(text) for text in texts], np.uint64), np.array([len(text) for text in texts])
    ledger.add(keys, lengths, np.array(stays or [True] * len(texts)))


def test_duplicates_go_as_a_set_would_drop_them(tmp_path: Path) -> None:
    rng = random.Random(1)
    texts = [f"document {rng.randrange(3000)}" for _ in range(5000)]
    splits = decide(texts, tmp_path / "keys")
    seen: set[str] = set()
    for text, assignment in zip(texts, splits.assignments, strict=True):
        assert (assignment == DROPPED) == (text in seen)
        seen.add(text)
    assert splits.duplicates == len(texts) - len(seen)
    assert splits.train + splits.heldout == len(seen)
    assert 0.01 < splits.heldout / len(seen) < 0.03


def test_the_split_does_not_depend_on_order_or_copies(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(2000)]
    first = dict(zip(texts, decide(texts, tmp_path / "a").assignments.tolist(), strict=True))
    shuffled = random.Random(2).sample(texts, len(texts))
    assert dict(zip(shuffled, decide(shuffled, tmp_path / "b").assignments.tolist(), strict=True)) == first
    twice = decide(texts + texts, tmp_path / "c").assignments
    assert dict(zip(texts, twice.tolist(), strict=False)) == first


def test_the_splits_have_their_place_on_the_disk_before_they_are_mapped(tmp_path: Path) -> None:
    """A write to the map of a sparse file on a full disk ends the process."""
    ledger, count = Ledger(tmp_path), 1 << 20
    stays = np.zeros(count, bool)
    stays[:2] = True
    ledger.add(np.arange(count, dtype=np.uint64), np.full(count, 9), stays)
    assert ledger.decide().path.stat().st_blocks * 512 >= count


@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_small_corpus_holds_out_one_document_and_trains_on_the_rest(tmp_path: Path, count: int) -> None:
    for trial in range(60):
        splits = decide([f"{trial} {number}" for number in range(count)], tmp_path / str(trial))
        assert splits.heldout >= 1 and splits.train >= 1
        assert (splits.assignments == HELDOUT).sum() == splits.heldout
        assert (splits.assignments == TRAIN).sum() == splits.train


def test_one_document_cannot_be_split(tmp_path: Path) -> None:
    assert decide(["alone", "alone"], tmp_path / "keys").train == 0


def test_a_large_corpus_holds_out_a_bounded_amount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "HELDOUT_CHARACTERS", 1000)
    splits = decide([f"{number:010d}" for number in range(50_000)], tmp_path / "keys")
    assert 50 < splits.heldout < 150


def test_two_documents_are_held_out_where_pairs_need_them(tmp_path: Path) -> None:
    for count, held in ((2, 1), (3, 2), (9, 2)):
        texts = [f"document {number}" for number in range(count) for _ in range(2)]
        splits = decide(texts, tmp_path / f"{count}", least=2, at_once=3)
        assert (splits.heldout, splits.train, splits.duplicates) == (held, count - held, count)


def test_what_was_left_out_before_is_neither_kept_nor_a_duplicate(tmp_path: Path) -> None:
    """Nor does it hide an equal document that stays."""
    texts = [f"document {number % 300}" for number in range(600)]
    ledger = Ledger(tmp_path / "keys")
    add(ledger, texts, [number >= 100 for number in range(600)])
    splits = ledger.decide()
    assert (ledger.documents, ledger.kept, splits.duplicates) == (600, 500, 200)
    assert (
        not splits.assignments[:100].any() and splits.assignments[100:400].all() and not splits.assignments[400:].any()
    )
    assert (splits.train + splits.heldout, ledger.characters) == (300, sum(map(len, texts[100:])))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_split_does_not_depend_on_how_many_are_added_at_once(power: int, rng: random.Random) -> None:
    texts = [f"{rng.randrange(40)}" for _ in range(rng.randrange(2, 60))]
    with tempfile.TemporaryDirectory() as folder:
        one = decide(texts, Path(folder) / "a", at_once=10**power)
        other = decide(texts, Path(folder) / "b")
    assert one.assignments.tolist() == other.assignments.tolist()
    assert (one.train, one.heldout) == (other.train, other.heldout)
