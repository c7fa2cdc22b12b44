"""Read a task that the user describes in a TOML file:

name    = "tickets"               # default: the name of the file
train   = "train.csv"             # paths are relative to the TOML file
dev     = "dev.csv"               # optional: without it a seeded tenth of train is held out
test    = "test.csv"              # optional: labeled, scored with the same models
unlabeled = "more.csv"            # optional, for classification: more rows, for protocols with soft targets
text    = ["subject", "body"]     # one or two columns, by name or 0-based number
label   = "queue"
header  = true                    # default; false needs column numbers
kind    = "classification"        # default; or "regression", "tokens", "choice", "qa"
metric  = "accuracy"              # default: the kind's own; any that the kind has
format  = "csv"                   # tsv, csv, jsonl or parquet; default: the ending of each file

Multiple choice: each row has a context and its possible endings, and the label is the number of the right one.

kind    = "choice"
text    = ["story", "start"]      # one or two columns of context; the second begins every ending
choices = ["first", "second"]     # the columns of the endings, two or more
label   = "right"                 # 0 for the first of ``choices``

Token classification: a word a line, an empty line after each sentence (CoNLL), whatever the file's ending is.

kind    = "tokens"
text    = 0                       # 0-based column of the word
label   = 3                       # 0-based column of its tag, such as B-Disease, I-Disease and O

Extractive question answering: from a file of SQuAD, ``text`` and ``label`` are known.

kind    = "qa"
train   = "train-v1.1.json"
format  = "squad"                 # default for .json; jsonl and parquet have one question a row, as below
text    = ["question", "context"]
label   = "answers"               # {"text": [...], "answer_start": [...]}, positions in characters of the context
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.core.serialization import nearest
from daybreak.core.words import word_pattern
from daybreak.evaluation.tasks.kinds import KINDS
from daybreak.evaluation.tasks.known_tasks import KNOWN, TASK_LISTS
from daybreak.evaluation.tasks.tables import FORMATS, nfc
from daybreak.evaluation.tasks.task import Task

KEYS = ("name", "train", "dev", "test", "unlabeled", "text", "choices", "label", "header", "metric", "kind", "format")
REQUIRED = ("train", "text", "label")
SQUAD = {"text": ["question", "context"], "label": "answers"}
KIND_FORMATS = {"tokens": ("conll",), "qa": ("squad", "jsonl", "parquet")}
"""File formats of the kinds that do not use tables."""


def read_task_file(path: Path) -> Task:
    """Read a task from TOML."""
    values = _parsed(path)
    for key in values:
        if key not in KEYS:
            raise _unfit(path, f"has the unknown key {key!r}.{nearest(key, KEYS)}", f"Use only: {', '.join(KEYS)}.")
    kind = KINDS[_one_of(path, values, "kind", tuple(KINDS), "classification")]
    if "train" not in values:
        raise _unfit(path, "lacks the key 'train'.", f"Add it; {', '.join(REQUIRED)} are needed.")
    train = _file(path, values, "train")
    format = _format(path, values, kind.name, train)
    if format == "squad":
        if given := [key for key in SQUAD if key in values]:
            raise _unfit(path, f"has {given[0]}, which a file of SQuAD does not need.", f"Remove {given[0]}.")
        values = {**values, **SQUAD}
    for key in REQUIRED:
        if key not in values:
            raise _unfit(path, f"lacks the key '{key}'.", f"Add it; {', '.join(REQUIRED)} are needed.")
    text, choices = _text(path, values["text"], kind.name), _choices(path, values, kind.name)
    label = _column(path, "label", values["label"], numbered=kind.name == "tokens")
    if label in (*text, *choices):
        raise _unfit(path, f"has label = {label!r}, which is also a column of text.", "Name another column.")
    if len({*text, *choices}) < len(text) + len(choices):
        raise _unfit(path, "names a column of text twice.", "Name each column once.")
    if "header" in values and kind.name in KIND_FORMATS:
        raise _unfit(path, f"has header, which files of the kind {kind.name} do not have.", "Remove header.")
    if "unlabeled" in values and kind.name != "classification":
        raise _unfit(path, f"has unlabeled rows, and its kind is {kind.name}.", "Remove unlabeled.")
    return Task(
        name=_name(path, values),
        train=train,
        dev=_file(path, values, "dev") if "dev" in values else None,
        test=_file(path, values, "test") if "test" in values else None,
        unlabeled_train=_file(path, values, "unlabeled") if "unlabeled" in values else None,
        text=text,
        choices=choices,
        label=label,
        kind=kind.name,
        metric=_one_of(path, values, "metric", kind.metrics, kind.headline),
        header=_flag(path, values, "header", True),
        format=format,
        by_ending="format" not in values and kind.name not in KIND_FORMATS,
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"Cannot read the task file '{path}': {error.strerror or error}.", "Check the path.") from None
    # ValueError: broken TOML, broken UTF-8 and numbers of thousands of digits alike.
    except (ValueError, RecursionError) as error:
        remedy = "Correct that line; put text in quotes."
        raise UserError(f"The task file '{path}' is not TOML: {reason(error)}.", remedy) from None


def _unfit(path: Path, fault: str, remedy: str) -> UserError:
    return UserError(f"The task file '{path}' {fault}", remedy)


def _one_of(path: Path, values: dict[str, Any], key: str, choices: tuple[str, ...], default: str) -> str:
    value = values.get(key, default)
    if value not in choices:
        close = nearest(str(value), choices)
        raise _unfit(path, f"has {key} = {value!r}.{close}", f"Use one of: {', '.join(choices)}.")
    return str(value)


def _format(path: Path, values: dict[str, Any], kind: str, train: Path) -> str:
    formats = KIND_FORMATS.get(kind, FORMATS)
    ending = train.suffix.lower().lstrip(".")
    usual = {"tokens": "conll", "qa": "squad" if ending == "json" else ending}
    return _one_of(path, values, "format", formats, usual.get(kind, ending))


def _name(path: Path, values: dict[str, Any]) -> str:
    name = nfc(str(values.get("name", path.stem)))  # macOS writes file names in NFD
    if not re.fullmatch(rf"{word_pattern()}(?:[.-](?:{word_pattern()})?)*", name):
        raise _unfit(path, f"has the name {name!r}.", "Use letters, digits, '_', '-' and '.' only.")
    if name in KNOWN or name in TASK_LISTS:
        raise _unfit(path, f"has the name '{name}', which a built-in task has.", "Choose another name.")
    return name


def _file(path: Path, values: dict[str, Any], key: str) -> Path:
    if not isinstance(values[key], str):
        raise _unfit(path, f"has {key} = {values[key]!r}.", "Give the path of one file, in quotes.")
    file = path.parent / values[key]
    try:
        there = file.is_file()
    except OSError:  # the name is too long
        there = False
    if not there:
        raise _unfit(path, f"has {key} = {values[key]!r}, but there is no such file.", "Correct the path.")
    return file


def _text(path: Path, value: object, kind: str) -> tuple[str | int, ...]:
    columns = value if isinstance(value, list) else [value]
    fewest, most = {"tokens": (1, 1), "qa": (2, 2)}.get(kind, (1, 2))
    if not fewest <= len(columns) <= most:
        needed = {"tokens": "the column of the words", "qa": "question and context"}.get(kind, "one, or two for pairs")
        raise _unfit(path, f"names {len(columns)} text columns.", f"Name {needed}.")
    return tuple(_column(path, "text", column, numbered=kind == "tokens") for column in columns)


def _flag(path: Path, values: dict[str, Any], key: str, default: bool) -> bool:
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise _unfit(path, f"has {key} = {value!r}.", "Write true or false.")
    return value


def _choices(path: Path, values: dict[str, Any], kind: str) -> tuple[str | int, ...]:
    columns = values.get("choices", [])
    if kind != "choice":
        if "choices" in values:
            raise _unfit(path, f"has choices, and its kind is {kind}.", 'Set kind = "choice", or remove them.')
        return ()
    if not isinstance(columns, list) or len(columns) < 2:
        raise _unfit(path, "names fewer than two choices.", 'Name their columns, as in choices = ["a", "b"].')
    return tuple(_column(path, "choices", column, numbered=False) for column in columns)


def _column(path: Path, key: str, value: object, numbered: bool) -> str | int:
    number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if numbered and not number:
        raise _unfit(path, f"has {key} = {value!r}.", "Give the 0-based number of a column.")
    if not number and not isinstance(value, str):
        raise _unfit(path, f"has {key} = {value!r}.", "Give a column's name or its 0-based number.")
    return value  # type: ignore[return-value]
