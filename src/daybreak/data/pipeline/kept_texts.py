"""The clean text of a part, kept from the first reading to the second: parsing it again takes longer than encoding.

SURVEY/00007/kept.texts  kept.lengths
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from daybreak.data.readers.documents import Document

KEPT_BYTES = 4 << 30
"""What the texts of all parts may take on disk until the data are made."""
LENGTH = np.dtype("<u8")


class KeptTexts:
    """Keeps the documents of one part in ``folder``, all or none: where they take more than ``limit`` bytes."""

    def __init__(self, folder: Path, limit: int):
        self._paths, self._limit = _files(folder), limit
        self._texts, self._lengths = (path.open("wb") for path in self._paths)
        self._size = 0

    def add(self, text: str) -> None:
        data = text.encode()
        self._size += len(data)
        if self._size <= self._limit:
            self._texts.write(data)
            self._lengths.write(len(data).to_bytes(LENGTH.itemsize, "little"))

    def close(self) -> None:
        self._texts.close()
        self._lengths.close()
        if self._size > self._limit:
            for path in self._paths:
                path.unlink()


def kept_documents(folder: Path) -> Iterator[Document] | None:
    """The documents that were kept in ``folder``, in order; None where none were, and they must be read again."""
    texts, lengths = _files(folder)
    return _read(texts, lengths) if lengths.exists() else None


def _read(texts: Path, lengths: Path) -> Iterator[Document]:
    with texts.open("rb") as file:
        for size in np.fromfile(lengths, LENGTH).tolist():
            yield Document(text=file.read(size).decode(), source="")


def _files(folder: Path) -> tuple[Path, Path]:
    return folder / "kept.texts", folder / "kept.lengths"
