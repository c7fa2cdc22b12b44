"""Assign the documents of a source to splits under a preprocessing, for studies that compare preprocessings.

The names follow Cramming (Geiping and Goldstein 2022, section 4.4), which compares raw, filtered, filtered and sorted,
and also deduplicated text: preprocessings are cumulative, in the order of the options. The held-out text is chosen
before any preprocessing, which applies to training text only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder
from daybreak.core.serialization import nearest
from daybreak.core.terminal import working
from daybreak.data.filters.compressibility import Compressibility
from daybreak.data.filters.deduplication import DROPPED, HELDOUT, TRAIN
from daybreak.data.filters.filter import missing_extra
from daybreak.data.filters.near_duplicates import near_duplicates, write_signatures
from daybreak.data.pipeline import first_pass
from daybreak.data.pipeline.corpus import Corpus
from daybreak.data.pipeline.first_pass import ROW, FirstPass, decide, part_folder
from daybreak.data.pipeline.resuming import refuse_changed
from daybreak.data.pipeline.workers import over_parts
from daybreak.data.readers.documents import Skips
from daybreak.data.readers.inputs import ByteCounter

RAW, FILTERED, SORTED, DEDUPLICATED = "raw", "filtered", "sorted", "deduplicated"
PREPROCESSINGS = (RAW, FILTERED, SORTED, DEDUPLICATED)


def check_preprocessings(preprocessings: Sequence[str]) -> None:
    """Raise UserError if one is unknown or given twice, if raw is missing, or if a library is not installed."""
    for one in preprocessings:
        if one not in PREPROCESSINGS:
            raise UserError(
                f"'{one}' is not a preprocessing.{nearest(one, PREPROCESSINGS)}", f"Use {', '.join(PREPROCESSINGS)}."
            )
    if len(set(preprocessings)) < len(preprocessings) or len(preprocessings) < 2 or preprocessings[0] != RAW:
        raise UserError(
            "The preprocessings are compared with the raw text, and each adds to those before it.",
            "Write raw first and then others, such as --preprocessings raw,filtered.",
        )
    if DEDUPLICATED in preprocessings and not (find_spec("datatrove") and find_spec("xxhash")):
        raise missing_extra("Finding near duplicates", "datatrove with xxhash")


@dataclass(frozen=True)
class SourceReader:
    """Reads one source repeatedly."""

    name: str
    corpus: Corpus
    place: Path
    """Folder with the results so far."""
    workers: int

    def over(self, task: Callable[[int], int]) -> Iterable[int]:
        """Run ``task`` for every part."""
        return over_parts(task, range(len(self.corpus.parts)), self.workers)

    def refuse_changed(self) -> None:
        """Raise UserError if a file changed, because decisions may then refer to other documents."""
        refuse_changed(self.corpus.files)

    def scan(self, what: str, folder: Path, filters: tuple[Compressibility, ...] = ()) -> None:
        """Read all parts and store the decision of ``filters`` on each document."""
        job = first_pass.FirstPassJob(corpus=self.corpus, filters=filters)
        with working(f"{what} {self.name}"):
            first_pass.keep_tidy(folder, self.over(partial(first_pass.first_pass_part, job, folder, ByteCounter())))


def run_first_pass(reader: SourceReader) -> FirstPass:
    """Read a source without preprocessing; decides held-out documents and duplicates.

    Raises:
        UserError: the source cannot be read or is too small; the message names it.
    """
    folder = make_folder(reader.place) / "survey"
    try:
        reader.scan("Reading", folder)
        return decide(folder, len(reader.corpus.parts), least=2 if reader.corpus.sentences else 1)
    except UserError as error:
        raise UserError(f"The source '{reader.name}': {error.sentence}", error.remedy) from None


def assignments_under(
    reader: SourceReader, found: FirstPass, until: Sequence[str], step: Compressibility, held: np.ndarray
) -> Path:
    """Write uint8[documents], DROPPED, TRAIN or HELDOUT, under the preprocessings ``until``; return the file.

    Args:
        held: ``held_keys`` of all sources.

    Raises:
        UserError: no training text is left, or the text has changed.
    """
    place = reader.place
    assignments = unprocessed(found, held)
    if FILTERED in until:
        reader.scan("Filtering", place / "filter", (step,))
        reader.refuse_changed()
        assignments[_left_out(place / "filter", len(reader.corpus.parts)) & (assignments == TRAIN)] = DROPPED
    if DEDUPLICATED in until:
        assignments[(np.asarray(found.splits.assignments) == DROPPED) & (assignments == TRAIN)] = (
            DROPPED  # exact copies
        )
        path = _written(place / "assignments-exact", assignments)
        with working(f"Looking for near duplicates in {reader.name}"):
            task = partial(sign_part, reader.corpus, path, found.offsets, place / "near")
            deque(reader.over(task), maxlen=0)
            assignments[near_duplicates(place / "near").astype(np.int64)] = DROPPED
    if not (assignments == TRAIN).any():
        raise UserError(
            f"The source '{reader.name}' has no text left when {until[-1]}.", "Leave that preprocessing out."
        )
    return _written(place / f"assignments-{until[-1]}", assignments)


def _written(path: Path, assignments: np.ndarray) -> Path:
    assignments.tofile(path)
    return path


def held_keys(found: FirstPass) -> np.ndarray:
    """Return the keys of the held-out texts of a source."""
    held = [rows["key"][own == HELDOUT] for part in range(len(found.folders)) for rows, own in found.documents(part)]
    return np.concatenate(held)


def unprocessed(found: FirstPass, held: np.ndarray) -> np.ndarray:
    """Return uint8[documents]: duplicates of training text are kept, duplicates of held-out text are dropped.

    Args:
        held: the keys of the held-out texts of all sources.
    """
    assignments = np.array(found.splits.assignments)
    start = 0
    for part in range(len(found.folders)):
        for rows, own in found.documents(part):
            foreign = np.isin(rows["key"], held)
            now = assignments[start : start + len(rows)]
            now[(own == DROPPED) & ~foreign] = TRAIN
            now[(own == TRAIN) & foreign] = DROPPED
            start += len(rows)
    return assignments


def _left_out(folder: Path, parts: int) -> np.ndarray:
    """Return bool[documents]: whether a filter of the pass in ``folder`` dropped the document."""
    found = [np.fromfile(part_folder(folder, number) / "documents.bin", ROW)["reason"] for number in range(parts)]
    return np.concatenate(found) != 0


def sign_part(corpus: Corpus, assignments: Path, offsets: Sequence[int], folder: Path, number: int) -> int:
    """Write near-duplicate signatures for the training documents of one part; return the number of the part."""
    first, stop = offsets[number : number + 2]
    own = np.fromfile(assignments, np.uint8, stop - first, offset=first)
    documents = zip(range(first, stop), own, corpus.documents(number, Skips(), ByteCounter()))
    write_signatures(((place, one.text) for place, assignment, one in documents if assignment == TRAIN), folder, number)
    return number
