from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import zstandard

from daybreak.base.errors import UserError
from daybreak.data import inputs
from daybreak.data.inputs import RECORDS, TEXT, Meter, find_files, read_lines

TEXT_BYTES = b"".join(b"line %d of a text that compresses\n" % number for number in range(20_000))


def packed(path: Path, data: bytes = TEXT_BYTES) -> Path:
    if path.suffix == ".gz":
        data = gzip.compress(data)
    if path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


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


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz", "t.txt.zst"])
def test_lines_come_back_as_written_and_every_byte_is_metered(tmp_path: Path, name: str) -> None:
    path = packed(tmp_path / name)
    meter = Meter()
    assert b"".join(read_lines(find_files([path])[0], meter)) == TEXT_BYTES
    assert meter.bytes == path.stat().st_size


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_several_frames_in_one_file_are_read_to_the_end(tmp_path: Path, compress) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / ("t.txt.gz" if compress is gzip.compress else "t.txt.zst")
    path.write_bytes(compress(b"one\n") + compress(b"two\n") + compress(b""))
    assert list(read_lines(find_files([path])[0])) == [b"one\n", b"two\n"]


@pytest.mark.parametrize("name", ["t.txt.gz", "t.txt.zst"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, share: float) -> None:
    path = packed(tmp_path / name)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(UserError, match=r"damaged or cut short.*Fetch or compress it again"):
        list(read_lines(find_files([path])[0]))


@pytest.mark.parametrize("name", ["t.txt.gz", "t.txt.zst"])
def test_a_file_that_only_claims_to_be_compressed_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"plain text after all\n")
    with pytest.raises(UserError, match="damaged"):
        list(read_lines(find_files([tmp_path / name])[0]))


def test_text_without_line_breaks_is_cut_at_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inputs.LONGEST_LINE, TEXT, 100)
    data = b"word " * 1000 + b"x" * 250
    (tmp_path / "t.txt").write_bytes(data)
    lines = list(read_lines(find_files([tmp_path / "t.txt"])[0]))
    assert b"".join(lines) == data
    assert max(map(len, lines)) <= 100
    assert all(line.endswith(b" ") for line in lines[:50])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.txt", "There is no '.*nowhere.txt'. Check the path."),
        ("*.nothing", "matches nothing. Check it"),
        ("table.csv", "unknown kind. Give .txt, .md and .jsonl"),
        ("empty", "holds no text files"),
        ("*.csv", "holds no text files"),
    ],
)
def test_inputs_that_cannot_be_used(tmp_path: Path, given: str, message: str) -> None:
    (tmp_path / "table.csv").write_text("a,b")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        find_files([tmp_path / given])


def test_no_inputs_at_all() -> None:
    with pytest.raises(UserError, match="No text was given"):
        find_files([])
