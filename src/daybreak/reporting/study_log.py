"""A log of what was tried, such as docs/log.md: a study puts its result above the other entries."""

from __future__ import annotations

import os
from pathlib import Path

from daybreak.base.errors import UserError
from daybreak.base.files import write_text


def check_log(log: Path | None) -> None:
    """Raise UserError where ``log`` could not be written in the end: that is said at the beginning."""
    if log is None:
        return
    place = log if log.exists() else log.absolute().parent
    if (log.exists() and not log.is_file()) or not place.exists() or not os.access(place, os.W_OK):
        raise UserError(f"'{log}' cannot be written.", "Name a Markdown file with --log, in a folder that is there.")


def put_on_top(log: Path, entry: str) -> None:
    """Write ``entry``, whose first line is its heading, above the other entries of ``log``."""
    write_text(log, with_entry(log.read_text(encoding="utf-8") if log.exists() else "# Log", entry))


def with_entry(log: str, entry: str) -> str:
    """The text of a log with ``entry`` above its other entries; one of the same heading gives way to it."""
    title = entry.splitlines()[0]
    lines, kept, skipping = log.splitlines(), [], False
    for line in lines:
        if line.startswith("## ") or line.startswith("# "):
            skipping = line == title
        if not skipping:
            kept.append(line)
    place = next((number for number, line in enumerate(kept) if line.startswith("## ")), len(kept))
    before, after = "\n".join(kept[:place]).rstrip(), "\n".join(kept[place:]).strip()
    return "\n\n".join(filter(None, [before, entry.strip(), after])) + "\n"
