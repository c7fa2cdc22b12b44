"""What the first pass stores for later: the texts of a part, and a sample for the tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_texts import contents, left_over, write_records

from daybreak.commands import prepare as preparing
from daybreak.commands.prepare import prepare
from daybreak.data.filters.deduplication import HELDOUT, TRAIN, Ledger, document_key
from daybreak.data.pipeline.corpus import Corpus
from daybreak.data.pipeline.first_pass import KeptTexts, kept_documents
from daybreak.data.pipeline.sample import COPIES, HEAD, SampleSpool, SampleTexts, shrink
from daybreak.data.tokenizers.byte_bpe import ByteBPE
from daybreak.data.tokenizers.tokenizer import WordPiece

CLEAN = st.text(st.characters(codec="utf-8"), min_size=1)


@settings(max_examples=30)
@given(texts=st.lists(CLEAN, max_size=8), limit=st.integers(0, 60))
def test_all_of_a_part_is_kept_or_nothing(
    texts: list[str], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("part")
    kept = KeptTexts(folder, limit)
    for text in texts:
        kept.add(text)
    kept.close()
    found = kept_documents(folder)
    if sum(len(text.encode()) for text in texts) > limit:
        assert found is None and not list(folder.iterdir())
    else:
        assert found is not None and [document.text for document in found] == texts


def test_the_data_are_the_same_and_the_text_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_records(tmp_path / "text.jsonl", 300)
    readings: list[int] = []
    plain = Corpus.documents

    def counted(self: Corpus, number: int, *arguments: object) -> object:
        readings.append(number)
        return plain(self, number, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Corpus, "documents", counted)
    prepare([text], tmp_path / "kept", tokenizer=WordPiece(vocabulary=400))
    assert readings == [0]
    monkeypatch.setattr(preparing, "KEPT_BYTES", 0)
    prepare([text], tmp_path / "again", tokenizer=WordPiece(vocabulary=400))
    assert readings == [0, 0, 0]
    assert contents(tmp_path / "kept") == contents(tmp_path / "again")
    assert left_over(tmp_path) == []


def test_text_that_is_read_again_gives_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also sentences on lines beside records: a tokenizer of bytes sees the line breaks."""
    records = write_records(tmp_path / "records.jsonl", 100)
    lines = tmp_path / "lines.txt"
    lines.write_text("\n\n".join(f"First sentence of {number}.\nThe second one." for number in range(100)))
    prepare([records, lines], tmp_path / "kept", tokenizer=ByteBPE(vocabulary=400))
    monkeypatch.setattr(preparing, "KEPT_BYTES", 0)
    prepare([records, lines], tmp_path / "again", tokenizer=ByteBPE(vocabulary=400))
    assert contents(tmp_path / "kept") == contents(tmp_path / "again")


# ---------------------------------------------------------------- the sample for the tokenizer


TEXTS = [f"document {number} " + "x" * (number % 50) for number in range(2000)]


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
    splits = ledger.decide()
    found = SampleTexts(spools, offsets, splits)
    assert list(found) == list(found)  # it can be read again
    assignments = dict(zip(texts, splits.assignments.tolist(), strict=True)) if len(set(texts)) == len(texts) else {}
    assert all(assignments.get(text, TRAIN) == TRAIN for text in found)
    held = SampleTexts(spools, offsets, splits, HELDOUT)
    assert all(assignments.get(text, HELDOUT) == HELDOUT for text in held)
    return list(found)


def test_a_small_corpus_is_sampled_whole_without_heldout_and_duplicates(tmp_path: Path) -> None:
    whole = sample(TEXTS, tmp_path / "a", 1 << 30)
    assert 0.95 * len(TEXTS) < len(whole) < len(TEXTS)
    assert sorted(sample(TEXTS + TEXTS, tmp_path / "b", 1 << 30, parts=3)) == sorted(whole)


@pytest.mark.parametrize("parts", [1, 4])
def test_a_large_corpus_is_sampled_within_the_limit_whatever_its_order(tmp_path: Path, parts: int) -> None:
    limit = bytes_of(TEXTS) // 5
    found = sample(TEXTS, tmp_path / "a", limit)
    assert 0.3 * limit < bytes_of(found) <= limit
    shuffled = random.Random(3).sample(TEXTS, len(TEXTS))
    for late in (False, True):
        assert sorted(sample(shuffled, tmp_path / f"b{late}", limit, parts=parts, late=late)) == sorted(found)


def bytes_of(texts: Iterable[str]) -> int:
    return sum(len(text) + HEAD.itemsize for text in texts)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("late", [False, True])
def test_copies_of_a_text_do_not_crowd_the_others(tmp_path: Path, parts: int, late: bool) -> None:
    """Its weight is that of one text, in every part and over parts."""
    limit = bytes_of(TEXTS) // 3
    plain = sample(TEXTS, tmp_path / "plain", limit)
    for number, copied in enumerate([plain[0], TEXTS[7]]):  # one that is in the sample, and any
        many = random.Random(number).sample(TEXTS + [copied] * 3000, len(TEXTS) + 3000)
        found = sample(many, tmp_path / f"many{number}", limit, parts=parts, late=late)
        assert sorted(found) == sorted(plain) and len(set(found)) == len(found)


def test_parts_that_are_alike_do_not_fill_the_disk(tmp_path: Path) -> None:
    """What all of them hold is less than the limit, but the disk holds it once for each."""
    limit, spools = bytes_of(TEXTS[:600]), []
    for part in range(3 * COPIES):
        spools.append(tmp_path / f"{part}")
        spool = SampleSpool(spools[-1], limit)
        for number, text in enumerate(TEXTS[:600]):
            spool.add(number, document_key(text), text)
        spool.close()
        if part % 6 < 5:
            continue
        shrink(spools, limit)
        held = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert limit / 4 < held <= COPIES * limit
