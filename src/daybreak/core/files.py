"""Writing files so that a kill, a full disk or a second reader never meets half of one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import from_dict, to_dict


def make_folder(path: Path) -> Path:
    """Create ``path`` with its parents and check that we may write in it.

    Raises:
        UserError: the path is a file, or cannot be created or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"'{path}' is not a folder.", "Choose another folder with --out.") from None
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO).lower()
        raise UserError(f"Cannot write in '{path}': {why}.", "Choose another folder with --out.") from None
    return path


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in one step: readers see the old file or the new one, never half.

    Raises:
        UserError: the disk is full or refuses.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(
            f"'{path}' cannot be written ({reason(error)}).", "Free disk space or mend the permissions, and go on."
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write a dataclass or plain value as indented JSON, in one step."""
    write_text(path, json.dumps(to_dict(value), indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, cls: Any = None) -> Any:
    """Read JSON; with ``cls``, rebuild that dataclass.

    Raises:
        UserError: the file, which is named, is missing, is no JSON, or does not fit ``cls``.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no '{path.name}' in '{path.parent}'.", "Check the path.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"'{path}' cannot be read as JSON: {error}.", "Restore the file or start afresh.") from None
    if cls is None:
        return value
    try:
        return from_dict(cls, value)
    except UserError as error:
        raise type(error)(f"'{path}': {error.sentence}", error.remedy) from None


def read_json_lines(path: Path, *, skip_damaged: bool = False) -> Iterator[Any]:
    """Yield each complete line of a .jsonl file, nothing where there is none; a last line torn by a kill is left out.

    Args:
        skip_damaged: leave out lines that are no JSON object, for records on which nothing else depends.

    Raises:
        UserError: a line, which is named, is no JSON.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = json.loads(line)
            except ValueError as error:
                if skip_damaged:
                    continue
                raise UserError(
                    f"'{path}' is damaged in line {number}: {reason(error)}.",
                    "Restore the file, or start the run afresh.",
                ) from None
            if not skip_damaged or isinstance(value, dict):
                yield value


def replace_folder(new: Path, final: Path) -> None:
    """Move the finished folder ``new`` to ``final`` by renames; an older ``final`` gives way and is removed."""
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.replace(final, old)
    os.replace(new, final)
    shutil.rmtree(old, ignore_errors=True)
