"""Samplers: the token ids of each sequence are a pure function of (seed, position), so the loader state is one integer.

An epoch visits every sequence once, in the order of a keyed permutation of [0, rows): a Feistel network (Luby and
Rackoff 1988) over the next power of four, repeated until the value lies inside the range (Black and Rogaway 2002).
There is no shuffle buffer, and any number of ranks sees the same order.
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.core.serialization import Component, nearest
from daybreak.data.sequences.row_orders import by_full_stops, by_prevalence
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds

ROUNDS = 6
ORDERS = ("shuffled", "stream", "full-stops", "prevalence")
FIXED_IDS = SpecialIds()
"""Special ids of the tokenizers that Daybreak trains; an imported tokenizer may have others."""

TokenIds = Callable[[str], int | None]
"""Returns the id of a token, or None if the vocabulary lacks it, as ``Tokenizer.token_to_id``."""


class Sampler(ABC):
    """Returns the sequences of one split. The sequence at a position does not depend on earlier calls."""

    rows_per_epoch: int

    @abstractmethod
    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        """Return the sequences [position, position + rows) of the run, as numpy arrays.

        Args:
            position: sequences since the start of the run, over all epochs.
            progress: completed fraction of the run, in [0, 1], for a sampler with a curriculum.
        """

    def view(self, progress: float) -> Hashable:
        """Return the part of ``progress`` that the sequences depend on; equal views give equal sequences."""
        return progress

    @abstractmethod
    def at(self, numbers: np.ndarray) -> Batch:
        """Return the sequences with ``numbers`` (int64 [B], below rows_per_epoch) in stream order, for validation."""


@dataclass(frozen=True, kw_only=True)
class RowsConfig(Component):
    """How a stream of documents is divided into sequences."""

    @abstractmethod
    def build(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds,
        *,
        token_ids: TokenIds | None = None,
    ) -> Sampler:
        """Return a sampler of sequences of ``length`` ids.

        Args:
            stream: the tokens of one split.
            length: ids in a sequence, special tokens included.
            seed: determines the order and all other random choices.
            special: the special ids of the stream's tokenizer.
            token_ids: looks up a token in the vocabulary; needed by orders that count a token.

        Raises:
            UserError: the stream cannot be divided in this way.
        """


def spread(count: int, size: int) -> np.ndarray:
    """Return min(count, size) numbers at equal distances in [0, size), int64 [B] in ascending order.

    The first sequences of a text with several sources all come from the first source.
    """
    count = min(count, size)
    return np.arange(count) * size // count


AHEAD = 1024
"""Sequences whose places are computed at a time, because the array operations cost the same for one as for all."""


def permute(positions: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Map ``positions`` (int64, each in [0, size)) one to one onto [0, size), keyed by ``seed`` and ``epoch``.

    Takes at most 4 steps on average, because the network's range is less than four times ``size``.
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
        left, right = right, left ^ (splitmix(right ^ key) & mask)
    return (left << half) | right


def splitmix(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014); arithmetic is modulo 2**64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def uniforms(key: str, count: int) -> np.ndarray:
    """Return float64[count] in [0, 1), a function of ``key`` (SplitMix64); a smaller count gives a prefix."""
    return uniforms_at(key, np.arange(count))


def uniforms_at(key: str, places: np.ndarray) -> np.ndarray:
    """Return float64 in [0, 1) with the shape of ``places``: the numbers of ``uniforms(key, ...)`` at these places."""
    start = np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8).digest(), "<u8")
    states = start + (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return (splitmix(states) >> np.uint64(11)) * 2.0**-53


def visit(position: int, rows: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return epochs and indices of the sequences [position, position + rows), with [0, size) shuffled in each epoch.

    Returns:
        int64[rows], the epoch of each, and int64[rows], its index in [0, size); both read-only.
    """
    first, last = position // AHEAD, (position + max(rows, 1) - 1) // AHEAD
    blocks = [_visits(number, size, seed) for number in range(first, last + 1)]
    start = position - first * AHEAD
    epochs, order = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in zip(*blocks))
    return epochs[start : start + rows], order[start : start + rows]


@functools.lru_cache(maxsize=8)
def _visits(block: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Epochs and indices of the sequences [block * AHEAD, (block + 1) * AHEAD)."""
    epochs, inside = np.divmod(np.arange(block * AHEAD, (block + 1) * AHEAD, dtype=np.int64), size)
    order = np.empty_like(inside)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        order[here] = permute(inside[here], size, seed, int(epoch))
    for array in (epochs, order):
        array.flags.writeable = False
    return epochs, order


def too_small(stream: TokenStream, length: int) -> UserError:
    return UserError(
        f"The corpus is too small: {len(stream)} tokens do not fill one sequence of {length}.",
        "Give more text, or a shorter --length.",
    )


class ShuffledSampler(Sampler):
    """A sampler whose sequences depend only on their index, visited in a new order each epoch."""

    _seed: int

    @abstractmethod
    def _gather(self, order: np.ndarray) -> Batch:
        """Return the sequences with the indices ``order`` (integer [rows])."""

    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        return self._gather(visit(position, rows, self.rows_per_epoch, self._seed)[1])

    def view(self, progress: float) -> None:
        """Sequences do not depend on progress."""

    def at(self, numbers: np.ndarray) -> Batch:
        return self._gather(numbers)


# ---------------------------------------------------------------- [CLS] and consecutive tokens


@dataclass(frozen=True, kw_only=True)
class StreamRows(RowsConfig):
    """[CLS] and ``length - 1`` tokens of the stream, across document boundaries; no padding."""

    def build(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds,
        *,
        token_ids: TokenIds | None = None,
    ) -> RowSampler:
        return RowSampler(stream, length, seed, special)


class RowSampler(ShuffledSampler):
    """Divides a stream into sequences of [CLS] and ``length - 1`` tokens, shuffled in each epoch.

    Args:
        stream: the tokens of one split.
        length: ids in a sequence, [CLS] included; at least 2.
        seed: determines the order.
        special: the special ids of the stream's tokenizer.

    Raises:
        UserError: the stream is shorter than one sequence.
    """

    def __init__(self, stream: TokenStream, length: int, seed: int, special: SpecialIds = FIXED_IDS):
        self._stream, self._length, self._seed, self._special = stream, length, seed, special
        self.rows_per_epoch = len(stream) // (length - 1)
        if self.rows_per_epoch == 0:
            raise too_small(stream, length)

    def _gather(self, order: np.ndarray) -> Batch:
        width = self._length - 1
        rows = np.empty((len(order), self._length), np.int64)
        rows[:, 0] = self._special.cls
        rows[:, 1:] = self._stream.windows(order * width, width)
        return Batch(ids=rows, special=self._special)


# ---------------------------------------------------------------- consecutive tokens only


@dataclass(frozen=True, kw_only=True)
class PackedRows(RowsConfig):
    """``length`` tokens of the stream, no [CLS] and no padding (Cramming, Geiping and Goldstein 2022).

    The remainder is dropped once for the whole corpus; the original drops one every 1024 documents.
    """

    order: str = "shuffled"
    """shuffled: a new order each epoch. stream: the order of the text. full-stops: sequences with most "." first, the
    order of the published runs. prevalence: sequences of the most frequent tokens first, as in the paper's text. Ties
    keep stream order; the original has no fixed order."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UserError(
                f"'{self.order}' is not a sequence order.{nearest(self.order, ORDERS)}",
                f"Use {', '.join(ORDERS)}.",
            )

    def build(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds,
        *,
        token_ids: TokenIds | None = None,
    ) -> PackedSampler:
        order = None
        if self.order == "full-stops":
            full_stop = token_ids(".") if token_ids is not None else None
            if full_stop is None:
                raise UserError("The vocabulary has no '.' to order sequences by.", "Use --rows.order shuffled.")
            order = by_full_stops(stream, length, full_stop)
        elif self.order == "prevalence":
            order = by_prevalence(stream, length)
        return PackedSampler(stream, length, seed, special, shuffled=self.order == "shuffled", order=order)


class PackedSampler(ShuffledSampler):
    """Returns sequences of ``length`` consecutive ids of the stream.

    Args:
        shuffled: whether each epoch has a new order.
        order: integer [rows], the order if not shuffled; None for stream order.
    """

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds,
        *,
        shuffled: bool,
        order: np.ndarray | None = None,
    ):
        self._stream, self._length, self._seed, self._special = stream, length, seed, special
        self._shuffled, self._order = shuffled, order
        self.rows_per_epoch = len(stream) // length
        if self.rows_per_epoch == 0:
            raise too_small(stream, length)

    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        if self._shuffled:
            return super().take(position, rows)
        places = np.arange(position, position + rows, dtype=np.int64) % self.rows_per_epoch
        return self._gather(places if self._order is None else self._order[places])

    def _gather(self, order: np.ndarray) -> Batch:
        windows = self._stream.windows(np.asarray(order, np.int64) * self._length, self._length)
        return Batch(ids=windows.astype(np.int64), special=self._special)
