from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.data.readers import documents
from daybreak.data.readers.documents import (
    Document,
    DocumentRule,
    Skips,
    choose_rule,
    cut_documents,
    read_documents,
    warn_of_single_documents,
)
from daybreak.data.readers.inputs import ByteCounter, find_files


def read(path: Path, rule: str = "auto", field: str = "text", skips: Skips | None = None) -> list[Document]:
    files = find_files([path])
    return list(read_documents(files, choose_rule(files, rule), field, skips or Skips(), ByteCounter()))


def texts(path: Path, rule: str = "auto", field: str = "text") -> list[str]:
    return [document.text for document in read(path, rule, field)]


@pytest.fixture
def poem(tmp_path: Path) -> Path:
    path = tmp_path / "poem.txt"
    path.write_text("A first line.\nIts second.\n\n \nAnother  text.\n\n")
    return path


def test_the_three_rules(poem: Path) -> None:
    assert texts(poem, "file") == ["A first line.\nIts second.\n\n\nAnother text."]
    assert texts(poem, "line") == ["A first line.", "Its second.", "Another text."]
    assert texts(poem, "blank-line") == ["A first line.\nIts second.", "Another text."]


def test_lines_are_sentences_if_they_end_like_sentences(poem: Path, tmp_path: Path) -> None:
    assert [document.sentences for document in read(poem)] == [("A first line.", "Its second."), ("Another text.",)]
    wrapped = tmp_path / "t.txt"
    wrapped.write_text("A text that goes\non for some lines\nand then ends.\n\nAnother one that\nis wrapped.\n")
    assert [document.sentences for document in read(wrapped)] == [None, None]
    (hindi := tmp_path / "h.txt").write_text("वह घर है।\nवह नदी है।\n\nवह कौन है\uff1f\n", "utf-8")
    assert [document.sentences for document in read(hindi)] == [("वह घर है।", "वह नदी है।"), ("वह कौन है\uff1f",)]


def test_the_rule_is_chosen_from_the_text(tmp_path: Path, poem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lines.txt").write_text("\n \none\ntwo\nthree\n\n\n")  # blank lines at the ends part nothing
    assert choose_rule(find_files([poem]), "auto") == DocumentRule("blank-line", sentences=True)
    assert choose_rule(find_files([tmp_path / "lines.txt"]), "auto") == DocumentRule("line")
    assert choose_rule(find_files([tmp_path]), "auto").kind == "blank-line", "a few files are not one document each"
    monkeypatch.setattr(documents, "MANY_FILES", 2)
    assert choose_rule(find_files([tmp_path]), "auto") == DocumentRule("file")
    monkeypatch.setattr(documents, "WHOLE_FILE_BYTES", 40)
    (tmp_path / "lines.txt.gz").write_bytes(gzip.compress((tmp_path / "lines.txt").read_bytes()))
    assert choose_rule(find_files([poem, tmp_path / "lines.txt"]), "auto").kind == "file"
    assert choose_rule(find_files([poem, tmp_path / "lines.txt.gz"]), "auto").kind == "blank-line", "compressed sizes"
    monkeypatch.setattr(documents, "WHOLE_FILE_BYTES", 20)  # many large files are not one document each
    assert choose_rule(find_files([poem, tmp_path / "lines.txt"]), "auto").kind == "blank-line"
    assert choose_rule(find_files([tmp_path / "lines.txt"] * 2), "auto").kind == "line"


def test_a_file_that_becomes_one_document_is_named(
    tmp_path: Path, poem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blank lines in one file separate the documents of all."""
    (tmp_path / "b.txt").write_text("a line\n" * 200)
    (tmp_path / "few.txt").write_text("a line\n" * 20)
    files = find_files([poem, tmp_path / "b.txt", tmp_path / "few.txt"])
    warn_of_single_documents(files, choose_rule(files, "auto"))
    assert f"Warning: '{tmp_path / 'b.txt'}' has no blank lines" in (said := capsys.readouterr().out)
    assert "few.txt" not in said and len(read(tmp_path / "b.txt")) == 200
    warn_of_single_documents(files[1:], choose_rule(files[1:], "auto"))
    assert capsys.readouterr().out == ""


def test_an_unknown_rule_gets_the_nearest_name(poem: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'blank-line'"):
        read(poem, "blank_lines")


def test_a_long_document_is_cut_at_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LARGEST_DOCUMENT", 100)
    (tmp_path / "t.txt").write_text("nine char\n" * 35)
    found = texts(tmp_path / "t.txt", "file")
    assert [len(text) for text in found] == [99, 99, 99, 49]


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = [
        {"text": "caf\u00e9\n\nau lait"},
        {"text": " "},
        {"text": None},
        {"other": 1},
        {"text": "\ud83d\ude00 \ud800x"},
    ]
    path.write_text("\ufeff" + "\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    skips = Skips()
    assert [document.text for document in read(path, skips=skips)] == ["caf\u00e9\n\nau lait", "\U0001f600 x"]
    assert skips.counts == {"records without text": 3}
    assert skips.first["records without text"].endswith("r.jsonl' line 2")


def test_a_missing_field_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"title": "a", "content": "b"}\n')
    with pytest.raises(UserError, match=r"line 1 has no field 'contents', but: content, title. Did you mean 'content'"):
        texts(tmp_path / "r.jsonl", field="contents")
    assert texts(tmp_path / "r.jsonl", field="content") == ["b"]


def test_a_few_malformed_records_are_skipped_and_counted(tmp_path: Path) -> None:
    good = '{"text": "fine"}\n' * 600
    bad = b'{"text": "cut of\n["no object"]\n{"text": "\xff"}\n'
    (tmp_path / "r.jsonl").write_bytes(good.encode() + bad + good.encode())
    skips = Skips()
    assert len(read(tmp_path / "r.jsonl", skips=skips)) == 1200
    assert skips.counts == {"malformed lines": 3}
    assert skips.first["malformed lines"].endswith("r.jsonl' line 601")


@pytest.mark.parametrize(("good", "bad"), [(1000, 11), (0, 3)])
def test_many_malformed_records_are_refused_with_file_and_line(tmp_path: Path, good: int, bad: int) -> None:
    (tmp_path / "r.jsonl").write_text('{"text": "fine"}\n' * good + "{oops\n" * bad)
    message = rf"r.jsonl' has {bad} malformed lines of {good + bad}, the first in line {good + 1}: .*Fix these lines"
    with pytest.raises(UserError, match=message):
        read(tmp_path / "r.jsonl")


def test_ten_bad_lines_are_few(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"fine\n" * 20 + b"caf\xe9\n" * 10)
    skips = Skips()
    assert len(read(tmp_path / "t.txt", "line", skips=skips)) == 20
    assert skips.counts == {"undecodable lines": 10}


@pytest.mark.parametrize("rule", ["line", "file", "blank-line"])
def test_text_in_another_encoding_is_refused(tmp_path: Path, rule: str) -> None:
    (tmp_path / "t.txt").write_bytes(b"fine\n" * 900 + "caf\u00e9\n".encode("latin-1") * 100)
    with pytest.raises(
        UserError, match=r"100 undecodable lines of 1000, the first in line 901. Convert the file to UTF-8 .*iconv"
    ):
        read(tmp_path / "t.txt", rule)


def test_documents_are_cut_into_chunks_and_the_rest_is_counted() -> None:
    text = " ".join(f"word{number:03d}" for number in range(300))  # 2399 characters
    whole, short, long = "w " * 450 + "w", "w" * 199, "w" * 1001
    skips = Skips()
    given = [Document(each, "here") for each in (text, whole, short, long)]
    chunks = list(cut_documents(given, 820, skips))
    assert [len(chunk.text) for chunk in chunks] == [815, 815, 767, 901]
    assert " ".join(chunk.text for chunk in chunks[:3]) == text and chunks[3].text == whole
    assert skips.counts == {"chunks under 200 characters": 1, "chunks over 1000 characters": 1}
    assert skips.first["chunks over 1000 characters"] == "'here'"
    assert list(cut_documents(chunks, 820, Skips())) == chunks
