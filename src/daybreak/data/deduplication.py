"""Which documents stay, and in which split: decided on disk, so that memory does not grow with the corpus.

The first pass over the text spools (hash, number) of each document into buckets by the hash's first byte. Equal texts
meet in one bucket, which fits in memory where the whole would not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SPOOL_ROWS = 1 << 16
HELDOUT_SHARE = 1 / 50
HELDOUT_CHARACTERS = 32_000_000
"""Of a large corpus only about this much is held out."""

DROPPED, TRAIN, HELDOUT = 0, 1, 2
_ROW = np.dtype([("key", "<u8"), ("number", "<u8")])


def document_key(text: str) -> int:
    """Return 64 bits of blake2b of the clean text: equal texts, equal keys, on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Verdict:
    """What became of each document, in the order of reading."""

    fates: np.ndarray
    """uint8[documents] on disk: DROPPED (a duplicate), TRAIN or HELDOUT."""
    duplicates: int
    train: int
    heldout: int


class Ledger:
    """Collects the documents' keys in the first pass and then decides: exact duplicates out, about 1 in 50 held out.

    Whether a document is held out depends on its text and on the size of the corpus, never on its place or source.

    Args:
        folder: does not exist yet.
        least: held out at least, 1 or 2, where that leaves a document to train on.
    """

    def __init__(self, folder: Path, least: int = 1):
        self._folder, self._least = folder, least
        folder.mkdir()
        self._rows = np.empty(SPOOL_ROWS, _ROW)
        self._held = 0
        self._smallest, self._second, self._largest = 1 << 64, 1 << 64, -1
        self.documents = self.characters = 0

    def add(self, key: int, characters: int) -> None:
        self._rows[self._held] = key, self.documents
        self._held += 1
        self.documents += 1
        self.characters += characters
        self._largest = max(self._largest, key)
        if key < self._smallest:
            self._smallest, self._second = key, self._smallest
        elif self._smallest < key < self._second:
            self._second = key
        if self._held == SPOOL_ROWS:
            self._spool()

    def _spool(self) -> None:
        rows = self._rows[: self._held]
        buckets = rows["key"] >> np.uint64(56)
        for bucket in np.unique(buckets):
            with (self._folder / f"{bucket:02x}").open("ab") as file:
                file.write(rows[buckets == bucket].tobytes())
        self._held = 0

    def _border(self) -> int:
        """Keys below this are held out: at least one document, and never all of them."""
        share = min(HELDOUT_SHARE, HELDOUT_CHARACTERS / self.characters)
        few = self._second if self._least > 1 and self._second < self._largest else self._smallest
        border = max(int(share * 2**64), few + 1)
        return border if border <= self._largest else self._smallest + 1

    def decide(self) -> Verdict:
        """Settle every document. At least one must have been added."""
        self._spool()
        fates = np.memmap(self._folder / "fates", np.uint8, "w+", shape=(self.documents,))
        border = np.uint64(self._border())
        train = heldout = 0
        for path in sorted(self._folder.glob("??")):
            rows = np.fromfile(path, _ROW)
            path.unlink()
            keys, first = np.unique(rows["key"], return_index=True)  # rows are in reading order: the first one stays
            held = keys < border
            fates[rows["number"][first]] = np.where(held, HELDOUT, TRAIN)
            heldout += int(held.sum())
            train += len(keys) - int(held.sum())
        return Verdict(fates, self.documents - train - heldout, train, heldout)
