from __future__ import annotations

import bz2
import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from daybreak.core.errors import UserError
from daybreak.data.readers import inputs
from daybreak.data.readers.inputs import (
    DUMP,
    PAGE,
    PARQUET,
    RECORDS,
    TABLE,
    TEXT,
    TOO_LONG,
    ByteCounter,
    find_files,
    read_lines,
)

TEXT_BYTES = b"".join(b"line %d of a text that compresses\n" % number for number in range(5_000))


COMPRESS = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress}
suffixes = pytest.mark.parametrize("suffix", COMPRESS)


def packed(path: Path, data: bytes = TEXT_BYTES) -> Path:
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(data))
    return path


def lines(path: Path) -> list[bytes]:
    return list(read_lines(find_files([path])[0]))


def test_files_folders_and_globs_are_found_sorted_and_once(tmp_path: Path) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    for name in ("in/b.txt", "in/a.md.gz", "in/deep/c.jsonl.zst", "in/.hidden.txt", "in/picture.png", "z.TXT"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "in/.git").mkdir()
    (tmp_path / "in/.git/d.txt").write_bytes(b"x")
    files = find_files([tmp_path / "z.TXT", tmp_path / "in", str(tmp_path / "**/*.txt")])
    assert [str(file.path.relative_to(tmp_path)) for file in files] == [
        "z.TXT",
        "in/a.md.gz",
        "in/b.txt",
        "in/deep/c.jsonl.zst",
    ]
    assert [file.form for file in files] == [TEXT, TEXT, TEXT, RECORDS]
    assert [file.compression for file in files] == ["", ".gz", "", ".zst"]


def test_what_a_folder_holds_beside_texts_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "a.txt b.PDF c.pdf d.docx e.rst f.jpg g.png h.exe Makefile .hidden .DS_Store data.xml".split()
    for name in names:
        (tmp_path / name).write_bytes(b"<root/>")
    assert [file.path.name for file in find_files([tmp_path])] == ["a.txt"]
    assert f"Not read in '{tmp_path}': 9 files (.pdf 2, " in capsys.readouterr().out
    find_files([f"{tmp_path}/**"])  # matches the folders and each file in them
    assert f"Not read in '{tmp_path}/**': 9 files (.pdf 2, " in capsys.readouterr().out
    find_files([tmp_path / "a.txt"])
    find_files([str(tmp_path / "*.txt")])
    with pytest.raises(UserError, match="holds no text files"):
        find_files([str(tmp_path / "*.pdf")])
    assert capsys.readouterr().out == ""


def test_a_broken_link_beside_texts_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "moved.txt").symlink_to("elsewhere.txt")
    assert [file.path.name for file in find_files([tmp_path])] == ["a.txt"]
    assert capsys.readouterr().out == f"Not read in '{tmp_path}': 1 files (broken link 1).\n"


def test_runs_and_prepared_data_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run in the folder of its corpus would change the corpus, so that it could not be resumed."""
    run, data, other = tmp_path / "runs" / "a", tmp_path / "data", tmp_path / "more"
    for folder in (run / "stacks", data / "tokenizer", other):
        folder.mkdir(parents=True)
    for path in (
        tmp_path / "a.txt", run / "recipe.json", run / "environment.json", run / "metrics.jsonl",
        run / "stacks" / "rank-0.txt", data / "manifest.json", data / "unigram.bin", data / "x.txt",
        other / "manifest.json", other / "b.txt",
    ):  # fmt: skip
        path.write_text("text\n")
    assert [file.path.name for file in find_files([tmp_path])] == ["a.txt", "b.txt"]
    said = capsys.readouterr().out
    assert f"'{run}' was made by Daybreak." in said and f"'{data}' was made by Daybreak." in said
    assert [file.path.name for file in find_files([run / "metrics.jsonl"])] == ["metrics.jsonl"], "named"


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz", "t.txt.zst", "t.txt.bz2"])
def test_lines_come_back_as_written_and_every_byte_is_metered(tmp_path: Path, name: str) -> None:
    path = packed(tmp_path / name)
    byte_counter = ByteCounter()
    assert b"".join(read_lines(find_files([path])[0], byte_counter)) == TEXT_BYTES
    assert byte_counter.bytes == path.stat().st_size


@suffixes
def test_all_frames_are_read_and_damage_is_no_end_of_file(tmp_path: Path, suffix: str) -> None:
    path, compress = tmp_path / f"t.txt{suffix}", COMPRESS[suffix]
    path.write_bytes(compress(b"one\n") + compress(b"two\n") + compress(b""))
    assert lines(path) == [b"one\n", b"two\n"]
    whole = compress(TEXT_BYTES)
    damaged = [compress(b"one\n") + b"??" + compress(b"two\n")[2:], b"plain text after all\n"]
    for data in damaged + [whole[: int(len(whole) * fraction)] for fraction in (0.02, 0.5, 0.99)]:
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"damaged or cut short.*Fetch or compress it again"):
            lines(path)


@suffixes
@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_a_bomb_is_read_in_bounded_memory(
    tmp_path: Path, suffix: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(inputs.LONGEST_LINE, TEXT, 1 << 16)
    monkeypatch.setitem(inputs.LONGEST_LINE, RECORDS, 1 << 16)
    size = 48 << 20
    path = tmp_path / f"bomb.{form}{suffix}"
    path.write_bytes(COMPRESS[suffix](bytes(size)))
    (file,) = find_files([path])
    tracemalloc.start()
    found = 0
    for line in read_lines(file):
        found += len(line)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == (size if form == "txt" else len(TOO_LONG))
    assert peak < 40 << 20


def test_text_without_line_breaks_is_cut_at_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inputs.LONGEST_LINE, TEXT, 100)
    data = b"word " * 1000 + b"x" * 250
    (tmp_path / "t.txt").write_bytes(data)
    found = lines(tmp_path / "t.txt")
    assert b"".join(found) == data
    assert max(map(len, found)) <= 100
    assert all(line.endswith(b" ") for line in found[:50])
    text = "\u4f60\u597d\U0001f600\u00e9" * 200  # without spaces: between characters
    (tmp_path / "t.txt").write_text(text, "utf-8")
    assert "".join(line.decode() for line in lines(tmp_path / "t.txt")) == text


def test_a_record_that_is_too_long_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inputs.LONGEST_LINE, RECORDS, 100)
    (tmp_path / "r.jsonl").write_bytes(b"{}\n" + b"x " * 200_000 + b"\n[]\n" + b"y" * 101)
    assert lines(tmp_path / "r.jsonl") == [b"{}\n", TOO_LONG, b"[]\n", TOO_LONG]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", ["t.txt", "t.jsonl", "t.csv"])
def test_wide_text_is_refused_by_name(tmp_path: Path, name: str, encoding: str) -> None:
    mark = "\ufeff" if encoding.endswith("be") else ""
    (tmp_path / name).write_bytes(f"{mark}text\nline\n".encode(encoding))
    told = encoding[:6].upper()
    with pytest.raises(UserError, match=rf"is {told} text, not UTF-8. Convert it \(iconv -f {told} -t UTF-8\)"):
        lines(tmp_path / name)


def test_every_kind_is_known_by_its_suffix(tmp_path: Path) -> None:
    kinds = {
        "a.csv": TABLE,
        "b.TSV.gz": TABLE,
        "c.parquet": PARQUET,
        "d.html": PAGE,
        "e.htm.zst": PAGE,
        "f.xml.bz2": DUMP,
        "g.txt.bz2": TEXT,
    }
    for name in kinds:
        packed(tmp_path / name, b"<mediawiki>")
    (tmp_path / "other.xml").write_text("<project/>")
    (tmp_path / "c.parquet.gz").write_text("")
    assert {file.path.name: file.form for file in find_files([tmp_path])} == kinds
    assert find_files([tmp_path / "other.xml"])[0].form == DUMP  # whoever names it is told that it is none


def test_links_folders_and_pipes_with_the_names_of_files(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "x.txt").mkdir(parents=True)
    (folder / "x.txt/y.txt").write_text("a")
    (folder / "loop").symlink_to(folder)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "gone.txt").symlink_to(folder / "nowhere.txt")
    (folder / "again.txt").symlink_to(folder / "x.txt/y.txt")
    os.mkfifo(folder / "pipe.txt")
    for given in (folder, folder / "x.txt", tmp_path / "*", folder / "*.txt"):
        assert [file.path.resolve() for file in find_files([given])] == [folder / "x.txt/y.txt"]
    for name in ("self.txt", "gone.txt"):
        with pytest.raises(UserError, match="There is no"):
            find_files([folder / name])
    with pytest.raises(UserError, match="is a pipe or a device, which can be read only once") as refused:
        find_files([folder / "pipe.txt"])
    assert "prepare - <" in refused.value.remedy


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system has no /dev/fd")
def test_process_substitution_gets_the_remedy() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer), pytest.raises(UserError, match="can be read only once"):
        find_files([f"/dev/fd/{reader}"])


def test_what_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.txt").write_text("a")
    (file,) = find_files([tmp_path / "t.txt"])
    (tmp_path / "t.txt").unlink()
    with pytest.raises(UserError, match=r"t.txt' cannot be read: no such file or directory. Fix that"):
        list(read_lines(file))

    def closed(path: object, *rest: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(UserError, match=r"cannot be read: permission denied. Check the path."):
        find_files([tmp_path])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.txt", "There is no '.*nowhere.txt'. Check the path."),
        ("*.nothing", "matches nothing. Check it"),
        ("table.xls", r"unknown type. Give .txt, .md, .jsonl, .csv, .tsv, .html and Wikipedia's .xml"),
        ("rows.parquet.gz", "unknown type"),
        ("empty", "holds no text files"),
        ("*.xls", "holds no text files"),
        ("-", r"Standard input \('-'\) cannot be read here"),
        ("x" * 5000, "cannot be read: file name too long"),
    ],
)
def test_inputs_that_cannot_be_used(tmp_path: Path, given: str, message: str) -> None:
    (tmp_path / "table.xls").write_text("a,b")
    (tmp_path / "rows.parquet.gz").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        find_files([given if given == "-" else tmp_path / given])
    with pytest.raises(UserError, match="No text was given"):
        find_files([])
