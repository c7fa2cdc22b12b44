"""Command ``init-task``: write the TOML task file of a table of labeled rows from its columns."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import Positional, arg

from daybreak.commands.options import parse
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, write_text
from daybreak.core.formatting import listed
from daybreak.core.terminal import hanging, say
from daybreak.core.words import word_pattern
from daybreak.evaluation.tasks.tables import DELIMITERS, as_text, check_skipped, nfc, parquet_of, readable, split_csv

ROWS = 20_000
"""Largest number of rows to look at, evenly spread, because a table may be sorted by its label."""
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
"""A number in tables with semicolons, which programs write where the comma is the decimal sign."""
LABELS = "label labels class category target sentiment intent topic tag queue stars rating score y gold answer".split()
TEXTS = "text sentence content body document review comment message tweet title description question premise".split()
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b"),
    ("text1", "text2"), ("question", "sentence"), ("question", "passage"), ("question", "answer"),
    ("query", "document"), ("title", "body"), ("subject", "body"),
)  # fmt: skip
IDS = "id idx index uid guid row number no".split()
SPLITS = "split set subset partition fold".split()
"""Names of a column that says whether a row is for training or for evaluation; task files name a file for each."""
ENDINGS = re.compile(r"(?P<stem>choice|ending|option|sol|solution|answer)[ _-]?(?P<number>\d)", re.IGNORECASE)
KNOWN_NAMES = {*LABELS, *TEXTS, *IDS, *sum(PAIRS, ())}
MOST_CLASSES = 100
"""Largest number of classes in a column that is taken for the label without the name of one."""
MOST_NUMBERED = 300
"""Largest number of classes that are numbered from 0 or 1."""
FEW_VALUES = 20
"""Largest number of different whole numbers that are taken for classes."""
SKEWED = 0.8
"""Frequency of the most frequent label above which macro F1 replaces accuracy."""
MOST_NAMED = 20
"""Columns that a message names; of more, it gives the number."""
NAME_WORDS = 4
"""Largest number of words in a column's name."""


@dataclass(frozen=True, kw_only=True)
class InitTaskOptions:
    table: Annotated[Positional[Path], arg(metavar="TABLE")]
    """A .csv, .tsv, .jsonl or .parquet file with one example per row."""
    out: Path | None = None
    """Task file to write. Defaults to the table's path with the extension .toml."""
    overwrite: bool = False
    """Replace an existing task file."""


def main(arguments: Sequence[str]) -> None:
    options = parse(InitTaskOptions, "init-task", arguments)
    init_task(options.table, options.out, overwrite=options.overwrite)


@dataclass(frozen=True)
class Column:
    """A column of a table, with statistics of its cells."""

    key: str | int
    """Its name, or its 0-based number in a file without a header."""
    cells: list[str]
    """Stripped values of the rows that were read, in order; empty ones too."""
    step: int = 1
    """Distance of these rows in the table."""

    @cached_property
    def filled(self) -> list[str]:
        return [cell for cell in self.cells if cell]

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(self.filled)

    @property
    def name(self) -> str:
        return str(self.key).strip().lower()

    @property
    def words(self) -> float:
        """Mean number of words; a text without spaces counts one word per 12 characters."""
        sizes = [max(len(cell.split()), len(cell) / 12) for cell in self.filled]
        return sum(sizes) / max(1, len(sizes))

    @property
    def is_numeric(self) -> bool:
        return bool(self.filled) and all(map(_is_number, self.filled))

    @property
    def is_whole(self) -> bool:
        return self.is_numeric and all(float(cell).is_integer() for cell in self.counts)

    @property
    def is_id(self) -> bool:
        """Whether the column contains row numbers or identifiers."""
        every = len(self.counts) == len(self.filled) > 1
        return every and (self.name in IDS or self.name.endswith("_id") or (self.is_whole and self._counts_up()))

    def pointed(self) -> Column:
        """Return the column with points in place of decimal commas if it contains numbers that are not classes."""
        found = Column(self.key, list(map(_with_point, self.cells)), self.step)
        classes = found.may_be_label and len(found.counts) <= FEW_VALUES
        return found if found.is_numeric and not classes else self

    def _counts_up(self) -> bool:
        values = [float(cell) for cell in self.filled]
        return all(after == before + self.step for before, after in itertools.pairwise(values))

    @property
    def has_repeats(self) -> bool:
        return 1 < len(self.counts) < len(self.filled)

    @property
    def is_numbered(self) -> bool:
        """Whether its values are the whole numbers from 0 or 1 on, and each is repeated, as numbers of classes are."""
        if not self.is_whole or min(self.counts.values()) < 2 or len(self.counts) > MOST_NUMBERED:
            return False
        values = sorted(map(float, self.counts))
        return values[0] in (0, 1) and values == [values[0] + place for place in range(len(values))]

    @property
    def may_be_label(self) -> bool:
        """Whether its values are repeated often enough, and short enough, to be classes."""
        classes, rows = len(self.counts), len(self.filled)
        return 2 <= classes <= min(MOST_CLASSES, max(2, rows // 2)) and self.words <= NAME_WORDS

    def __str__(self) -> str:
        return f"'{self.key}'" if isinstance(self.key, str) else f"number {self.key}"


@dataclass(frozen=True)
class Table:
    """A file of rows, of which at most ROWS are looked at."""

    columns: list[Column]
    header: bool
    format: str
    delimiter: str = ","


@dataclass
class Choice:
    """The columns and settings of the task, with reasons."""

    text: list[Column]
    label: Column
    kind: str = "classification"
    metric: str = "accuracy"
    choices: list[Column] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Key of the task file -> reason for its value."""


def init_task(table: Path | str, out: Path | str | None = None, *, overwrite: bool = False) -> Path:
    """Write the task file of a table of labeled rows and print each decision with its reason.

    A table that is separated by semicolons, bars or quoted tabs is copied with commas beside the task file. Numbers
    with a decimal comma beside semicolons get a point in the copy.

    Returns:
        The path of the task file, checked to load in ``evaluate``.
    """
    from daybreak.evaluation.tasks.kinds import load_task
    from daybreak.evaluation.tasks.task_file import read_task_file

    table = Path(table)
    out = Path(out or table.with_suffix(".toml"))
    if out.exists() and not overwrite:
        raise UserError(f"'{out}' exists already.", "Choose another file with --out, or replace it with --overwrite.")
    if out.suffix != ".toml":
        raise UserError(f"'{out}' is not a .toml file.", "Choose a name that ends with .toml.")
    found = read_table(table)
    chosen = choose(found, table)
    make_folder(out.parent)
    train, reason = table, f"the {found.format} file"
    copy = out.with_name(f"{table.stem}-commas.csv")
    before = {path: path.read_bytes() if path.exists() else None for path in (out, copy) if path != table}
    if found.format == "csv" and found.delimiter != ",":
        train = copy
        if train.exists() and not overwrite:
            raise UserError(f"'{train}' exists already.", "Move it away, or replace it with --overwrite.")
        classes = [chosen.label] if chosen.kind == "classification" else []
        numbers = {place for place, each in enumerate(found.columns) if each.is_numeric and each not in classes}
        pointed = _copy_with_commas(table, found.delimiter, train, numbers if found.delimiter == ";" else set())
        reason = f"a copy of {table.name} with commas in place of {DELIMITERS[found.delimiter]}"
        reason += " and points in place of decimal commas" if pointed else ""
    chosen.reasons["train"] = reason
    write_text(out, toml(_task_name(out.stem), train, out.parent, found, chosen))
    try:
        load_task(read_task_file(out))
    except UserError as error:
        for path, content in before.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
        raise UserError(f"'{table}' cannot be used as a task: {error.sentence}", error.remedy) from None
    for key, reason in chosen.reasons.items():
        say(hanging(f"{key:8}", reason))
    say(f"Task file: {out}. Check it, then:", f"daybreak evaluate MODEL --tasks {shlex.quote(str(out))}")
    return out


def read_table(path: Path) -> Table:
    """Read rows of a table; detect its delimiter and whether it has a header."""
    ending = path.suffix.lower().lstrip(".")
    if ending not in ("csv", "tsv", "jsonl", "parquet"):
        raise UserError(
            f"'{path}' is not a .csv, .tsv, .jsonl or .parquet file.",
            "Convert it; for CoNLL or SQuAD, write the task file by hand (docs/own_task.md).",
        )
    with readable(path):
        if ending == "parquet":
            with parquet_of(path) as opened:
                table = opened.read()
                step = _step(table.num_rows)
                rows = table.take(np.arange(0, table.num_rows, step)).to_pylist()
            return _of_objects(path, rows, step, "parquet")
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read()
    if "\0" in text:
        raise UserError(f"'{path}' contains null bytes: it is binary, or UTF-16 text.", "Save it as UTF-8 text.")
    if not text.strip():
        raise UserError(f"'{path}' is empty.", "Give a file with at least a few labeled rows.")
    if ending == "jsonl":
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        step = _step(len(lines))
        return _of_objects(path, [_object(path, *line) for line in lines[::step]], step, "jsonl")
    delimiter = "\t" if ending == "tsv" else _delimiter(text)
    head = text.lstrip().partition("\n")[0].split("\t")
    quoted = all(re.fullmatch(r'\s*".*"\s*', cell) for cell in head) if ending == "tsv" else '"' in text
    form = "tsv" if delimiter == "\t" and not quoted else "csv"
    with readable(path):
        step = _step(sum(1 for _ in _rows(text, delimiter, form)))
        rows = list(itertools.islice(_rows(text, delimiter, form), 0, None, step))
    if not rows:
        raise UserError(f"'{path}' has no rows with text.", "Give a file with at least a few labeled rows.")
    width = Counter(map(len, rows)).most_common(1)[0][0]
    if any(cell.strip().lower() in KNOWN_NAMES for cell in rows[0]):
        width = min(width, len(rows[0]))
    if width < 2:
        raise UserError(
            f"'{path}' has one column, but a task needs text and a label.",
            "Check its delimiter: comma, semicolon, tab or vertical bar.",
        )
    header = _has_header([list(map(_with_point, row)) for row in rows] if delimiter == ";" else rows, width)
    body = [row for row in rows[header:] if not (header and any(map(str.strip, row[width:])))]
    if crowded := len(rows) - header - len(body):
        check_skipped(
            len(body),
            crowded,
            f"rows in '{path}' have more cells than the header",
            "Put texts that contain the delimiter in quotes, and name every column (in R: row.names = FALSE).",
        )
    body = [row for row in body if len(row) >= width]
    if not body:
        raise UserError(f"'{path}' has a header but no rows.", "Give a file with at least a few labeled rows.")
    keys: list[Any] = [name.strip() for name in rows[0][:width]] if header else list(range(width))
    columns = [Column(key, [row[number].strip() for row in body], step) for number, key in enumerate(keys)]
    columns = [column.pointed() for column in columns] if delimiter == ";" else columns
    return Table(columns, header, form, delimiter)


def _step(rows: int) -> int:
    """Return the distance of the rows to look at: the smallest with which there are at most ROWS."""
    return max(1, -(-rows // ROWS))


def _rows(text: str, delimiter: str, form: str) -> Iterator[list[str]]:
    """Yield the rows that are not blank; in a ``csv``, a stray quote, which may hide many rows, is a csv.Error."""
    file = io.StringIO(text, newline="")
    if form == "csv":
        return _filled(row for _, row in split_csv(file, delimiter))
    return _filled(csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def _filled(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if any(cell.strip() for cell in row))


def _delimiter(text: str) -> str:
    """Return the delimiter that splits most rows into the same number of fields, at least two."""

    def evenness(delimiter: str) -> tuple[float, int]:
        try:
            rows = list(itertools.islice(_filled(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)), 200))
        except csv.Error:
            return 0.0, 0
        width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (1, 0)
        return (round(count / len(rows), 2), width) if width > 1 else (0.0, width)

    return max(DELIMITERS, key=evenness)


def _has_header(rows: Sequence[Sequence[str]], width: int) -> bool:
    """Return whether the first row is a header: short distinct names that differ from the values below.

    A name may be empty, such as that of the row numbers in a table by pandas.
    """
    first = [cell.strip() for cell in rows[0]]
    if len(first) != width or any(map(_is_number, first)):
        return False
    below = [[row[number].strip() for row in rows[1:] if len(row) > number] for number in range(width)]
    named = [(name, values) for name, values in zip(first, below) if name]
    if any(name.lower() in KNOWN_NAMES and name not in values for name, values in named):
        return True
    if len(set(first)) < width or any(len(name.split()) > NAME_WORDS for name in first):
        return False
    for name, values in named:
        if values and all(map(_is_number, values)):
            return True
        if Column(name, values).may_be_label and name in values:
            return False
    return True


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(f"Line {number} of '{path}' is not a JSON object.", "Write one object per line.")
    return value


def _of_objects(path: Path, rows: Sequence[dict[str, Any]], step: int, form: str) -> Table:
    if not rows:
        raise UserError(f"'{path}' has no rows.", "Give a file with at least a few labeled rows.")
    there = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in there if not any(isinstance(row.get(name), dict | list) for row in rows)]
    columns = [Column(name, [(as_text(row.get(name)) or "").strip() for row in rows], step) for name in names]
    if len(columns) < 2:
        raise UserError(
            f"'{path}' has fewer than two columns of text or numbers.",
            "Give a table with a column of text and one of labels, where a label is one text or number.",
        )
    return Table(columns, True, form)


def choose(table: Table, path: Path) -> Choice:
    """Choose the text and label columns and the kind of the task."""
    columns = [column for column in table.columns if column.name]
    if len({str(column.key) for column in columns}) < len(columns):
        raise UserError(f"Two columns of '{path}' have the same name.", "Rename one of them.")
    columns = [column for column in columns if column.filled]
    label, reason = _label(columns, path)
    nameless = any(not column.name and not column.is_numeric for column in table.columns)
    rest = [column for column in columns if column is not label and not column.is_id]
    chosen = Choice(text=[], label=label, reasons={"label": reason})
    if endings := _endings(rest, label):
        chosen.kind, chosen.choices = "choice", endings
        chosen.reasons["kind"] = f"choice: the label is the number of one of the columns {', '.join(map(str, endings))}"
        rest = [column for column in rest if column not in endings]
    chosen.text, chosen.reasons["text"] = _text(rest, path, nameless)
    if chosen.kind == "classification":
        chosen.kind, chosen.reasons["kind"] = _kind(label)
    chosen.metric, chosen.reasons["metric"] = _metric(chosen.kind, label)
    if split := next((column for column in rest if column.name in SPLITS and column.may_be_label), None):
        chosen.reasons["split"] = (
            f"{split} is not read, so rows of all its values ({_values(split)}) are used for training: "
            "move those for evaluation to files of their own, and name these files as dev and test"
        )
    return chosen


def _label(columns: Sequence[Column], path: Path) -> tuple[Column, str]:
    usable = [column for column in columns if not column.is_id]
    for name in LABELS:
        for column in usable:
            if column.name == name and (column.may_be_label or column.is_numeric) and len(column.counts) > 1:
                return column, f"{column}, by its name: {_values(column)}"
    names = {column.name for column in usable}
    for name in LABELS:
        for column in usable:
            # The answer to a question is a text of a pair.
            if column.name == name and column.has_repeats and not any((other, name) in PAIRS for other in names):
                return column, f"{column}, by its name: {_values(column)}"
    classes = [column for column in usable if column.may_be_label]
    classes = [column for column in classes if column.name not in SPLITS] or classes
    if classes:
        best = min(reversed(classes), key=lambda column: (column.words > 1.5, len(column.counts) > FEW_VALUES))
        return best, f"{best}, short repeated values: {_values(best)}"
    numbers = [column for column in usable if column.is_numeric and len(column.counts) > 1]
    if numbers:
        return numbers[-1], f"{numbers[-1]}, the last column of numbers: {_values(numbers[-1])}"
    named = next((column for column in columns if column.name in LABELS), None)
    raise UserError(
        f"No column of '{path}' looks like a label: none has short values that are repeated often, or numbers.",
        f"Give {named} at least two values that are repeated."
        if named
        else "Call the column of labels 'label', or write the task file by hand (docs/own_task.md).",
    )


def _values(column: Column) -> str:
    shown = ", ".join(f"{value[:20]} ({count})" for value, count in column.counts.most_common(4))
    more = len(column.counts) - 4
    return f"{shown} and {more:,} more" if more > 0 else shown


def _endings(columns: Sequence[Column], label: Column) -> list[Column]:
    """Return columns such as ending0 to ending3 if the label is the number of one of them, else none."""
    numbered = [(column, match) for column in columns if (match := ENDINGS.fullmatch(column.name))]
    stems = {match["stem"].lower() for _, match in numbered}
    found = [column for column, match in sorted(numbered, key=lambda pair: int(pair[1]["number"]))]
    right = {str(number) for number in range(len(found))}
    return found if len(stems) == 1 and len(found) > 1 and set(label.counts) <= right else []


def _text(columns: Sequence[Column], path: Path, nameless: bool) -> tuple[list[Column], str]:
    by_name = {column.name: column for column in columns}
    for first, second in PAIRS:
        if first in by_name and second in by_name:
            return [by_name[first], by_name[second]], f"{by_name[first]} and {by_name[second]}, a pair by their names"
    texts = [column for column in columns if not column.is_numeric]
    if not texts and nameless:
        raise UserError(f"A column of '{path}' that contains text has no name.", "Name it in the header.")
    if not texts:
        raise UserError(f"No column of '{path}' besides the label contains text.", "Use a table with a text column.")
    named = [column for name in TEXTS for column in texts if column.name == name]
    longest = sorted(texts, key=lambda column: -column.words)
    if not named and len(longest) > 1 and longest[1].words >= max(2.0, longest[0].words / 4):
        pair = [column for column in texts if column in longest[:2]]
        return pair, f"{pair[0]} and {pair[1]}, the two text columns" + _unused(texts, pair)
    best = named[0] if named else longest[0]
    reason = "by its name" if named else f"the longest text ({best.words:.0f} words)"
    return [best], f"{best}, {reason}" + _unused(texts, [best])


def _unused(texts: Sequence[Column], used: Sequence[Column]) -> str:
    unused = [str(column) for column in texts if column not in used]
    return f"; not used: {listed(unused, MOST_NAMED)}" if unused else ""


def _kind(label: Column) -> tuple[str, str]:
    count = len(label.counts)
    if not label.is_numeric:
        numbers = all(_is_number(_with_point(cell)) for cell in label.counts)
        hint = " (for numbers, write points in place of decimal commas)" if numbers else ""
        return "classification", f"classification: the label has {count} different values{hint}"
    if label.is_whole and count <= FEW_VALUES:
        reason = f"classification: the label has {count} different whole numbers (for a scale, write regression)"
        return "classification", reason
    if label.is_numbered:
        return (
            "classification",
            f"classification: the label has the numbers of {count} classes (for a scale, write regression)",
        )
    hint = ' (for classes, write kind = "classification" and metric = "accuracy")' if label.is_whole else ""
    return "regression", f"regression: the label has {count:,} different numbers{hint}"


def _metric(kind: str, label: Column) -> tuple[str, str]:
    if kind == "regression":
        return "spearman", "spearman: rank correlation"
    fraction = label.counts.most_common(1)[0][1] / len(label.filled)
    if kind == "classification" and fraction > SKEWED:
        return "macro_f1", f"macro_f1: {fraction:.0%} of the rows have the same label, so accuracy is uninformative"
    return "accuracy", f"accuracy: always predicting the most frequent label scores {fraction:.0%}"


def toml(name: str, train: Path, folder: Path, table: Table, chosen: Choice) -> str:
    """Return the text of the task file."""
    try:
        train_path = train.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        train_path = str(train.resolve())
    columns = [column.key for column in chosen.text]
    lines = {
        "name": name,
        "train": train_path,
        "text": columns if len(columns) > 1 else columns[0],
        **({"choices": [column.key for column in chosen.choices]} if chosen.choices else {}),
        "label": chosen.label.key,
        "header": table.header,
        "kind": chosen.kind,
        "metric": chosen.metric,
        "format": table.format,
    }
    # A JSON string is also a TOML string, if DEL is escaped.
    text = "# Written by daybreak init-task. Without a dev file, 10 % of train is held out.\n" + "".join(
        f"{key:8}= {json.dumps(value, ensure_ascii=False)}\n".replace("\x7f", "\\u007f") for key, value in lines.items()
    )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"The name of '{train}' or of a column in it is not UTF-8.", "Rename it.") from None
    return text


def _task_name(stem: str) -> str:
    from daybreak.evaluation.tasks.known_tasks import KNOWN, TASK_LISTS

    name = re.sub(rf"({word_pattern()})|[^\w.-]+", lambda found: found[1] or "-", nfc(stem)).lstrip(".-") or "task"
    return f"my-{name}" if name in KNOWN or name in TASK_LISTS else name


def _copy_with_commas(table: Path, delimiter: str, out: Path, numbers: Collection[int]) -> bool:
    """Write the table with commas, and with decimal points in the columns ``numbers``; return whether there are any."""
    with readable(table), table.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for _, row in split_csv(file, delimiter) if any(cell.strip() for cell in row)]
    pointed = [[_with_point(cell) if place in numbers else cell for place, cell in enumerate(row)] for row in rows]
    copied = io.StringIO()
    csv.writer(copied, lineterminator="\n").writerows(pointed)
    write_text(out, copied.getvalue())
    return pointed != rows


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False
