from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.core.serialization import from_dict, to_dict
from daybreak.data.pipeline.corpus import Corpus, split_parts
from daybreak.data.readers import documents, inputs
from daybreak.data.readers.documents import Document, DocumentRule, read_documents
from daybreak.data.readers.file_range import Skips
from daybreak.data.readers.inputs import RECORDS, TEXT, ByteCounter, InputFile, find_files

LINES = st.lists(
    st.one_of(
        st.sampled_from([b"", b" ", b"\r", "\u3000".encode(), b"a line. ", b"caf\xe9", b"word " * 30, b" " * 45]),
        st.text("ab \u4f60\U0001f600\u00e9.", max_size=12).map(str.encode),
        st.text("\u4f60\u597d", min_size=20, max_size=30).map(str.encode),
    ),
    max_size=25,
)
QUIET = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def corpus_of(files: list[InputFile], rule: DocumentRule, size: int) -> Corpus:
    return Corpus(tuple((part,) for part in split_parts(files, rule, size)), rule, "text", False, 0)


def in_parts(file: InputFile, rule: DocumentRule, size: int) -> tuple[list[Document], Skips]:
    """Each part by itself, its counts sent through JSON, merged in order."""
    found: list[Document] = []
    skips = Skips()
    corpus = pickle.loads(pickle.dumps(corpus_of([file], rule, size)))
    for number in range(len(corpus.parts)):
        own = Skips()
        found += corpus.documents(number, own, ByteCounter())
        skips.merge(from_dict(Skips, json.loads(json.dumps(to_dict(own)))))
    return found, skips


def whole(file: InputFile, rule: DocumentRule, size: int) -> tuple[list[Document], Skips]:
    skips = Skips()
    return list(read_documents([file], rule, "text", skips, ByteCounter())), skips


def outcome(read: Callable[..., tuple[list[Document], Skips]], *asked: object) -> tuple[object, ...]:
    """What is read and skipped, or what is refused: a part that is the whole file is judged where it is read."""
    try:
        found, skips = read(*asked)
        skips.evaluate()
    except UserError as error:
        return (str(error),)
    return found, skips.counts, skips.first


@QUIET
@given(LINES, st.booleans(), st.integers(1, 120), st.sampled_from(["line", "blank-line", "file"]), st.booleans())
def test_parts_of_text_hold_what_the_whole_holds(
    tmp_path: Path, lines: list[bytes], ended: bool, size: int, kind: str, sentences: bool
) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"\n".join(lines) + b"\n" * ended)
    rule = DocumentRule(kind, sentences and kind == "blank-line")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(inputs.LONGEST_LINE, TEXT, 40)
        patch.setattr(documents, "LARGEST_DOCUMENT", 60)
        (file,) = find_files([path])
        assert outcome(in_parts, file, rule, size) == outcome(whole, file, rule, size)


RECORD = st.one_of(
    st.sampled_from(
        [b"", b"{oops", b"[]", b'{"text": 1}', b'{"title": 1}', b"\xff", b'{"text": "' + b"x " * 60 + b'"}']
    ),
    st.text(max_size=8).map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode("utf-8", "replace")),
)


@QUIET
@given(st.lists(RECORD, max_size=30), st.integers(1, 100), st.sampled_from([b"\n", b"\r\n"]))
def test_parts_of_records_hold_what_the_whole_holds(
    tmp_path: Path, records: list[bytes], size: int, end: bytes
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(end.join([b'{"text": "first"}', *records]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(inputs.LONGEST_LINE, RECORDS, 100)
        (file,) = find_files([path])
        rule = DocumentRule("line")
        assert outcome(in_parts, file, rule, size) == outcome(whole, file, rule, size)


def test_a_file_is_cut_and_every_part_has_its_documents(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("nine char\n" * 100)
    (tmp_path / "r.jsonl").write_text('{"text": "some"}\n' * 100)
    (tmp_path / "p.html").write_text("word " * 1000)
    files = find_files([tmp_path])
    corpus = corpus_of(files, DocumentRule("line"), 300)
    assert [(part.file.path.name, part.start, part.stop) for (part,) in corpus.parts] == [
        ("p.html", 0, None),
        *[("r.jsonl", start, start + 300 if start < 1500 else None) for start in range(0, 1700, 300)],
        *[("t.txt", start, start + 300 if start < 900 else None) for start in range(0, 1000, 300)],
    ]
    counts = [sum(1 for _ in corpus.documents(number, Skips(), ByteCounter())) for number in range(len(corpus.parts))]
    assert counts[1:] == [18, 18, 17, 18, 18, 11, 30, 30, 30, 10]
    assert len(split_parts(files, DocumentRule("file"), 300)) == 1 + 6 + 1


def test_bad_lines_are_counted_over_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"fine\n" * 500 + b"caf\xe9\n" * 11 + b"fine\n" * 700)
    found, skips = in_parts(*find_files([tmp_path / "t.txt"]), DocumentRule("line"), 100)
    skips.evaluate()
    assert len(found) == 1200 and skips.counts == {"undecodable lines": 11}
    assert skips.first["undecodable lines"].endswith("t.txt' line 501")
    (tmp_path / "t.txt").write_bytes(b"fine\n" * 500 + b"caf\xe9\n" * 11)
    _, skips = in_parts(*find_files([tmp_path / "t.txt"]), DocumentRule("line"), 100)
    with pytest.raises(UserError, match=r"has 11 undecodable lines of 511, the first in line 501\. Convert"):
        skips.evaluate()


def test_a_binary_part_says_where(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"fine\n" * 100 + b"\0\n")
    with pytest.raises(UserError, match=r"is binary, not text \(line 21 after byte 400\)"):
        in_parts(*find_files([tmp_path / "t.txt"]), DocumentRule("line"), 200)


def test_row_groups_are_parts(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [None if number == 37 else f"text {number}" for number in range(100)]
    parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "p.parquet", row_group_size=10)
    (file,) = find_files([tmp_path / "p.parquet"])
    rule = DocumentRule("line")
    spans = [(part.start, part.stop) for part in split_parts([file], rule, 1)]
    assert spans == [(number, number + 1) for number in range(9)] + [(9, None)]
    for size in (1, 200, 1 << 20):
        found, skips = in_parts(file, rule, size)
        assert [document.text for document in found] == [text for text in texts if text]
        assert skips.first == {"records without text": f"'{file.path}' row 38"}
