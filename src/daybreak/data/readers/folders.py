"""What lies in a folder of texts, and what of it is no text."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from daybreak.core.terminal import say

KINDS_SHOWN = 5


def files_inside(folder: str) -> list[str]:
    """Files that are not hidden, in the order of their paths; links to folders are not followed.

    Raises:
        OSError: a folder cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise error

    found: list[str] = []
    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(root, name) for name in names if not name.startswith(".")]
    return sorted(found, key=lambda name: name.split(os.sep))


def say_left_out(given: str, files: Iterable[str]) -> None:
    """Say how many files of ``given`` are not read, by the endings of their names; nothing where there are none."""
    kinds = Counter(os.path.splitext(file)[1].lower() or "no ending" for file in files)
    if kinds:
        shown = [f"{kind} {count:,}" for kind, count in kinds.most_common(KINDS_SHOWN)]
        more = ["..."] if len(kinds) > KINDS_SHOWN else []
        say(f"Not read in '{given}', as of no known kind: {kinds.total():,} files ({', '.join(shown + more)}).")
