"""Labelled rows from .tsv, .csv, .jsonl and .parquet files, as text cells of the columns that were asked for.

Rows that lack one of these cells are skipped and counted, as loaders of the original GLUE files have always done;
a file in which that happens often is refused.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import nearest

FORMATS = ("tsv", "csv", "jsonl", "parquet")
SKIPPED_SHARE = 0.1
"""A file with a larger share of unusable rows is refused."""
SHOWN, MANY = 60, 20
"""A sentence shows so many characters of a value, and so many columns of a file."""

Columns = Sequence[str | int]
Numbered = Iterator[tuple[int, list[str | None]]]
"""(1-based line number, the asked cells, None for each that is not there); no cells at all for an empty line."""


@dataclass(frozen=True)
class TableRows:
    """The chosen cells of each usable row, in the order of the file."""

    rows: list[tuple[str, ...]]
    lines: list[int]
    """Their line numbers, from 1; in .parquet, which has no lines, row numbers."""
    skipped: int


def read_table(path: Path, columns: Columns, *, format: str, header: bool, whole: bool = False) -> TableRows:
    """Read ``columns`` (names, or 0-based numbers) of a table.

    Tab-separated files are read without quoting (GLUE has unbalanced quotes), comma-separated ones with it. A byte
    order mark is dropped. In .jsonl every line is an object and columns are its keys.

    Args:
        whole: for a file whose rows are answered by their number: an empty cell stays, as empty text, and a line that
            lacks a cell is refused rather than skipped.

    Raises:
        UserError: the file is missing, is no such table, lacks a column, holds no usable row or too many unusable ones.
    """
    with readable(path):
        if format == "parquet":
            found = _gathered(_read_parquet(path, columns), whole, path, columns)
        else:
            with path.open(encoding="utf-8-sig", newline="" if format == "csv" else "\n") as file:
                if format == "jsonl":
                    lines = _read_objects(file, path, columns)
                else:
                    lines = _read_lines(
                        _split_csv(file) if format == "csv" else _split_tabs(file), path, columns, header
                    )
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
    """Turn what goes wrong while a file is read into one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or reason(error)}.", "Check the path.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 text ({error.reason}).", "Convert it to UTF-8.") from None
    except csv.Error as error:
        raise UserError(f"'{path}' cannot be read as csv: {error}.", "Mend the file or name its format.") from None


def check_skipped(usable: int, skipped: int, fault: str, remedy: str) -> None:
    """Refuse a file of which no row is usable, or too many are not; a single one is always forgiven.

    Args:
        fault: what is wrong with those that are not, after "3 of the 9 " and without a full stop.

    Raises:
        UserError: that is so.
    """
    total = usable + skipped
    if not usable or (skipped > 1 and skipped > SKIPPED_SHARE * total):
        raise UserError(f"{skipped} of the {total} {fault}.", remedy)


def location(path: Path, number: int) -> str:
    """How a sentence about a row begins; ``number`` is one of ``TableRows.lines``."""
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
                "Restore the file as it was published.",
            )
        there = tuple(cell for cell in row if cell is not None and (whole or cell.strip()))
        if len(there) == len(row):
            rows.append(there)
            numbers.append(number)
        else:
            skipped += 1
    return TableRows(rows, numbers, skipped)


def shown(value: object) -> str:
    """A value from a file as a sentence can hold it: in quotes, on one line, cut where it is long."""
    text = repr(str(value))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 4]}...{text[-1]}"


def _listed(names: Columns) -> str:
    return ", ".join([shown(name) for name in names[:MANY]] + (["..."] if len(names) > MANY else []))


def _split_tabs(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(file, start=1):
        line = line.rstrip("\r\n")
        yield number, line.split("\t") if line else []


def _split_csv(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(file)
    for values in reader:
        yield reader.line_num, values


def _read_lines(lines: Iterator[tuple[int, list[str]]], path: Path, columns: Columns, header: bool) -> Numbered:
    positions: list[int] = []
    for number, values in lines:
        if values and not positions:
            positions = _positions(path, columns, values, header)
            if header:
                continue
        yield number, [values[at] if at < len(values) else None for at in positions] if values else []


def _positions(path: Path, columns: Columns, first: list[str], header: bool) -> list[int]:
    """Turn names and numbers into 0-based positions, judged by the first line of the file."""
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
        yield number, [_as_text(value.get(name)) for name in names]


def _as_text(value: object) -> str | None:
    """Text as it is, numbers and truth values as JSON writes them; None for null, lists, objects, half characters."""
    if isinstance(value, str):
        # JSON can spell half of a surrogate pair, which is no text and which tokenizers choke on.
        return value if value.isascii() or value.encode("utf-8", "ignore").decode() == value else None
    return json.dumps(value) if isinstance(value, (int, float)) else None


@contextmanager
def parquet_of(path: Path) -> Iterator[Any]:
    """A parquet file, open, as pyarrow's ``ParquetFile``.

    Raises:
        UserError: pyarrow is not installed, or the file turns out to be damaged or no parquet.
    """
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
        yield number, [_as_text(value) for value in row]


def _values(column: Any) -> list[Any]:
    """Python values; a float32 as the shortest number that stands for it, 3.8 and not 3.799999952316284."""
    values = column.to_pylist()
    if str(column.type) != "float":
        return values
    return [None if value is None else float(str(np.float32(value))) for value in values]
