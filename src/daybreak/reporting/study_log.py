"""A log of what was tried, such as docs/log.md: a study puts its result above the other entries."""

from __future__ import annotations

import os
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import write_text


def check_log(log: Path | None) -> None:
    """Raise UserError where ``log`` could not be written in the end: that is said at the beginning."""
    if log is None:
        return
    folder = log.absolute().parent
    if (log.exists() and not log.is_file()) or not folder.exists() or not os.access(folder, os.W_OK):
        raise UserError(f"'{log}' cannot be written.", "Name a Markdown file with --log, in a folder that is there.")
    try:
        _read(log)
    except (OSError, UnicodeDecodeError):
        raise UserError(f"'{log}' cannot be read as text in UTF-8.", "Name a Markdown file with --log.") from None


def put_on_top(log: Path, entry: str) -> None:
    """Write ``entry``, whose first line is its heading, above the other entries of ``log``."""
    write_text(log, with_entry(_read(log), entry))


def _read(log: Path) -> str:
    return log.read_text(encoding="utf-8") if log.exists() else "# Log"


def with_entry(log: str, entry: str) -> str:
    """The text of a log with ``entry`` above its other entries; one of the same heading gives way to it."""
    title = entry.splitlines()[0]
    kept: list[str] = []
    place: int | None = None
    skipping = fenced = False
    for line in log.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if line.startswith(("# ", "## ")) and not fenced:
            skipping = line == title
            if line.startswith("## ") and not skipping and place is None:
                place = len(kept)
        if not skipping:
            kept.append(line)
    place = len(kept) if place is None else place
    before, after = "\n".join(kept[:place]).rstrip(), "\n".join(kept[place:]).strip()
    return "\n\n".join(filter(None, [before, entry.strip(), after])) + "\n"
