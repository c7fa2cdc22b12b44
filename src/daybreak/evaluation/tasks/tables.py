"""Read text columns from .tsv, .csv, .jsonl and .parquet files.

Rows that lack a value are skipped and counted, as loaders of the original GLUE files do; a file with too many of them
is refused.
"""

from __future__ import annotations

import csv
import json
import math
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from daybreak.core.csv_rows import is_one_row
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


@dataclass(frozen=True)
class Fault:
    """Why a row is unusable: a predicate that follows ``Line 3 of 'PATH'``, and the remedy."""

    text: str
    remedy: str


NO_OBJECT = Fault("is not a JSON object", "Write one object per line.")
LACKING = "Check the columns, the format and whether the file has a header."
UNLABELED = (
    "Check the column of the label, or move rows without a label out of this file; classification can use them "
    "(unlabeled = FILE)."
)
Numbered = Iterator[tuple[int, list[str | None] | Fault]]
"""(1-based line number, values of the requested columns, None for a missing one); an empty list for an empty line."""


@dataclass(frozen=True)
class TableRows:
    """The requested values of each usable row, in file order."""

    rows: list[tuple[str, ...]]
    lines: list[int]
    """Line numbers from 1; row numbers for .parquet."""
    skipped: int


def read_table(
    path: Path, columns: Columns, *, format: str, header: bool, whole: bool = False, texts: int = 1
) -> TableRows:
    """Read ``columns`` (names, or 0-based numbers) of a table.

    Tab-separated files are read without quoting (GLUE has unbalanced quotes), .csv files with quoting. A .csv file may
    have another delimiter than the comma if its header then names the columns. A byte order mark is dropped. In .jsonl
    every line is an object whose keys are the columns. Values are normalized to Unicode NFC, as training text is.

    Args:
        whole: keep all rows, for a file whose rows are identified by number: an empty value is empty text, and a
            missing value is an error, unless another text of the row is there.
        texts: number of text columns at the start of ``columns``. In a usable row, one of these texts and the values
            of all other columns are not empty.

    Raises:
        UserError: the file is missing, not a table, lacks a column, or has too many unusable rows.
    """
    texts = len(columns) if whole else texts
    with readable(path):
        if format == "parquet":
            return _gathered(_read_parquet(path, columns), path, columns, texts, whole)
        with path.open(encoding="utf-8-sig", newline="" if format == "csv" else "\n") as file:
            if format == "jsonl":
                lines = _read_objects(file, path, columns)
            else:
                cells = split_csv(file, _delimiter(file, columns)) if format == "csv" else _split_tabs(file)
                lines = _read_lines(cells, path, columns, header, _crowded(format, header))
            return _gathered(lines, path, columns, texts, whole)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors while a file is read into UserErrors, and let the csv module read cells of LONGEST_CELL."""
    csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))
    try:
        yield
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or reason(error)}.", "Check the path.") from None
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if error.object.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "WINDOWS-1252"
        raise UserError(
            f"'{path}' is not UTF-8 text ({error.reason}).",
            f"Convert it to UTF-8 (in Excel: save as CSV UTF-8; elsewhere: iconv -f {encoding} -t UTF-8 OLD > NEW).",
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
    return f"{numbered(path, number).capitalize()} of '{path}'"


def numbered(path: Path, number: int) -> str:
    """Return ``line 3``, or ``row 3`` of a parquet file."""
    return f"{'row' if path.suffix == '.parquet' else 'line'} {number}"


def _gathered(lines: Numbered, path: Path, columns: Columns, texts: int, whole: bool) -> TableRows:
    lacking = Fault(
        f"lacks a value for one of {_listed(columns)}",
        "Give every row a value, or leave such rows out." if whole else LACKING,
    )
    unlabeled = Fault(lacking.text, UNLABELED)
    rows: list[tuple[str, ...]] = []
    numbers: list[int] = []
    faults: Counter[Fault] = Counter()
    first: dict[Fault, int] = {}
    empty_line = 0
    for number, row in lines:
        if not row:
            empty_line = empty_line or number
            continue
        if whole and empty_line:
            number, row = empty_line, lacking
        if not isinstance(row, Fault):
            filled = [cell is not None and (whole or bool(cell.strip())) for cell in row]
            if any(filled[:texts]) and all(filled[texts:]):
                rows.append(tuple(nfc(cell or "") for cell in row))
                numbers.append(number)
                continue
            row = unlabeled if not whole and any(filled[:texts]) and all(filled[texts:-1]) else lacking
        if whole:
            fault = f"{location(path, number)} {row.text}, and every row of this file has to be answered."
            raise UserError(fault, row.remedy)
        faults[row] += 1
        first.setdefault(row, number)
    if not rows and not faults:
        raise UserError(f"'{path}' holds no rows.", "Give a file with at least one row.")
    if faults:
        most, _ = faults.most_common(1)[0]
        example = f"{numbered(path, first[most])}, for example, {most.text}"
        check_skipped(len(rows), faults.total(), f"rows in '{path}' are unusable: {example}", most.remedy)
    return TableRows(rows, numbers, faults.total())


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
        csv.Error: a cell is too long, or a stray quote makes several lines one cell, which may hide many rows.
    """
    lines: list[str] = []

    def noted() -> Iterator[str]:
        # A blank line after the end is a row of its own, unless it is within quotes.
        for line in file:
            lines.append(line)
            yield line
        lines.clear()
        yield "\n"

    reader = csv.reader(noted(), delimiter=delimiter)
    values: list[str] = []
    for values in reader:
        if len(lines) > 1 and not is_one_row(lines, delimiter):
            first = reader.line_num - len(lines) + 1
            raise csv.Error(f"a quote that opens in line {first} closes within a cell in line {reader.line_num}")
        lines.clear()
        yield reader.line_num, values
    if values:
        raise csv.Error("a quote is never closed")


def _crowded(format: str, header: bool) -> Fault | None:
    """Return the fault of a row with more cells than the first line; None if such rows may be read (GLUE's .tsv)."""
    if not header:
        quotes = "Put texts that contain commas in quotes."
        return Fault("has more cells than the first line", quotes) if format == "csv" else None
    remedy = "Put texts that contain the delimiter in quotes" if format == "csv" else "Remove tabs within cells"
    return Fault("has more cells than the header", f"{remedy}, or name every column in the header.")


def _read_lines(
    lines: Iterator[tuple[int, list[str]]], path: Path, columns: Columns, header: bool, crowded: Fault | None
) -> Numbered:
    positions: list[int] = []
    width = 0
    for number, values in lines:
        if values and not positions:
            positions, width = _positions(path, columns, values, header), len(values)
            if header:
                continue
        if not values:
            yield number, []
        elif crowded and any(cell.strip() for cell in values[width:]):
            yield number, crowded
        elif max(positions) >= len(values):  # a torn row
            yield number, [None] * len(positions)
        else:
            yield number, [values[at] for at in positions]


def _positions(path: Path, columns: Columns, first: list[str], header: bool) -> list[int]:
    """Return the 0-based positions of the columns, from the first line of the file."""
    names = [name.strip() for name in first]
    together = len(names) == 1 and any(mark in names[0] for mark in DELIMITERS)
    positions = []
    for column in columns:
        if isinstance(column, int):
            if column >= len(first):
                if together:
                    raise _one_column(path, names[0], column)
                there = f"columns 0 to {len(first) - 1}"
                raise UserError(f"'{path}' has no column {column}: it holds {there}.", "Correct the column.")
            positions.append(column)
        elif not header:
            raise UserError(
                f"'{path}' is read without a header, so it has no column '{column}'.",
                "Give the column's 0-based number, or set header = true.",
            )
        elif column not in names:
            if together:
                raise _one_column(path, names[0], column)
            raise _no_column(path, column, names)
        elif names.count(column) > 1:
            raise _twice(path, column)
        else:
            positions.append(names.index(column))
    return positions


def _one_column(path: Path, name: str, column: str | int) -> UserError:
    return UserError(
        f"'{path}' holds the one column {shown(name)}, and no column {shown(column)}.",
        "Separate the cells of a .csv file by commas, those of a .tsv file by tabs.",
    )


def _no_column(path: Path, column: str | int, names: Sequence[str]) -> UserError:
    return UserError(
        f"'{path}' has no column {shown(column)}: it holds {_listed(names)}.{nearest(str(column), names)}",
        "Correct the column.",
    )


def _twice(path: Path, column: str) -> UserError:
    return UserError(f"'{path}' has more than one column {shown(column)}.", "Rename or remove all but one.")


def _read_objects(file: TextIO, path: Path, columns: Columns) -> Numbered:
    names = [str(column) for column in columns]
    there: dict[str, None] = {}
    lines: list[tuple[int, list[Any] | Fault]] = []
    for number, line in enumerate(file, start=1):
        values: list[Any] | Fault = []
        if line.strip():
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict):
                there.update(dict.fromkeys(found))
                values = [found.get(name) for name in names]
            else:
                values = NO_OBJECT
        lines.append((number, values))
    if there and (missing := [name for name in names if name not in there]):
        raise _no_column(path, missing[0], list(there))
    for number, values in lines:
        yield number, values if isinstance(values, Fault) else _cells(values, names)


def _cells(values: Sequence[Any], names: Sequence[str]) -> list[str | None] | Fault:
    """Return the values of a row as text, or the fault that one is neither text nor a number."""
    for value, name in zip(values, names):
        if value is not None and as_text(value) is None and not isinstance(value, float):
            return Fault(
                f"has neither text nor a number in {shown(name)}",
                "Name a column with one text or number per row; for several labels, make one task per label.",
            )
    return [as_text(value) for value in values]


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
        if twice := [name for name in names if there.count(name) > 1]:
            raise _twice(path, twice[0])
        read = table.read(columns=names)
        values = [_values(read.column(name)) for name in names]
    for number, row in enumerate(zip(*values), start=1):
        yield number, _cells(row, names)


def _values(column: Any) -> list[Any]:
    """Return Python values; a float32 becomes the shortest equal number, 3.8 and not 3.799999952316284."""
    values = column.to_pylist()
    if str(column.type) != "float":
        return values
    return [None if value is None else float(str(np.float32(value))) for value in values]
