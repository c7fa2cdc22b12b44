"""Read text columns from .tsv, .csv, .jsonl and .parquet files.

Rows that lack a value are skipped and counted, as loaders of the original GLUE files do; a file with too many of them
is refused.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import nearest

FORMATS = ("tsv", "csv", "jsonl", "parquet")
SKIPPED_FRACTION = 0.1
"""A file with a larger fraction of unusable rows is refused."""
SHOWN, MANY = 60, 20
"""Most characters of a value, and most columns of a file, in a message."""

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Marks between cells. A header of one cell that has one of them is not separated as the format says."""

LONGEST_CELL = 16 << 20
"""Characters of a cell of a .csv file; the csv module alone allows 131,072."""

Columns = Sequence[str | int]
Numbered = Iterator[tuple[int, list[str | None]]]
"""(1-based line number, values of the requested columns, None for a missing one); an empty list for an empty line."""


@dataclass(frozen=True)
class TableRows:
    """The requested values of each usable row, in file order."""

    rows: list[tuple[str, ...]]
    lines: list[int]
    """Line numbers from 1; row numbers for .parquet."""
    skipped: int


def read_table(path: Path, columns: Columns, *, format: str, header: bool, whole: bool = False) -> TableRows:
    """Read ``columns`` (names, or 0-based numbers) of a table.

    Tab-separated files are read without quoting (GLUE has unbalanced quotes), .csv files with quoting. A .csv file may
    have another delimiter than the comma if its header then names the columns. A byte order mark is dropped. In .jsonl
    every line is an object whose keys are the columns. Values are normalized to Unicode NFC, as training text is.

    Args:
        whole: keep all rows, for a file whose rows are identified by number: an empty value is empty text, and a
            missing value is an error.

    Raises:
        UserError: the file is missing, not a table, lacks a column, or has too many unusable rows.
    """
    with readable(path):
        if format == "parquet":
            found = _gathered(_read_parquet(path, columns), whole, path, columns)
        else:
            with path.open(encoding="utf-8-sig", newline="" if format == "csv" else "\n") as file:
                if format == "jsonl":
                    lines = _read_objects(file, path, columns)
                else:
                    cells = split_csv(file, _delimiter(file, columns)) if format == "csv" else _split_tabs(file)
                    lines = _read_lines(cells, path, columns, header)
                found = _gathered(lines, whole, path, columns)
    if not found.rows and not found.skipped:
        raise UserError(f"'{path}' holds no rows.", "Give a file with at least one row.")
    check_skipped(
        len(found.rows),
        found.skipped,
        f"rows in '{path}' lack a value for one of {_listed(columns)}",
        "Check the columns, the format and whether the file has a header.",
    )
    return found


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors while a file is read into UserErrors, and let the csv module read cells of LONGEST_CELL."""
    csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))
    try:
        yield
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or reason(error)}.", "Check the path.") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"'{path}' is not UTF-8 text ({error.reason}).",
            "Convert it to UTF-8 (in Excel: save as CSV UTF-8; elsewhere: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW).",
        ) from None
    except csv.Error as error:
        raise UserError(f"'{path}' cannot be read as csv: {error}.", "Correct the file or name its format.") from None


def check_skipped(usable: int, skipped: int, fault: str, remedy: str) -> None:
    """Check that enough rows of a file are usable; one unusable row is always allowed.

    Args:
        fault: describes the unusable rows; follows "3 of the 9 " in the message, without a full stop.
    """
    total = usable + skipped
    if not usable or (skipped > 1 and skipped > SKIPPED_FRACTION * total):
        raise UserError(f"{skipped} of the {total} {fault}.", remedy)


def location(path: Path, number: int) -> str:
    """Return ``Line 3 of 'PATH'`` for a message; ``number`` is one of ``TableRows.lines``."""
    return f"{'Row' if path.suffix == '.parquet' else 'Line'} {number} of '{path}'"


def _gathered(lines: Numbered, whole: bool, path: Path, columns: Columns) -> TableRows:
    rows: list[tuple[str, ...]] = []
    numbers: list[int] = []
    skipped = empty_line = 0
    for number, row in lines:
        if not row:
            empty_line = empty_line or number
            continue
        if whole and (empty_line or None in row):
            raise UserError(
                f"{location(path, empty_line or number)} lacks a value for one of {_listed(columns)}, "
                "and every row of this file has to be answered.",
                "Complete it, or restore the file as it was published.",
            )
        there = tuple(nfc(cell) for cell in row if cell is not None and (whole or cell.strip()))
        if len(there) == len(row):
            rows.append(there)
            numbers.append(number)
        else:
            skipped += 1
    return TableRows(rows, numbers, skipped)


def nfc(text: str) -> str:
    """Return the text in Unicode NFC: an accented letter is then written as in the training text."""
    return unicodedata.normalize("NFC", text)


def shown(value: object) -> str:
    """Return a value in quotes for a message, on one line and shortened."""
    text = repr(str(value))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 4]}...{text[-1]}"


def _listed(names: Columns) -> str:
    return ", ".join([shown(name) for name in names[:MANY]] + (["..."] if len(names) > MANY else []))


def _delimiter(file: TextIO, columns: Columns) -> str:
    """Return the first of DELIMITERS with which the first line contains the named columns, else the comma."""
    head = next((line for line in file if line.strip()), "")
    file.seek(0)
    for mark in DELIMITERS:
        names = [name.strip() for name in next(csv.reader([head], delimiter=mark), [])]
        if all(column in names for column in columns if isinstance(column, str)):
            return mark
    return ","


def _split_tabs(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(file, start=1):
        line = line.rstrip("\r\n")
        yield number, line.split("\t") if line else []


def split_csv(file: TextIO, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield (1-based number of the last line, cells) of each row; an empty line has no cells.

    Raises:
        csv.Error: a cell is too long, or the file ends within a quoted one, which may hold many rows.
    """
    # A blank line after the end is a row of its own, unless it is within quotes.
    reader = csv.reader(itertools.chain(file, ["\n"]), delimiter=delimiter)
    values: list[str] = []
    for values in reader:
        yield reader.line_num, values
    if values:
        raise csv.Error("a quote is never closed")


def _read_lines(lines: Iterator[tuple[int, list[str]]], path: Path, columns: Columns, header: bool) -> Numbered:
    positions: list[int] = []
    for number, values in lines:
        if values and not positions:
            positions = _positions(path, columns, values, header)
            if header:
                continue
        yield number, [values[at] if at < len(values) else None for at in positions] if values else []


def _positions(path: Path, columns: Columns, first: list[str], header: bool) -> list[int]:
    """Return the 0-based positions of the columns, from the first line of the file."""
    names = [name.strip() for name in first]
    positions = []
    for column in columns:
        if isinstance(column, int):
            if column >= len(first):
                there = f"columns 0 to {len(first) - 1}"
                raise UserError(f"'{path}' has no column {column}: it holds {there}.", "Correct the column.")
            positions.append(column)
        elif not header:
            raise UserError(
                f"'{path}' is read without a header, so it has no column '{column}'.",
                "Give the column's 0-based number, or set header = true.",
            )
        elif column not in names:
            if len(names) == 1 and any(mark in names[0] for mark in DELIMITERS):
                raise UserError(
                    f"'{path}' holds the one column {shown(names[0])}, and no column {shown(column)}.",
                    "Separate the cells of a .csv file by commas, those of a .tsv file by tabs.",
                )
            raise _no_column(path, column, names)
        else:
            positions.append(names.index(column))
    return positions


def _no_column(path: Path, column: str | int, names: Sequence[str]) -> UserError:
    return UserError(
        f"'{path}' has no column {shown(column)}: it holds {_listed(names)}.{nearest(str(column), names)}",
        "Correct the column.",
    )


def _read_objects(file: TextIO, path: Path, columns: Columns) -> Numbered:
    names = [str(column) for column in columns]
    first = True
    for number, line in enumerate(file, start=1):
        if not line.strip():
            yield number, []
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            yield number, [None] * len(names)
            continue
        if first and (missing := [name for name in names if name not in value]):
            raise _no_column(path, missing[0], list(value))
        first = False
        yield number, [as_text(value.get(name)) for name in names]


def as_text(value: object) -> str | None:
    """Return a table's value as text; None for null, NaN, lists, objects and broken surrogates.

    Text is unchanged, numbers and booleans are as in JSON, and decimals and dates are as Python prints them.
    """
    if isinstance(value, str):
        # JSON can hold half of a surrogate pair, which tokenizers refuse.
        return value if value.isascii() or value.encode("utf-8", "ignore").decode() == value else None
    # Python's json reads and writes NaN, which is a missing value in tables by pandas.
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, (Decimal, date)):  # parquet has both
        return str(value)
    return json.dumps(value) if isinstance(value, (int, float)) else None


@contextmanager
def parquet_of(path: Path) -> Iterator[Any]:
    """Open a parquet file as pyarrow's ``ParquetFile``."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f"'{path}' is a parquet file, and pyarrow is not installed.", "Run: pip install pyarrow."
        ) from None
    with path.open("rb") as file:
        try:
            yield parquet.ParquetFile(file)
        except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
            raise UserError(
                f"'{path}' cannot be read as parquet ({reason(error)}).", "Download it again, or name its format."
            ) from None


def _read_parquet(path: Path, columns: Columns) -> Numbered:
    names = [str(column) for column in columns]
    with parquet_of(path) as table:
        there = table.schema_arrow.names
        if missing := [name for name in names if name not in there]:
            raise _no_column(path, missing[0], there)
        read = table.read(columns=names)
        values = [_values(read.column(name)) for name in names]
    for number, row in enumerate(zip(*values), start=1):
        yield number, [as_text(value) for value in row]


def _values(column: Any) -> list[Any]:
    """Return Python values; a float32 becomes the shortest equal number, 3.8 and not 3.799999952316284."""
    values = column.to_pylist()
    if str(column.type) != "float":
        return values
    return [None if value is None else float(str(np.float32(value))) for value in values]
