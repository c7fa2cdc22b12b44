"""Read the text field of records: .jsonl, .csv, .tsv and .parquet files and data sets.

Memory: one record or row within its size limit, or a batch of about BATCH_BYTES of a .parquet file, whose single
values are not bounded.
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from daybreak.core.csv_rows import is_one_row
from daybreak.core.errors import ReadFailed, UserError, reason
from daybreak.core.extras import install_hint
from daybreak.core.serialization import nearest
from daybreak.data.readers import hub
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.file_range import BadLines, FileRange
from daybreak.data.readers.inputs import CHUNK, LONGEST_LINE, TABLE, InputFile, open_file, suffixes

LARGEST_ROW = 16 << 20
"""Characters of a .csv or .tsv row, including all lines of quoted cells. A longer row is malformed."""
BATCH_ROWS, BATCH_BYTES = 1024, 16 << 20
"""Maximum rows of a .parquet file per batch, and bytes, which reduce the rows if texts are long."""
_DELIMITERS = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
_ESCAPED = re.compile("[\udc80-\udcff]")
"""Surrogates that stand for bytes that are not UTF-8."""


class _TextField:
    """Extracts the text field from the records of one input.

    Args:
        checked: skip the check of the first record, for a part that is not the first of its file.
    """

    def __init__(self, part: FileRange, field: str, unit: str, checked: bool = False):
        self._name, self._field, self._unit, self._skips = part.file.name, field, unit, part.skips
        self._seen = checked

    def check(self, names: Collection[str], number: int) -> None:
        """
        Raises:
            UserError: the first record, with the fields ``names``, lacks the text field.
        """
        if not self._seen and self._field not in names:
            available = ", ".join(sorted(map(str, names))[:12]) or "none"
            raise UserError(
                f"'{self._name}' {self._unit} {number} has no field '{self._field}', but: {available}."
                f"{nearest(self._field, names)}",
                f"Name the field that holds the text with --text-field, or rename it to '{self._field}' in the file."
                + (" Token ids cannot be prepared." if "input_ids" in names else ""),
            )
        self._seen = True

    def pick(self, record: dict[str, Any], number: int) -> str:
        """Return the normalized text of a record, or "" if it has none."""
        self.check(record, number)
        return self.take(record.get(self._field), number)

    def take(self, value: object, number: int) -> str:
        if isinstance(value, str) and (text := clean(value)):
            return text
        self._skips.add("records without text", self._name, self._unit, number)
        return ""


def read_records(part: FileRange, field: str) -> Iterator[str]:
    """Yield the texts of JSON objects, one a line.

    Raises:
        UserError: too many lines are not JSON objects, or the first lacks the field.
    """
    bad = BadLines(part.file.name, "malformed", "Fix these lines, or leave the file out.")
    texts = _TextField(part, field, "line", checked=part.start > 0)
    for position, line in part.lines():
        if part.outside(position):
            break
        bad.lines += 1
        number = bad.lines
        if not line:
            part.bad_line(bad, number, f"over {LONGEST_LINE[part.file.form] >> 20} MiB long")
        elif line.strip():
            try:
                record = json.loads(line.decode("utf-8-sig" if position == 0 else "utf-8"))
            except (ValueError, RecursionError) as error:
                part.bad_line(bad, number, "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error))
                continue
            if not isinstance(record, dict):
                part.bad_line(bad, number, "not an object")
            elif text := texts.pick(record, number):
                yield text
    part.settle(bad)


def read_data_set(part: FileRange, field: str) -> Iterator[str]:
    """Yield the texts of a data set from the Hugging Face Hub or a local folder."""
    texts = _TextField(part, field, "record")
    records = hub.read_records(hub.parse(part.file.given), part.file.revision, field)
    for number, record in enumerate(records, 1):
        if text := texts.pick(record, number):
            yield text


class _Lines:
    """Iterator over the decoded lines of a table; it can continue after it raised csv.Error."""

    def __init__(self, part: FileRange):
        self._lines, self._file = part.lines(), part.file
        self._size = 0
        self.number = 0
        self.first = 1
        """Number of the line at which the current row begins."""
        self.row: list[str] = []
        """The lines of the current row so far, without one that is too long by itself."""
        self.ended = False
        """Whether a line was asked for after the last one: the row before it is not complete."""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        found = next(self._lines, None)
        if found is None:
            self.ended = True
            raise StopIteration
        position, line = found
        self.number += 1
        if b"\0" in line:
            raise UserError(
                f"'{self._file.name}' is binary, not a table (line {self.number}).", "Leave it out, or convert it."
            )
        self._size += len(line)
        if line:
            self.row.append(line.decode("utf-8-sig" if position == 0 else "utf-8", "surrogateescape"))
        if not line or self._size > LARGEST_ROW:
            raise csv.Error(f"a row of over {min(LARGEST_ROW, LONGEST_LINE[TABLE]) >> 20} MiB")
        return self.row[-1]

    def begin_row(self) -> None:
        self._size, self.first, self.row = 0, self.number + 1, []


def read_table(part: FileRange, field: str) -> Iterator[str]:
    """Yield the cells of one column of a .csv or .tsv file with a header, as the csv module reads it.

    Quoted cells may contain line breaks. In tab-separated files, a quote that would swallow whole rows is an ordinary
    character, as in the GLUE files. A .csv file may use semicolons or tabs if its header then has the column. A row is
    malformed if it is too long, is not UTF-8, or has more or fewer cells than the header.

    Raises:
        UserError: too many lines are in malformed rows, the header lacks the column, or the file contains NUL bytes.
    """
    csv.field_size_limit(max(LARGEST_ROW, csv.field_size_limit()))
    bad = BadLines(part.file.name, "malformed", "Fix these lines, or leave the file out.")
    texts = _TextField(part, field, "line")
    lines = _Lines(part)
    width = column = 0
    for first, count, row, problem in _rows(lines, _delimiter(part.file, field)):
        problem = problem or ("not UTF-8" if _ESCAPED.search("".join(row)) else "")
        if not width and row:  # also if another column's name is not UTF-8
            texts.check([_ESCAPED.sub("\ufffd", name) for name in row], first)
            width, column = len(row), row.index(field)
        elif row and len(row) != width:
            problem = problem or f"{len(row)} cells, but the header has {width}"
        elif row and not problem and (text := texts.take(row[column], first)):
            yield text
        if problem:
            part.bad_line(bad, first, problem, count)
    bad.lines = lines.number
    part.settle(bad)


def _rows(lines: _Lines, delimiter: str) -> Iterator[tuple[int, int, list[str], str]]:
    """Yield (number of the first line, number of lines, cells, problem) of each row; empty lines have no cells.

    In tab-separated files, a quoted cell over several lines is not treated as one if most of the lines have as many
    cells as the header and no tab follows the closing quote: its quote is then an ordinary character.
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
        if lines.ended and len(lines.row) > 1:
            problem = "a quote that is never closed"
        width = width or len(row)
        bare = [line.rstrip("\r\n").split(delimiter) for line in lines.row] if delimiter == "\t" else []
        most = 2 * sum(len(cells) == width for cells in bare) > len(bare) > 1
        if most and not is_one_row(lines.row, delimiter):
            yield from ((number, 1, cells, "") for number, cells in enumerate(bare, lines.first))
            if lines.number >= lines.first + len(bare):  # a line that is too long ended the row
                yield lines.number, 1, [], problem
        else:
            if delimiter != "\t" and not problem and len(lines.row) > 1 and not is_one_row(lines.row, delimiter):
                problem = "a quote that closes within a cell of another line"
            yield lines.first, lines.number + 1 - lines.first, row, problem


def _delimiter(file: InputFile, field: str) -> str:
    """Return the delimiter with which the header contains the column, else the one that gives it the most cells."""
    marks = _DELIMITERS[suffixes(file.path.name)[0]]
    with open_file(file) as stream:
        head = stream.readline(CHUNK).decode("utf-8-sig", "replace")
    headers = {mark: [""] for mark in marks}
    for mark in marks:
        with contextlib.suppress(csv.Error):  # the same error is counted when the rows are read
            headers[mark] = next(csv.reader([head], delimiter=mark), [""])
    return max(marks, key=lambda mark: (field in headers[mark], len(headers[mark])))


def row_groups(file: InputFile) -> list[int]:
    """Return the sizes of the row groups of a .parquet file, in bytes."""
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
    kind = ReadFailed if getattr(error, "errno", None) else UserError
    return kind(
        f"'{file.name}' cannot be read as a .parquet file: {reason(error)}.", "Fetch it again, or leave it out."
    )


def read_parquet(part: FileRange, field: str) -> Iterator[str]:
    """Yield the values of one column of a .parquet file; other columns are not read.

    Raises:
        UserError: pyarrow is not installed, the file is damaged or lacks the column, or too many values are not UTF-8.
    """
    table = _open_parquet(part.file)
    import pyarrow

    names, footer = table.schema_arrow.names, table.metadata
    texts = _TextField(part, field, "row")
    texts.check(names, 1)
    bad = BadLines(part.file.name, "undecodable", "Convert the file to UTF-8, or leave it out.", unit="row")
    groups = range(part.start, footer.num_row_groups if part.stop is None else part.stop)
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
                        part.bad_line(bad, bad.lines)
                        continue
                    except ValueError:  # a value without a Python type, such as a time in nanoseconds
                        text = texts.take(None, bad.lines)
                    if text:
                        yield text
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(part.file, error) from None
        part.byte_counter.bytes += part.file.bytes // footer.num_row_groups
    part.settle(bad)
