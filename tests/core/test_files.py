from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines, refuse_link_out, reserve, write_json
from daybreak.schemas.run import Parity, SpecialIds


@dataclass(frozen=True)
class Positive:
    bytes: str

    def __post_init__(self) -> None:
        if len(self.bytes) < 2:
            raise ValueError("too short")


@pytest.mark.parametrize(
    ("text", "cls", "output"),
    [
        ('{"pad": 0, "mask": "4"}', SpecialIds, "The field 'mask' holds '4', not int."),
        ('{"pad": 0, "msk": 4}', SpecialIds, "Unknown field 'msk'. Did you mean 'mask'?"),
        ('{"passed": true}', Parity, "The field 'checks' is missing."),
        ("{}", list[SpecialIds], "The content should be a list."),
        ("[]", SpecialIds, "The content should be an object."),
        ("[3]", list[SpecialIds], "The field '[0]' should be an object."),
        (f"[1{'0' * 400}]", list[float], "The field '[0]' holds too large a number."),
        ('{"bytes": "x"}', Positive, "The content is invalid (too short)."),
    ],
)
def test_what_does_not_fit_is_reported_with_the_file(text: str, cls: Any, output: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_json(path, cls)
    assert caught.value.sentence == f"'{path}': {output}"


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (None, "There is no 'some.json' in"),
        (b"{torn", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"1" * 5000, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_reported_with_the_file(content: bytes | None, output: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=output) as caught:
        read_json(path)
    assert "some.json" in caught.value.sentence and str(tmp_path) in caught.value.sentence


def test_a_file_name_that_is_not_utf_8_is_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xc3\xa9.txt")
    write_json(tmp_path / "some.json", {name: [name]})
    assert read_json(tmp_path / "some.json") == {name: [name]}


def test_lines_are_read_until_the_one_that_a_kill_tore(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    assert list(read_json_lines(path)) == []
    path.write_text('{"step": 1}\n[2]\n{"st')
    assert list(read_json_lines(path)) == [{"step": 1}, [2]]
    for damage in (b"{torn\n", b"\xff\n", b"\0\0\0\n"):
        path.write_bytes(b'{"step": 1}\n' + damage + b'{"step": 2}\n')
        lines = read_json_lines(path)
        assert next(lines) == {"step": 1}
        with pytest.raises(UserError, match=r"some\.jsonl' is damaged in line 2: .*Restore the file"):
            next(lines)


def test_a_sparse_file_is_given_its_blocks_or_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to the map of a sparse file on a full disk is a bus error."""
    path = tmp_path / "mapped"
    np.memmap(path, np.uint8, "w+", shape=(1 << 20,))[3] = 7
    assert path.stat().st_blocks * 512 < 1 << 20
    reserve(path)
    assert path.stat().st_blocks * 512 >= 1 << 20 and path.read_bytes() == bytes([0, 0, 0, 7]) + bytes((1 << 20) - 4)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        reserve(path)


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "inside.txt").touch()
    (folder / "near").symlink_to("inside.txt")
    (folder / "far").symlink_to(outside)
    (tmp_path / "named").symlink_to(folder)  # the folder itself may be a link
    for name in ("inside.txt", "near", "absent"):
        refuse_link_out(tmp_path / "named", tmp_path / "named" / name)
    for name in ("far", "far/absent", "../outside"):
        with pytest.raises(UserError, match="is a link that leads out of"):
            refuse_link_out(folder, folder / name)
