"""Standard input as a file: everything reads the text at least twice, and a pipe can be read once."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import IO

from daybreak.core.errors import UserError

COPIED = 1 << 20
"""Bytes copied at a time, and looked at to tell records from text."""


def spool_stdin(folder: Path, stream: IO[bytes] | None = None) -> Path:
    """Copy standard input to a file in ``folder``, to be handed to ``find_files``; only the disk bounds its size.

    JSON objects in the first line make it records (.jsonl), anything else text (.txt). The name holds a hash of the
    content, so that the same text again is known to be the same data.

    Args:
        folder: exists.
        stream: read to its end in place of standard input.

    Raises:
        UserError: there is no standard input, or the disk is full.
    """
    source: IO[bytes] | None = stream or (sys.stdin.buffer if sys.stdin else None)
    if source is None:
        raise UserError("There is no standard input.", "Pipe text into the program, or name files.")
    digest = hashlib.blake2b(digest_size=16)
    temporary = folder / f".stdin.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            head = data = source.read(COPIED)
            while data:
                digest.update(data)
                file.write(data)
                data = source.read(COPIED)
        final = folder / f"stdin-{digest.hexdigest()}{'.jsonl' if _holds_records(head) else '.txt'}"
        os.replace(temporary, final)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"The disk of '{folder}' is full: standard input does not fit on it.",
            "Free some space, or choose another folder with --out.",
        ) from None
    return final


def _holds_records(head: bytes) -> bool:
    """Whether the first line that is not blank is a JSON object, or begins like one that is longer than ``head``."""
    lines = head.removeprefix(b"\xef\xbb\xbf").lstrip().splitlines(keepends=True)
    if not lines or not lines[0].startswith(b"{"):
        return False
    if len(lines) == 1 and not lines[0].endswith(b"\n") and len(head) >= COPIED:
        return lines[0][1:].lstrip().startswith(b'"')
    try:
        return isinstance(json.loads(lines[0]), dict)
    except (ValueError, RecursionError):
        return False
