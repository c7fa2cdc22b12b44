"""The bounded share of the corpus that the tokenizer learns from, spooled to disk in the first pass."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

from daybreak.data.deduplication import TRAIN, Verdict

SAMPLE_BYTES = 100_000_000
LAYERS = 40
_HEAD = struct.Struct("<QI")


class SampleSpool:
    """Keeps between half and all of ``limit`` bytes of a large corpus, and all of a small one.

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

    def texts(self, verdict: Verdict) -> SampleTexts:
        """Close the spool; return the texts that train, each once."""
        for file in self._files:
            file.close()
        return SampleTexts([self._folder / f"{layer:02d}" for layer in range(self._lowest, LAYERS)], verdict)


class SampleTexts:
    """Iterable as often as one likes; reads from disk each time."""

    def __init__(self, paths: list[Path], verdict: Verdict):
        self._paths, self._verdict = paths, verdict

    def __iter__(self) -> Iterator[str]:
        for path in self._paths:
            with path.open("rb") as file:
                while head := file.read(_HEAD.size):
                    number, size = _HEAD.unpack(head)
                    data = file.read(size)
                    if self._verdict.fates[number] == TRAIN:
                        yield data.decode()
