"""The bounded share of the corpus that the tokenizer learns from, spooled to disk in the first pass."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from daybreak.data.deduplication import TRAIN, Verdict

SAMPLE_BYTES = 100_000_000
LAYERS = 40
_HEAD = struct.Struct("<QI")


class SampleSpool:
    """Keeps between half and all of ``limit`` bytes of one part of a large corpus, and all of a small one.

    Each document belongs by its key to a layer: half of them to layer 0, a quarter to layer 1, and so on. When the
    spool is over its limit, the lowest layer goes. What stays depends on the texts alone, not on their order.
    """

    def __init__(self, folder: Path, limit: int = SAMPLE_BYTES):
        self._folder, self._limit = folder, limit
        folder.mkdir()
        self._files = [(folder / f"{layer:02d}").open("wb") for layer in range(LAYERS)]
        self._sizes = [0] * LAYERS
        self._lowest = 0

    def add(self, number: int, key: int, text: str) -> None:
        """Add a document.

        Args:
            number: its place in the part.
        """
        # The key's leading bits choose the split, so the layer is taken from a hash of the key.
        bits = int.from_bytes(hashlib.blake2b(key.to_bytes(8, "big"), digest_size=8).digest(), "big")
        layer = min(LAYERS - 1, 64 - bits.bit_length())
        if layer < self._lowest:
            return
        data = text.encode()
        self._files[layer].write(_HEAD.pack(number, len(data)) + data)
        self._sizes[layer] += len(data)
        while sum(self._sizes[self._lowest :]) > self._limit and self._lowest < LAYERS - 1:
            self._files[self._lowest].close()
            (self._folder / f"{self._lowest:02d}").unlink()
            self._lowest += 1

    def close(self) -> None:
        for file in self._files:
            file.close()


def shrink(folders: Sequence[Path], limit: int = SAMPLE_BYTES) -> None:
    """Drop the lowest layers of all parts' spools until together they keep to ``limit``, as one spool would.

    What goes with some of the parts would also go with all of them, so this may be called as parts are finished: the
    disk never holds much more than ``limit``.
    """
    sizes = [[_size(folder / f"{layer:02d}") for folder in folders] for layer in range(LAYERS)]
    # A layer that one part has dropped is none, whatever the others still have of it.
    lowest = max((layer + 1 for layer, found in enumerate(sizes) if None in found), default=0)
    while lowest < LAYERS - 1 and sum(size or 0 for found in sizes[lowest:] for size in found) > limit:
        lowest += 1
    for layer in range(lowest):
        for folder in folders:
            (folder / f"{layer:02d}").unlink(missing_ok=True)


def _size(path: Path) -> int | None:
    """Bytes of a spool's layer, with its documents' heads; None where it was dropped."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


class SampleTexts:
    """The sampled texts of one split, each once. Iterable as often as one likes; reads from disk each time.

    Args:
        folders: the spools of all parts, in order.
        offsets: the number of each part's first document in the whole corpus.
        fate: TRAIN or HELDOUT.
    """

    def __init__(self, folders: Sequence[Path], offsets: Sequence[int], verdict: Verdict, fate: int = TRAIN):
        self._folders, self._offsets, self._verdict, self._fate = folders, offsets, verdict, fate

    def __iter__(self) -> Iterator[str]:
        for folder, offset in zip(self._folders, self._offsets, strict=True):
            for path in sorted(folder.iterdir()):
                with path.open("rb") as file:
                    while head := file.read(_HEAD.size):
                        number, size = _HEAD.unpack(head)
                        data = file.read(size)
                        if self._verdict.fates[offset + number] == self._fate:
                            yield data.decode()
