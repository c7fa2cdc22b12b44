"""The bounded sample of the corpus that the tokenizer is trained on, stored on disk in the first pass."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from daybreak.data.filters.deduplication import TRAIN, SplitAssignments

SAMPLE_BYTES = 100_000_000
COPIES = 8
"""Disk limit in multiples of the sample size: a text may be in the sample of every part."""
LAYERS = 24
HEAD = np.dtype([("number", "<u8"), ("key", "<u8"), ("size", "<u4")])
"""One text: its index in the part, its key and its size in bytes."""


class SampleSpool:
    """Keeps between half and all of ``limit`` bytes of one part of a large corpus, and all of a small one.

    The key of a document decides its layer: half of all documents are in layer 0, a quarter in layer 1, and so on. When
    the sample exceeds the limit, the lowest layer is deleted. Duplicates are stored once. The result depends only on
    the set of texts, not on their order or number of copies.

    Memory: 100 bytes for each text in the sample.
    """

    def __init__(self, folder: Path, limit: int = SAMPLE_BYTES):
        folder.mkdir()
        self._paths = [_files(folder, layer) for layer in range(LAYERS)]
        self._files = [(heads.open("wb"), texts.open("wb")) for heads, texts in self._paths]
        self._keys: list[set[int]] = [set() for _ in range(LAYERS)]
        self._limit, self._lowest, self._sizes = limit, 0, [0] * LAYERS

    def add(self, number: int, key: int, text: str) -> None:
        """Add a document.

        Args:
            number: its index in the part.
        """
        # The key's leading bits choose the split, so the layer is taken from a hash of the key.
        bits = int.from_bytes(hashlib.blake2b(key.to_bytes(8, "big"), digest_size=8).digest(), "big")
        layer = min(LAYERS - 1, 64 - bits.bit_length())
        if layer < self._lowest or key in self._keys[layer]:
            return
        self._keys[layer].add(key)
        heads, texts = self._files[layer]
        data = text.encode()
        heads.write(np.array((number, key, len(data)), HEAD).tobytes())
        texts.write(data)
        self._sizes[layer] += HEAD.itemsize + len(data)
        while sum(self._sizes) > self._limit and self._lowest < LAYERS - 1:
            for file, path in zip(self._files[self._lowest], self._paths[self._lowest]):
                file.close()
                path.unlink()
            self._keys[self._lowest].clear()
            self._sizes[self._lowest] = 0
            self._lowest += 1

    def close(self) -> None:
        for files in self._files:
            for file in files:
                file.close()


def _files(folder: Path, layer: int) -> tuple[Path, Path]:
    return folder / f"{layer:02d}.heads", folder / f"{layer:02d}.texts"


def shrink(folders: Sequence[Path], limit: int = SAMPLE_BYTES) -> None:
    """Delete the lowest layers of all parts until their union is within ``limit``, as in one sample.

    A text in several parts counts once. A layer that is deleted for some parts would also be deleted for all of them,
    so this may be called while parts are still being read. Disk: ``limit``, up to COPIES times that if parts are alike.
    """
    # A layer that one part has deleted cannot be used, even if other parts still have it.
    dropped = [any(not _files(folder, layer)[0].exists() for folder in folders) for layer in range(LAYERS)]
    least = max((layer + 1 for layer, gone in enumerate(dropped) if gone), default=0)
    lowest, size, on_disk = LAYERS - 1, 0, 0
    for layer in reversed(range(least, LAYERS)):
        heads = np.concatenate([np.fromfile(_files(folder, layer)[0], HEAD) for folder in folders])
        sizes = heads["size"].astype(np.int64) + HEAD.itemsize
        size += int(sizes[np.unique(heads["key"], return_index=True)[1]].sum())
        on_disk += int(sizes.sum())
        if (size > limit or on_disk > COPIES * limit) and layer < LAYERS - 1:
            break
        lowest = layer
    for layer in range(lowest):
        for path in (path for folder in folders for path in _files(folder, layer)):
            path.unlink(missing_ok=True)


class SampleTexts:
    """The sampled texts of one split, without duplicates; can be iterated repeatedly and reads from disk each time.

    Args:
        folders: the sample folders of all parts, in order.
        offsets: the number of each part's first document in the corpus.
        splits: the split of each document.
        assignment: TRAIN or HELDOUT.
    """

    def __init__(
        self, folders: Sequence[Path], offsets: Sequence[int], splits: SplitAssignments, assignment: int = TRAIN
    ):
        self._folders, self._offsets, self._splits, self._assignment = folders, offsets, splits, assignment

    def without(self, parts: Collection[int]) -> SampleTexts:
        """Return the texts of the other parts."""
        others = [number for number in range(len(self._folders)) if number not in parts]
        folders, offsets = [self._folders[number] for number in others], [self._offsets[number] for number in others]
        return SampleTexts(folders, offsets, self._splits, self._assignment)

    def __iter__(self) -> Iterator[str]:
        for folder, offset in zip(self._folders, self._offsets, strict=True):
            for layer in range(LAYERS):
                heads, texts = _files(folder, layer)
                if heads.exists():
                    yield from self._of(heads, texts, offset)

    def _of(self, heads: Path, texts: Path, offset: int) -> Iterator[str]:
        with texts.open("rb") as file:
            for number, _, size in np.fromfile(heads, HEAD).tolist():
                data = file.read(size)
                if self._splits.assignments[offset + number] == self._assignment:
                    yield data.decode()
