"""What the readers of text and of tasks both ask about the rows of a .csv file."""

from __future__ import annotations

import csv
from collections.abc import Sequence


def is_one_row(lines: Sequence[str], delimiter: str) -> bool:
    """Return whether strict CSV reads the lines as exactly one row.

    The csv module itself joins lines from a stray quote to the next one, which may hide many rows in one cell.
    """
    try:
        return len(list(csv.reader(lines, delimiter=delimiter, strict=True))) == 1
    except csv.Error:
        return False
