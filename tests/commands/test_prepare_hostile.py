"""Hostile text: each is a clear error, or is counted and left out.

Also: decompression bombs, links in loops, pipes and wide text in data/readers/test_inputs.py; bad records, rows and
cells in data/readers/test_documents.py and data/readers/test_tables.py; damaged tokens in
data/pipeline/test_tokenized.py; full disks and killed workers in commands/test_prepare_parts.py.
"""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_texts import left_over, write_records

from daybreak.commands.prepare import prepare
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.pipeline.corpus import Corpus, bundled
from daybreak.data.readers import inputs
from daybreak.data.readers.documents import choose_rule
from daybreak.data.readers.file_range import Skips
from daybreak.data.readers.inputs import RECORDS, TEXT, ByteCounter, find_files
from daybreak.data.sequences.shards import open_shards
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.data.tokenizers.tokenizer_import import Existing

SMALL = WordPiece(vocabulary=600)


def test_a_line_without_an_end_becomes_documents_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(inputs.LONGEST_LINE, TEXT, 1 << 14)
    rng = random.Random(0)
    words = [str(rng.randrange(10**6)) for _ in range(60_000)]
    (tmp_path / "t.txt").write_text(" ".join(words))
    manifest = prepare([tmp_path / "t.txt"], tmp_path / "data", tokenizer=SMALL, workers=1)
    assert manifest.train.documents + manifest.heldout.documents == -(-len(" ".join(words)) // (1 << 14))
    assert manifest.characters == pytest.approx(len(" ".join(words)), rel=1e-3)
    assert read_json(tmp_path / "data" / "corpus.json")["words"] == len(words)

    def peak(lines: int) -> int:
        (tmp_path / "long.txt").write_bytes(b"word " * (lines << 14))
        files = find_files([tmp_path / "long.txt"])
        corpus = Corpus(bundled(files, choose_rule(files, "line")), choose_rule(files, "line"), "text", False, 0)
        tracemalloc.start()
        documents = corpus.documents(0, Skips(), ByteCounter())
        assert sum(len(document.text) + 1 for document in documents) == 5 * lines << 14
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(64) < 1.5 * peak(4)


def test_a_record_without_an_end_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inputs.LONGEST_LINE, RECORDS, 1 << 14)
    path = write_records(tmp_path / "t.jsonl", 200)
    path.write_text(path.read_text() + '{"text": "' + "word " * 10_000 + '"}\n')
    manifest = prepare([path], tmp_path / "data", tokenizer=SMALL)
    assert sum(manifest.skipped.values()) == 1 and manifest.sources[0].documents == 220


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nul.txt", b"a line\nzero \0 bytes\n", r"nul.txt' is binary, not text \(line 2\). Leave it out"),
        ("old.txt", "gr\u00fc\u00dfe\nna\u00efve\n".encode("latin-1"), "old.txt' has 2 undecodable lines of 2"),
        ("wide.txt", "wide\n".encode("utf-16"), "wide.txt' is UTF-16 text, not UTF-8. Convert it"),
        ("packed.txt.gz", b"\x1f\x8b not really", "packed.txt.gz' is damaged or cut short"),
    ],
)
def test_one_bad_file_among_good_ones_is_named_and_nothing_is_left(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"File {number} says this.\nAnd that.\n")
    (folder / "loop").symlink_to(folder)
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        prepare([folder], tmp_path / "data", tokenizer=SMALL, document="line", workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts"]
    (folder / name).unlink()
    manifest = prepare([folder], tmp_path / "data", tokenizer=SMALL, document="line", workers=1)
    assert (manifest.sources[0].documents, manifest.duplicates) == (10, 4)


def test_files_named_one_by_one_are_read_together_and_counted_apart(tmp_path: Path) -> None:
    """A shell names thousands of files: they must not be as many tasks, nor change what is made."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02d}.txt").write_text(
            "".join(f"Text {number} line {line}.\n" for line in range(number % 4))
        )
    files = sorted(folder.iterdir())
    found = find_files(files)
    assert len(bundled(found, choose_rule(found, "line"), together=True)) == 1
    assert len(bundled(found, choose_rule(found, "line"))) == 60
    one = prepare([folder], tmp_path / "one", tokenizer=SMALL, document="line")
    many = prepare(files, tmp_path / "many", tokenizer=SMALL, document="line")
    assert [source.documents for source in many.sources] == [number % 4 for number in range(60)]
    assert [source.path for source in many.sources] == list(map(str, files))
    assert (one.train, one.heldout, one.unigram_counts) == (many.train, many.heldout, many.unigram_counts)
    assert open_shards(tmp_path / "many").manifest == many and left_over(tmp_path) == []


WILD = st.binary(max_size=300) | st.text(max_size=120).map(lambda text: text.encode("utf-8", "surrogatepass"))


@settings(max_examples=150)
@given(st.sampled_from([".txt", ".jsonl", ".csv", ".tsv", ".html", ".xml", ".ds", ".parquet", ".txt.gz"]), WILD, WILD)
@example(".ds", struct.pack("<4H", 7, 8, 9, 70), struct.pack("<2Q", 2, 4))
@example(".jsonl", b'{"text": "\\ud800"}\n' * 3, b"")
@example(".html", b"<p>" * 60, b"")
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: Path, suffix: str, content: bytes, beside: bytes
) -> None:
    path = tmp_path_factory.mktemp("wild") / f"t{suffix}"
    path.write_bytes(content)
    Path(f"{path}.index").write_bytes(beside)
    tokenizer = Existing(folder=str(data / "tokenizer")).folder
    try:
        files = find_files([path])
        rule = choose_rule(files, "auto")
        corpus = Corpus(bundled(files, rule, 64), rule, "text", False, 0, tokenizer)
        skips = Skips()
        for number in range(len(corpus.parts)):
            for document in corpus.documents(number, skips, ByteCounter()):
                assert document.text.strip() and document.text.encode()
        skips.evaluate()
    except UserError as error:
        assert error.sentence.endswith(".") and error.remedy.endswith(".")
