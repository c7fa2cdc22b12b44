"""Which tokens make which row: a pure function of (seed, position), so that a loader's whole state is one integer.

Rows are equal cuts of the token stream. Each epoch visits all of them once, in an order given by a keyed permutation
of [0, rows): a Feistel network (Luby and Rackoff 1988) over the next power of four, walked along its cycle until it
lands inside the range (Black and Rogaway 2002). No shuffle buffer, nothing to save, any number of ranks.
"""

from __future__ import annotations

import hashlib

import numpy as np

from daybreak.base.errors import UserError
from daybreak.data.shards import TokenStream
from daybreak.data.tokenizer import CLS

ROUNDS = 6


def permute(positions: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Map ``positions`` (int64, each in [0, size)) one to one onto [0, size), keyed by ``seed`` and ``epoch``.

    Walks 4 steps at the very worst on average: the network's range is less than four times ``size``.
    """
    half = np.uint64(max(1, (int(size - 1).bit_length() + 1) // 2))
    digest = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8 * ROUNDS).digest()
    keys = np.frombuffer(digest, "<u8")
    values = positions.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], half, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014); arithmetic is modulo 2**64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


class RowSampler:
    """Cuts a stream into rows of ``length`` ids, [CLS] and ``length - 1`` tokens, and hands them out in seeded order.

    Args:
        stream: the tokens of one split.
        length: ids in a row, [CLS] included; at least 2.
        seed: chooses the order.

    Raises:
        UserError: the stream is shorter than one row.
    """

    def __init__(self, stream: TokenStream, length: int, seed: int):
        self._stream, self._length, self._seed = stream, length, seed
        self.rows_per_epoch = len(stream) // (length - 1)
        if self.rows_per_epoch == 0:
            raise UserError(
                f"The corpus is too small: {len(stream)} tokens do not fill one row of {length}.",
                "Give more text, or a shorter --length.",
            )

    def take(self, position: int, rows: int) -> np.ndarray:
        """Rows [position, position + rows) of the run: int64[rows, length].

        ``position`` counts rows since the start of the run and crosses into the next epoch by itself.
        """
        places = np.arange(position, position + rows, dtype=np.int64)
        epochs, inside = np.divmod(places, self.rows_per_epoch)
        order = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            order[here] = permute(inside[here], self.rows_per_epoch, self._seed, int(epoch))
        return self._gather(order)

    def in_order(self, count: int) -> np.ndarray:
        """The first rows in stream order: int64[min(count, rows_per_epoch), length]."""
        return self._gather(np.arange(min(count, self.rows_per_epoch)))

    def _gather(self, order: np.ndarray) -> np.ndarray:
        width = self._length - 1
        rows = np.empty((len(order), self._length), np.int64)
        rows[:, 0] = CLS
        for row, place in zip(rows, order.tolist(), strict=True):
            row[1:] = self._stream.read(place * width, (place + 1) * width)
        return rows
