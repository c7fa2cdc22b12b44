"""A task of one's own, described in a TOML file:

name   = "tickets"               # default: the name of the file
train  = "train.csv"             # paths are relative to the TOML file
dev    = "dev.csv"               # optional: without it a seeded tenth of train is held out
test   = "test.csv"              # optional: labelled, scored with the same models
text   = ["subject", "body"]     # one or two columns, by name or 0-based number
label  = "queue"
header = true                    # default; false needs column numbers
kind   = "classification"        # default; or "regression"
metric = "accuracy"              # default; "spearman" for regression; any of metrics.METRICS
format = "csv"                   # default: the ending of the train file
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from daybreak.base.errors import UserError
from daybreak.base.plain import nearest
from daybreak.evaluation.kinds import KINDS
from daybreak.evaluation.known_tasks import KNOWN, TASK_LISTS
from daybreak.evaluation.tables import FORMATS
from daybreak.evaluation.tasks import Task

KEYS = ("name", "train", "dev", "test", "text", "label", "header", "metric", "kind", "format")
REQUIRED = ("train", "text", "label")


def read_task_file(path: Path) -> Task:
    """Read a task from TOML.

    Raises:
        UserError: the file is missing or no TOML, a key is unknown or missing, a value does not fit, or a file that it
            names is not there.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"Cannot read the task file '{path}': {error.strerror or error}.", "Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"The task file '{path}' is no TOML: {error}.", "Mend that line.") from None
    for key in values:
        if key not in KEYS:
            raise _unfit(path, f"has the unknown key '{key}'.{nearest(key, KEYS)}", f"Use only: {', '.join(KEYS)}.")
    for key in REQUIRED:
        if key not in values:
            raise _unfit(path, f"lacks the key '{key}'.", f"Add it; {', '.join(REQUIRED)} are needed.")
    kind = KINDS[_one_of(path, values, "kind", tuple(KINDS), "classification")]
    format = _one_of(path, values, "format", FORMATS, Path(str(values["train"])).suffix.lstrip("."))
    header = values.get("header", True)
    if not isinstance(header, bool):
        raise _unfit(path, f"has header = {header!r}.", "Write true or false.")
    return Task(
        name=_name(path, values),
        train=_file(path, values, "train"),
        dev=_file(path, values, "dev") if "dev" in values else None,
        test=_file(path, values, "test") if "test" in values else None,
        text=_text_columns(path, values["text"]),
        label=_column(path, "label", values["label"]),
        kind=kind.name,
        metric=_one_of(path, values, "metric", kind.metrics, kind.headline),
        header=header,
        format=format,
    )


def _unfit(path: Path, fault: str, remedy: str) -> UserError:
    return UserError(f"The task file '{path}' {fault}", remedy)


def _one_of(path: Path, values: dict[str, Any], key: str, choices: tuple[str, ...], default: str) -> str:
    value = str(values.get(key, default))
    if value not in choices:
        raise _unfit(path, f"has {key} = '{value}'.{nearest(value, choices)}", f"Use one of: {', '.join(choices)}.")
    return value


def _name(path: Path, values: dict[str, Any]) -> str:
    name = str(values.get("name", path.stem))
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise _unfit(path, f"has the name '{name}'.", "Use letters, digits, '_', '-' and '.' only.")
    if name in KNOWN or name in TASK_LISTS:
        raise _unfit(path, f"has the name '{name}', which a built-in task has.", "Choose another name.")
    return name


def _file(path: Path, values: dict[str, Any], key: str) -> Path:
    file = path.parent / str(values[key])
    if not file.is_file():
        raise _unfit(path, f"has {key} = '{values[key]}', but there is no file '{file}'.", "Correct the path.")
    return file


def _text_columns(path: Path, value: object) -> tuple[str | int, ...]:
    columns = value if isinstance(value, list) else [value]
    if not 1 <= len(columns) <= 2:
        raise _unfit(path, f"names {len(columns)} text columns.", "Name one, or two for pairs.")
    return tuple(_column(path, "text", column) for column in columns)


def _column(path: Path, key: str, value: object) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or (isinstance(value, int) and value < 0):
        raise _unfit(path, f"has {key} = {value!r}.", "Give a column's name or its 0-based number.")
    return value
