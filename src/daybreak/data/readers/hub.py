"""Data sets of the Hugging Face hub as inputs: ``hf://owner/name[@revision][:config/split]``, streamed, never stored.

A local folder in place of owner/name is read by the same library. Only text can be prepared: a data set of token ids
is of use with the tokenizer that made it alone, and with its rows as they were cut.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.core.extras import install_hint

PREFIX = "hf://"
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class DataSet:
    """One split of a data set."""

    given: str
    """As the user typed it."""
    name: str
    """owner/name, or a local folder."""
    revision: str
    """Branch, tag or commit; empty for the newest."""
    config: str
    """Empty for the only one, or the default."""
    split: str


@dataclass(frozen=True)
class State:
    """What tells one version of a data set from another."""

    revision: str
    """The commit on the hub; empty for a local folder."""
    bytes: int
    """Size of a local folder's files; 0 for the hub."""
    modified: int
    """Latest time of change of a local folder's files, in nanoseconds; 0 for the hub."""


def parse(given: str) -> DataSet:
    """Take ``hf://owner/name[@revision][:config/split]`` apart; the split is train unless named.

    Raises:
        UserError: it does not read like that.
    """
    place, _, part = given.removeprefix(PREFIX).partition(":")
    name, _, revision = place.partition("@")
    config, _, split = part.partition("/")
    if not name or not (Path(os.path.expanduser(name)).is_dir() or _REPOSITORY.fullmatch(name)):
        raise UserError(
            f"'{given}' names no data set.", f"Write {PREFIX}owner/name[@revision][:config/split], or a local folder."
        )
    return DataSet(given, name, revision, config, split or "train")


def inspect(wanted: DataSet) -> State:
    """Find the present state, so that both passes over the text read the same.

    Raises:
        UserError: there is no such data set, or the hub cannot be reached.
    """
    folder = Path(os.path.expanduser(wanted.name))
    if folder.is_dir():
        facts = [path.stat() for path in sorted(folder.rglob("*")) if path.is_file()]
        return State("", sum(fact.st_size for fact in facts), max((fact.st_mtime_ns for fact in facts), default=0))
    from huggingface_hub import HfApi  # takes a third of a second, and few need it

    try:
        found = HfApi().dataset_info(wanted.name, revision=wanted.revision or None)
    except Exception as error:  # of the network's many layers, each has its own
        raise _unreadable(wanted.given, error) from None
    return State(str(found.sha), 0, 0)


def read_records(wanted: DataSet, revision: str, field: str) -> Iterator[dict[str, Any]]:
    """Stream the records, in the data set's order; of columnar files only ``field`` is fetched, if they have it.

    Raises:
        UserError: the datasets library is not installed, or cannot read this.
    """
    try:
        import datasets  # an extra
    except ImportError:
        raise UserError(
            f"Reading '{wanted.given}' needs the datasets library, which is not installed.",
            install_hint("hub"),
        ) from None
    datasets.disable_progress_bars()
    folder = Path(os.path.expanduser(wanted.name))
    try:
        records = datasets.load_dataset(
            str(folder) if folder.is_dir() else wanted.name,
            wanted.config or None,
            split=wanted.split,
            revision=revision or None,
            streaming=True,
        )
        if field in (records.column_names or ()):
            records = records.select_columns([field])
        yield from records
    except Exception as error:  # the library passes on whatever its many readers raise
        raise _unreadable(wanted.given, error) from None


def _unreadable(given: str, error: Exception) -> UserError:
    return UserError(
        f"The data set '{given}' cannot be read: {reason(error)}.",
        f"Check its name, revision, config and split, and the connection; or download it and give {PREFIX}FOLDER.",
    )
