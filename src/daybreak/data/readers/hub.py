"""Read data sets of the Hugging Face Hub, streamed, not stored: ``hf://owner/name[@revision][:config/split[:N]]``.

A local folder can take the place of owner/name. Only text is supported: token ids depend on the tokenizer that made
them.
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
FORM = f"{PREFIX}owner/name[@revision][:config/split]"
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SPLIT = re.compile(r"(?P<name>[^\[\]]*)(\[:(?P<records>\d+)\])?")


@dataclass(frozen=True)
class DataSet:
    """One split of a data set."""

    given: str
    """As the user typed it."""
    name: str
    """owner/name, or a local folder."""
    revision: str
    """Branch, tag or commit; empty for the latest."""
    config: str
    """Empty for the only or default configuration."""
    split: str
    records: int = 0
    """Number of records, from the first; 0 for all."""


@dataclass(frozen=True)
class State:
    """Identifies the version of a data set."""

    revision: str
    """The commit on the hub; empty for a local folder."""
    bytes: int
    """Size of a local folder's files; 0 for the hub."""
    modified: int
    """Latest time of change of a local folder's files, in nanoseconds; 0 for the hub."""


def parse(given: str) -> DataSet:
    """Parse ``hf://owner/name[@revision][:config/split]``; the default split is train.

    As in the datasets library, ``train[:1000]`` stands for the first 1,000 records.

    Raises:
        UserError: ``given`` has another form.
    """
    place, _, part = given.removeprefix(PREFIX).partition(":")
    name, _, revision = place.partition("@")
    config, _, split = part.partition("/")
    cut = _SPLIT.fullmatch(split)
    if cut is None:
        raise UserError(f"'{split}' is not a split.", "Write train, or train[:1000] for its first 1,000 records.")
    if not name or not (Path(os.path.expanduser(name)).is_dir() or _REPOSITORY.fullmatch(name)):
        raise UserError(f"'{given}' is not a data set.", f"Write {FORM}, or a local folder.")
    return DataSet(given, name, revision, config, cut["name"] or "train", int(cut["records"] or 0))


def inspect(wanted: DataSet) -> State:
    """Return the current state, so that both passes over the text read the same version.

    Raises:
        UserError: there is no such data set, or the Hub cannot be reached.
    """
    folder = Path(os.path.expanduser(wanted.name))
    if folder.is_dir():
        facts = [path.stat() for path in sorted(folder.rglob("*")) if path.is_file()]
        return State("", sum(fact.st_size for fact in facts), max((fact.st_mtime_ns for fact in facts), default=0))
    from huggingface_hub import HfApi  # a slow import, needed only here

    try:
        found = HfApi().dataset_info(wanted.name, revision=wanted.revision or None)
    except Exception as error:  # the layers of the network raise many types
        raise _unreadable(wanted.given, error) from None
    return State(str(found.sha), 0, 0)


def read_records(wanted: DataSet, revision: str, field: str) -> Iterator[dict[str, Any]]:
    """Stream the records in their order; from columnar files only the column ``field`` is fetched, if it exists.

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
        if wanted.records:
            records = records.take(wanted.records)
        yield from records
    except Exception as error:  # the library passes on the errors of its readers
        raise _unreadable(wanted.given, error) from None


def _unreadable(given: str, error: Exception) -> UserError:
    return UserError(
        f"The data set '{given}' cannot be read: {reason(error)}.",
        f"Check its name, revision, config, split and the connection, or download it and give {PREFIX}FOLDER.",
    )
