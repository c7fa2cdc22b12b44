"""Texts from the first reading to the second: what is kept is what was read, and the data do not depend on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.commands import prepare as preparing
from daybreak.commands.prepare import prepare
from daybreak.data.pipeline.corpus import Corpus
from daybreak.data.pipeline.first_pass import KeptTexts, kept_documents
from daybreak.data.tokenizers.tokenizer import WordPiece

CLEAN = st.text(st.characters(codec="utf-8"), min_size=1)


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


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.bin")}


def test_the_data_are_the_same_and_the_text_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.jsonl"
    lines = [{"text": f"A document, number {number}, with   a few\u00a0words \u4f60\u597d."} for number in range(300)]
    text.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
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
    assert files_of(tmp_path / "kept") == files_of(tmp_path / "again") != {}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
