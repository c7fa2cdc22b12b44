from __future__ import annotations

import io
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.data.readers import inputs
from daybreak.data.readers.documents import DocumentRule, Skips, read_documents
from daybreak.data.readers.inputs import RECORDS, TEXT, ByteCounter, find_files, spool_stdin


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (b"", TEXT),
        (b"plain\ntext\n", TEXT),
        (b'\n\xef\xbb\xbf{"text": "a"}\n', TEXT),
        (b'\xef\xbb\xbf\n {"text": "a"}\n{"text": "b"}\n', RECORDS),
        (b"{an aside} in braces\n", TEXT),
        (b'["a list"]\n', TEXT),
        (b'{"text": "' + b"x" * 400 + b'"}\n', RECORDS),
        (b"{" + b"x" * 400, TEXT),
        (b"{" * 500, TEXT),
    ],
)
def test_the_form_is_found_and_nothing_is_lost(
    tmp_path: Path, text: bytes, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "COPIED", 200)
    path = spool_stdin(tmp_path, io.BytesIO(text))
    assert path.read_bytes() == text and list(tmp_path.iterdir()) == [path]
    (file,) = find_files(["-", "-"], path)
    assert (file.given, file.name, file.form, file.bytes) == ("-", "standard input", form, len(text))


def test_the_same_text_is_the_same_data(tmp_path: Path) -> None:
    states = []
    for text in (b"one\n", b"one\n", b"two\n"):
        (tmp_path / f"{len(states)}").mkdir()
        (file,) = find_files(["-"], spool_stdin(tmp_path / f"{len(states)}", io.BytesIO(text)))
        states.append((file.bytes, file.modified, file.revision))
    assert states[0] == states[1] != states[2]
    assert len(states[0][2]) == 32


def test_errors_speak_of_standard_input(tmp_path: Path) -> None:
    files = find_files(["-"], spool_stdin(tmp_path, io.BytesIO(b"\0")))
    with pytest.raises(UserError, match="'standard input' is binary"):
        list(read_documents(files, DocumentRule("line"), "text", Skips(), ByteCounter()))


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="is full: standard input does not fit"):
        spool_stdin(tmp_path, Full())
    assert list(tmp_path.iterdir()) == []


def test_no_standard_input_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UserError, match="There is no standard input"):
        spool_stdin(tmp_path)
