"""Read data sets of the Hugging Face Hub, streamed, not stored: ``hf://owner/name[@revision][:config/split[:N]]``.

Public corpora have names: ``wikipedia``, ``c4`` and ``pile-subset``, each a data set at a fixed commit.

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

from daybreak.core.errors import ReadFailed, UserError, reason
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


def parse(given: str) -> DataSet:
    """Parse ``hf://owner/name[@revision][:config/split]``; the default split is train.

    As in the datasets library, ``train[:1000]`` stands for the first 1,000 records.
    """
    place, _, part = given.removeprefix(PREFIX).partition(":")
    name, _, revision = place.partition("@")
    config, _, split = part.partition("/")
    cut = _SPLIT.fullmatch(split)
    if cut is None:
        raise UserError(f"'{split}' is not a split.", "Write train, or train[:1000] for its first 1,000 records.")
    if cut["records"] and not int(cut["records"]):
        raise UserError(f"'{split}' is no records.", "Give the number of the first records, as in train[:1000].")
    if not name or not (Path(os.path.expanduser(name)).is_dir() or _REPOSITORY.fullmatch(name)):
        raise UserError(f"'{given}' is not a data set.", f"Write {FORM}, or a local folder.")
    return DataSet(given, name, revision, config, cut["name"] or "train", int(cut["records"] or 0))


def inspect(wanted: DataSet) -> tuple[int, int, str]:
    """Return the current state, so that both passes over the text read the same version.

    Returns:
        For a local folder, the size of its files and their latest time of change, in nanoseconds; for the Hub, the
        commit. What does not apply is 0 or empty.
    """
    folder = Path(os.path.expanduser(wanted.name))
    if folder.is_dir():
        facts = [path.stat() for path in sorted(folder.rglob("*")) if path.is_file()]
        return sum(fact.st_size for fact in facts), max((fact.st_mtime_ns for fact in facts), default=0), ""
    from huggingface_hub import HfApi  # a slow import, needed only here

    try:
        found = HfApi().dataset_info(wanted.name, revision=wanted.revision or None)
    except Exception as error:
        raise _unreadable(wanted.given, error) from None
    return 0, 0, str(found.sha)


def read_records(wanted: DataSet, revision: str, field: str) -> Iterator[dict[str, Any]]:
    """Stream the records in their order; from columnar files only the column ``field`` is fetched, if it exists."""
    try:
        import datasets  # an extra
    except ImportError:
        raise UserError(
            f"Reading '{wanted.given}' needs the datasets library, which is not installed.",
            install_hint("hub"),
        ) from None
    datasets.disable_progress_bars()
    folder, began = Path(os.path.expanduser(wanted.name)), False
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
        for record in records:
            began = True
            yield record
    except Exception as error:  # the library passes on the errors of its readers
        raise _unreadable(wanted.given, error, began) from None


def _unreadable(given: str, error: Exception, began: bool = False) -> UserError:
    # Before the first record, a ValueError says that config, split or content is wrong. Later it may be a part that a
    # lost connection cut off, and the preparation can be resumed. The layers of the network raise many other types.
    kind = UserError if isinstance(error, ValueError) and not began else ReadFailed
    return kind(
        f"The data set '{given}' cannot be read: {reason(error)}.",
        f"Check its name, revision, config, split and the connection, or download it and give {PREFIX}FOLDER.",
    )


@dataclass(frozen=True)
class KnownCorpus:
    title: str
    address: str
    """``hf://owner/name@commit:config/split``"""
    size: str
    license: str


KNOWN_CORPORA = {
    "wikipedia": KnownCorpus(
        "English Wikipedia of 2023-11-01",
        "hf://wikimedia/wikipedia@b04c8d1ceb2f5cd4588862100d08de323dccfbaa:20231101.en",
        "6.4 million articles, about 20 GB of text",
        "CC BY-SA 3.0 and GFDL",
    ),
    "c4": KnownCorpus(
        "C4, cleaned English web pages",
        "hf://allenai/c4@1588ec454efa1a09f29cd18ddd04fe05fc8653a2:en",
        "365 million pages, about 305 GB compressed",
        "ODC-BY and Common Crawl's terms of use",
    ),
    "pile-subset": KnownCorpus(
        "the first 8 million documents of the Pile without its copyrighted parts (Cramming: of the whole Pile)",
        "hf://monology/pile-uncopyrighted@3be90335b66f24456a5d6659d9c8d208c0357119:/train[:8000000]",
        "about 15 GB compressed",
        "the terms of each source",
    ),
}
_WITHOUT_SOURCE = {"bookcorpus": "BookCorpus", "bookcorpusopen": "BookCorpusOpen"}


def find_corpus(given: str) -> KnownCorpus | None:
    """Return the public corpus that ``given`` names; None for anything else, also for a file or folder of that name.

    Raises:
        UserError: ``given`` names a corpus that nobody publishes under a license.
    """
    if os.path.exists(given):
        return None
    if given in _WITHOUT_SOURCE:
        raise UserError(
            f"No publisher offers {_WITHOUT_SOURCE[given]} under a license, so '{given}' has no source.",
            f"Give your own copy as files, or one of: {', '.join(KNOWN_CORPORA)}.",
        )
    return KNOWN_CORPORA.get(given)
