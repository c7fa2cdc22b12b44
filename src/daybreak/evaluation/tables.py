"""Labelled rows from .tsv, .csv and .jsonl files, as text cells of the columns that were asked for.

Rows that lack one of these cells are skipped and counted, as loaders of the original GLUE files have always done;
a file in which that happens often is refused.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from daybreak.base.errors import UserError
from daybreak.base.plain import nearest

FORMATS = ("tsv", "csv", "jsonl")
SKIPPED_SHARE = 0.1
"""A file with a larger share of unusable rows is refused."""


@dataclass(frozen=True)
class Cells:
    """The chosen cells of each usable row, in the order of the file; ``lines`` are their 1-based line numbers."""

    rows: list[tuple[str, ...]]
    lines: list[int]
    skipped: int


def read_cells(path: Path, columns: Sequence[str | int], *, format: str, header: bool, whole: bool = False) -> Cells:
    """Read ``columns`` (names, or 0-based numbers) of a table.

    Tab-separated files are read without quoting (GLUE has unbalanced quotes), comma-separated ones with it. A byte
    order mark is dropped. In .jsonl every line is an object and columns are its keys. ``whole`` allows no unusable row,
    for a file whose rows are answered by their number.

    Raises:
        UserError: the file is missing, is no UTF-8, lacks a column, holds no usable row or too many unusable ones.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="" if format == "csv" else "\n") as file:
            found = (
                _read_objects(file, path, columns)
                if format == "jsonl"
                else _read_lines(file, path, columns, format, header)
            )
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror or error}.", "Check the path.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 text ({error.reason}).", "Convert it to UTF-8.") from None
    except csv.Error as error:
        raise UserError(f"'{path}' cannot be read as {format}: {error}.", "Mend the file or name its format.") from None
    if not found.rows and not found.skipped:
        raise UserError(f"'{path}' holds no rows.", "Give a file with at least one labelled row.")
    total = len(found.rows) + found.skipped
    if not found.rows or (whole and found.skipped) or (found.skipped > 1 and found.skipped > SKIPPED_SHARE * total):
        names = ", ".join(f"'{column}'" for column in columns)
        raise UserError(
            f"{found.skipped} of the {total} rows in '{path}' lack a value for one of {names}.",
            "Check the columns, the format and whether the file has a header.",
        )
    return found


def _read_lines(file: TextIO, path: Path, columns: Sequence[str | int], format: str, header: bool) -> Cells:
    lines = _split_csv(file) if format == "csv" else _split_tabs(file)
    first = next(lines, None)
    if first is None:
        return Cells([], [], 0)
    positions = _positions(path, columns, first[1], header)
    cells = Cells([], [], 0)
    skipped = 0
    for number, values in lines if header else _chain(first, lines):
        row = tuple(values[position] for position in positions if position < len(values))
        if len(row) == len(positions) and all(cell.strip() for cell in row):
            cells.rows.append(row)
            cells.lines.append(number)
        else:
            skipped += 1
    return Cells(cells.rows, cells.lines, skipped)


def _chain(first: tuple[int, list[str]], rest: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    yield first
    yield from rest


def _split_tabs(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(file, start=1):
        line = line.rstrip("\r\n")
        if line:
            yield number, line.split("\t")


def _split_csv(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(file)
    for values in reader:
        if values:
            yield reader.line_num, values


def _positions(path: Path, columns: Sequence[str | int], first: list[str], header: bool) -> list[int]:
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
    shown = ", ".join(f"'{name}'" for name in names)
    return UserError(
        f"'{path}' has no column '{column}': it holds {shown}.{nearest(str(column), names)}", "Correct the column."
    )


def _read_objects(file: TextIO, path: Path, columns: Sequence[str | int]) -> Cells:
    cells = Cells([], [], 0)
    skipped = 0
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            value = None
        if not isinstance(value, dict):
            skipped += 1
            continue
        if not cells.rows and (missing := [column for column in columns if column not in value]):
            raise _no_column(path, missing[0], list(value))
        row = tuple(_as_text(value.get(str(column))) for column in columns)
        if all(cell.strip() for cell in row):
            cells.rows.append(row)
            cells.lines.append(number)
        else:
            skipped += 1
    return Cells(cells.rows, cells.lines, skipped)


def _as_text(value: object) -> str:
    """Text as it is; numbers and truth values as JSON writes them; nothing for null, lists and objects."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, (int, float)) else ""
