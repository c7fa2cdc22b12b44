"""Texts out of records: .jsonl, .csv and .tsv, .parquet and data sets. Of each record one field is the text.

Memory: one record or row of at most its limit, or a batch of about BATCH_BYTES of a .parquet file; a single value of
such a file is not bounded.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.core.extras import install_hint
from daybreak.core.serialization import nearest
from daybreak.data.readers import hub
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.inputs import CHUNK, LONGEST_LINE, TABLE, InputFile, open_file
from daybreak.data.readers.reading import BadLines, Reading

LARGEST_ROW = 16 << 20
"""Characters of a .csv or .tsv row, over all lines of its quoted cells. A longer row is malformed."""
BATCH_ROWS, BATCH_BYTES = 1024, 16 << 20
"""At most this many rows of a .parquet file at once, fewer where the mean text is long."""
_DELIMITERS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
_ESCAPED = re.compile("[\udc80-\udcff]")
"""What bytes become that are no UTF-8."""


class _TextField:
    """Takes the text out of the records of one input."""

    def __init__(self, reading: Reading, field: str, unit: str):
        self._name, self._field, self._unit, self._skips = reading.file.name, field, unit, reading.skips
        self._seen = False

    def expect_any(self) -> None:
        """Of a part that is not the first of its file: what its first record has says nothing."""
        self._seen = True

    def check(self, names: Collection[str], number: int) -> None:
        """
        Raises:
            UserError: the first record, of these fields, has not ours.
        """
        if not self._seen and self._field not in names:
            told = ", ".join(sorted(map(str, names))[:12]) or "none"
            raise UserError(
                f"'{self._name}' {self._unit} {number} has no field '{self._field}', but: {told}."
                f"{nearest(self._field, names)}",
                "Name the field that holds the text with --text-field, or leave the file out."
                + (" Token ids cannot be prepared." if "input_ids" in names else ""),
            )
        self._seen = True

    def pick(self, record: dict[str, Any], number: int) -> str:
        """Clean text, empty where the record has none."""
        self.check(record, number)
        return self.take(record.get(self._field), number)

    def take(self, value: object, number: int) -> str:
        if isinstance(value, str):
            return clean(value)
        self._skips.add("records without text", self._name, self._unit, number)
        return ""


def read_records(reading: Reading, field: str) -> Iterator[str]:
    """Yield the texts of JSON objects, one a line.

    Raises:
        UserError: too many lines are no JSON objects, or the first has no such field.
    """
    bad = BadLines(reading.file.name, "malformed", "Mend these lines, or leave the file out.")
    texts = _TextField(reading, field, "line")
    if reading.start:
        texts.expect_any()
    for position, line in reading.lines():
        if reading.outside(position):
            break
        bad.lines += 1
        number = bad.lines
        if not line:
            reading.bad_line(bad, number, f"over {LONGEST_LINE[reading.file.form] >> 20} MiB long")
        elif line.strip():
            try:
                record = json.loads(line.decode("utf-8-sig" if position == 0 else "utf-8"))
            except (ValueError, RecursionError) as error:
                reading.bad_line(bad, number, "no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error))
                continue
            if not isinstance(record, dict):
                reading.bad_line(bad, number, "no object")
            elif text := texts.pick(record, number):
                yield text
    reading.settle(bad)


def read_data_set(reading: Reading, field: str) -> Iterator[str]:
    """Yield the texts of a data set of the hub, or of a local one.

    Raises:
        UserError: see ``hub.read_records``; or the first record has no such field.
    """
    texts = _TextField(reading, field, "record")
    records = hub.read_records(hub.parse(reading.file.given), reading.file.revision, field)
    for number, record in enumerate(records, 1):
        if text := texts.pick(record, number):
            yield text


class _Lines:
    """The lines of one table, decoded; goes on after it has raised."""

    def __init__(self, reading: Reading):
        self._lines, self._file = reading.lines(), reading.file
        self._size = 0
        self.number = 0
        self.first = 1
        """Number of the line at which the present row begins."""
        self.row: list[str] = []
        """The lines of that row so far."""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        position, line = next(self._lines)
        self.number += 1
        if b"\0" in line:
            raise UserError(
                f"'{self._file.name}' is binary, not a table (line {self.number}).", "Leave it out, or convert it."
            )
        self._size += len(line)
        if not line or self._size > LARGEST_ROW:
            raise csv.Error(f"a row of over {min(LARGEST_ROW, LONGEST_LINE[TABLE]) >> 20} MiB")
        self.row.append(line.decode("utf-8-sig" if position == 0 else "utf-8", "surrogateescape"))
        return self.row[-1]

    def begin_row(self) -> None:
        self._size, self.first, self.row = 0, self.number + 1, []


def read_table(reading: Reading, field: str) -> Iterator[str]:
    """Yield the cells of one column of a .csv or .tsv file with a header, as the csv module reads it.

    Quoted cells may hold line breaks; where cells are parted by tabs, a quote that swallows whole rows is a character
    like any other, as in GLUE's files. A .csv file may be parted by semicolons or tabs, if then its header has the
    column. A row that is too long, is no UTF-8 or has more or fewer cells than the header is malformed.

    Raises:
        UserError: too many lines are in malformed rows; the header has no such column; the file holds NULs.
    """
    csv.field_size_limit(max(LARGEST_ROW, csv.field_size_limit()))
    bad = BadLines(reading.file.name, "malformed", "Mend these lines, or leave the file out.")
    texts = _TextField(reading, field, "line")
    lines = _Lines(reading)
    width = column = 0
    for first, count, row, problem in _rows(lines, _delimiter(reading.file, field)):
        problem = problem or ("no UTF-8" if _ESCAPED.search("".join(row)) else "")
        if not width and row and not problem:
            texts.check(row, first)
            width, column = len(row), row.index(field)
        elif row and len(row) != width:
            problem = problem or f"{len(row)} cells, but the header has {width}"
        elif row and not problem and (text := texts.take(row[column], first)):
            yield text
        if problem:
            reading.bad_line(bad, first, problem, count)
    bad.lines = lines.number
    reading.settle(bad)


def _rows(lines: _Lines, delimiter: str) -> Iterator[tuple[int, int, list[str], str]]:
    """Yield (number of the first line, lines, cells, what is wrong with them) of each row; empty lines have no cells.

    A cell of a table with tabs that runs through several lines, each of as many cells as the header has, and whose
    closing quote no tab follows, is none: its quote is a character like any other.
    """
    rows = csv.reader(lines, delimiter=delimiter)
    width = 0
    while True:
        lines.begin_row()
        try:
            row, problem = next(rows), ""
        except StopIteration:
            return
        except csv.Error as error:
            row, problem = [], str(error)
        width = width or len(row)
        bare = [line.rstrip("\r\n").split(delimiter) for line in lines.row] if delimiter == "\t" else []
        if len(bare) > 1 and all(len(cells) == width for cells in bare) and not _is_quoted(lines.row, delimiter):
            yield from ((number, 1, cells, "") for number, cells in enumerate(bare, lines.first))
        else:
            yield lines.first, lines.number + 1 - lines.first, row, problem


def _is_quoted(lines: list[str], delimiter: str) -> bool:
    """Whether these lines are one row by the letter."""
    try:
        return len(list(csv.reader(lines, delimiter=delimiter, strict=True))) == 1
    except csv.Error:
        return False


def _delimiter(file: InputFile, field: str) -> str:
    """The mark by which the header's first line has the column; else the first that the kind of file may have."""
    name = file.path.name.lower().removesuffix(file.compression)
    marks = _DELIMITERS[Path(name).suffix]
    with open_file(file) as stream:
        head = stream.readline(CHUNK).decode("utf-8-sig", "replace")
    for mark in marks:
        with contextlib.suppress(csv.Error):  # met again, and counted, where the rows are read
            if field in next(csv.reader([head], delimiter=mark), []):
                return mark
    return marks[0]


def row_groups(file: InputFile) -> list[int]:
    """The sizes of the row groups of a .parquet file, in bytes.

    Raises:
        UserError: pyarrow is not installed, or the file is damaged.
    """
    footer = _open_parquet(file).metadata
    return [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]


def _open_parquet(file: InputFile) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet  # an extra
    except ImportError:
        raise UserError(
            f"Reading '{file.name}' needs pyarrow, which is not installed.", install_hint("hub", "pyarrow")
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(file.path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(file, error) from None


def _damaged(file: InputFile, error: Exception) -> UserError:
    return UserError(
        f"'{file.name}' cannot be read as a .parquet file: {reason(error)}.", "Fetch it again, or leave it out."
    )


def read_parquet(reading: Reading, field: str) -> Iterator[str]:
    """Yield the values of one column of a .parquet file; nothing else of it is read.

    Raises:
        UserError: pyarrow is not installed, the file is damaged, has no such column, or too many values are no UTF-8.
    """
    table = _open_parquet(reading.file)
    import pyarrow

    names, footer = table.schema_arrow.names, table.metadata
    texts = _TextField(reading, field, "row")
    texts.check(names, 1)
    bad = BadLines(reading.file.name, "undecodable", "Convert the file to UTF-8, or leave it out.", unit="row")
    groups = range(reading.start, footer.num_row_groups if reading.stop is None else reading.stop)
    for group in groups:
        facts = footer.row_group(group)
        chunks = [facts.column(number) for number in range(facts.num_columns)]
        size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] == field)
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * facts.num_rows // max(1, size)))
        try:
            batches = table.iter_batches(rows, row_groups=[group], columns=[field], use_threads=False)
            for batch in batches:
                for value in batch.column(0):
                    bad.lines += 1
                    try:
                        text = texts.take(value.as_py(), bad.lines)
                    except UnicodeDecodeError:
                        reading.bad_line(bad, bad.lines)
                        continue
                    except ValueError:  # a value that Python has no type for, such as a time in nanoseconds
                        text = texts.take(None, bad.lines)
                    if text:
                        yield text
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(reading.file, error) from None
        reading.meter.bytes += reading.file.bytes // footer.num_row_groups
    reading.settle(bad)
