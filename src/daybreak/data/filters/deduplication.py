"""Remove exact duplicates and assign documents to splits, on disk, so that memory does not grow with the corpus.

After the first pass, (hash, number) of each document is stored in a bucket chosen by the first byte of the hash. Equal
texts are in the same bucket. Memory: one bucket, 16 bytes x documents / 256.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daybreak.core.files import reserve

HELDOUT_FRACTION = 1 / 50
HELDOUT_CHARACTERS = 32_000_000
"""Approximate upper limit of the held-out text."""

DROPPED, TRAIN, HELDOUT = 0, 1, 2
_ROW = np.dtype([("key", "<u8"), ("number", "<u8")])


def document_key(text: str) -> int:
    """Return 64 bits of the blake2b hash of a clean text; the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class SplitAssignments:
    """The split of each document, in reading order."""

    path: Path
    """File that contains ``assignments``."""
    assignments: np.ndarray
    """uint8[documents], memory-mapped: DROPPED (a duplicate, or dropped by a filter), TRAIN or HELDOUT."""
    duplicates: int
    """Number of exact duplicates among the documents that passed the filters."""
    train: int
    heldout: int


class Ledger:
    """Collects document keys in the first pass, then removes exact duplicates and holds out about 1 in 50 documents.

    Of more than 1.6 billion characters, fewer documents are held out: about HELDOUT_CHARACTERS in total.

    Whether a document is held out depends on its text and the size of the corpus, not on its position or source.

    Args:
        folder: empty, or with the split assignments of an earlier attempt.
        least: minimum number of held-out documents, 1 or 2, if that leaves a training document.
    """

    def __init__(self, folder: Path, least: int = 1):
        self._folder, self._least = folder, least
        folder.mkdir(exist_ok=True)
        self._smallest, self._second, self._largest = 1 << 64, 1 << 64, -1
        self.documents = self.kept = self.characters = self._duplicates = 0

    def add(self, keys: np.ndarray, characters: np.ndarray, stays: np.ndarray) -> None:
        """Add documents in the order of reading.

        Args:
            keys: uint64[documents], see ``document_key``.
            characters: their lengths.
            stays: bool[documents]: False for documents that are already removed.
        """
        numbers = np.arange(self.documents, self.documents + len(keys), dtype=np.uint64)[stays]
        self.documents += len(keys)
        self.characters += int(characters[stays].sum(dtype=np.int64))
        keys = keys[stays]
        self.kept += len(keys)
        if not len(keys):
            return
        # One row for equal keys of a call is enough; otherwise many copies of one text would fill a bucket.
        keys, first = np.unique(keys, return_index=True)
        self._duplicates += len(numbers) - len(keys)
        numbers = numbers[first]
        rows = np.empty(len(keys), _ROW)
        rows["key"], rows["number"] = keys, numbers
        least = sorted({self._smallest, self._second, *keys[:2].tolist()})
        self._smallest, self._second = [*least, 1 << 64][:2]
        self._largest = max(self._largest, int(keys.max()))
        buckets = keys >> np.uint64(56)
        for bucket in np.unique(buckets):
            with (self._folder / f"{bucket:02x}").open("ab") as file:
                file.write(rows[buckets == bucket].tobytes())

    def _border(self) -> int:
        """Return the key below which documents are held out: at least one document, but not all."""
        fraction = min(HELDOUT_FRACTION, HELDOUT_CHARACTERS / self.characters)
        few = self._second if self._least > 1 and self._second < self._largest else self._smallest
        border = max(int(fraction * 2**64), few + 1)
        return border if border <= self._largest else self._smallest + 1

    def decide(self) -> SplitAssignments:
        """Assign every document; at least one must be kept."""
        # Renamed when complete, because an orphan of a killed process may still read the earlier file.
        temporary = self._folder / "assignments.tmp"
        assignments = np.memmap(temporary, np.uint8, "w+", shape=(self.documents,))
        reserve(temporary)
        border = np.uint64(self._border())
        train, heldout, duplicates = 0, 0, self._duplicates
        for path in sorted(self._folder.glob("[0-9a-f][0-9a-f]")):
            rows = np.fromfile(path, _ROW)
            path.unlink()
            keys, first = np.unique(rows["key"], return_index=True)  # rows are in reading order: the first copy is kept
            held = keys < border
            assignments[rows["number"][first]] = np.where(held, HELDOUT, TRAIN)
            heldout += int(held.sum())
            train += len(keys) - int(held.sum())
            duplicates += len(rows) - len(keys)
        assignments.flush()
        os.replace(temporary, self._folder / "assignments")
        return SplitAssignments(self._folder / "assignments", assignments, duplicates, train, heldout)
