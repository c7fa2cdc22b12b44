"""Samplers: the token ids of each sequence are a pure function of (seed, position), so the loader state is one integer.

An epoch visits every sequence once, in the order of a keyed permutation of [0, rows): a Feistel network (Luby and
Rackoff 1988) over the next power of four, repeated until the value lies inside the range (Black and Rogaway 2002).
There is no shuffle buffer, and any number of ranks sees the same order.
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.core.serialization import Component, check_choice
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds

ROUNDS = 6
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64."""
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
class SequencesConfig(Component):
    """How a stream of documents is divided into sequences."""

    @abstractmethod
    def build(
        self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, token_ids: TokenIds | None = None
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


RowsConfig = SequencesConfig
"""The earlier name of ``SequencesConfig``, kept for one version so that recipe files of users still import."""


def evenly_spaced(count: int, size: int) -> np.ndarray:
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
    """The finalizer of SplitMix64 (Steele et al. 2014); arithmetic is modulo 2**64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed


def draws(start: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return float64 in [0, 1): the SplitMix64 numbers at ``places`` (integers from 0) of the sequence of ``start``."""
    states = start + (places.astype(np.uint64) + np.uint64(1)) * GOLDEN
    return (splitmix(states) >> np.uint64(11)) * 2.0**-53


def hashed(key: str) -> np.ndarray:
    """Return uint64[1], a hash of ``key``."""
    return np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8).digest(), "<u8")


def uniforms(key: str, places: int | np.ndarray) -> np.ndarray:
    """Return float64 in [0, 1) from the sequence of ``key``: the numbers at ``places``, or that many from the first."""
    return draws(hashed(key), np.arange(places) if isinstance(places, int) else places)


def shuffled_indices(position: int, rows: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
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


class ShuffledSampler(Sampler):
    """A sampler whose sequences depend only on their index and the epoch, visited in a new order each epoch."""

    def __init__(self, stream: TokenStream, length: int, seed: int, special: SpecialIds):
        self._stream, self._length, self._seed, self._special = stream, length, seed, special

    @abstractmethod
    def _gather(self, order: np.ndarray, epochs: np.ndarray) -> Batch:
        """Return the sequences with the indices ``order`` (integer [rows]) as ``epochs`` (int64 [rows]) show them."""

    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        epochs, order = shuffled_indices(position, rows, self.rows_per_epoch, self._seed)
        return self._gather(order, epochs)

    def view(self, progress: float) -> Hashable:
        return None

    def at(self, numbers: np.ndarray) -> Batch:
        return self._gather(numbers, np.zeros_like(numbers))


# ---------------------------------------------------------------- consecutive tokens, no padding


@dataclass(frozen=True, kw_only=True)
class StreamRows(SequencesConfig):
    """[CLS] and ``length - 1`` tokens of the stream, across document boundaries; no padding."""

    def build(
        self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, token_ids: TokenIds | None = None
    ) -> RowSampler:
        return RowSampler(stream, length, seed, special)


@dataclass(frozen=True, kw_only=True)
class PackedRows(SequencesConfig):
    """``length`` tokens of the stream, no [CLS] and no padding (Cramming, Geiping and Goldstein 2022).

    The remainder is dropped once for the whole corpus; the original drops one every 1024 documents.
    """

    order: str = "shuffled"
    """shuffled: a new order each epoch. stream: the order of the text. full-stops: sequences with most "." first, the
    order of the published runs. prevalence: sequences of the most frequent tokens first, as in the paper's text. Ties
    keep stream order; the original has no fixed order."""

    def __post_init__(self) -> None:
        check_choice("--rows.order", self.order, ORDERS)

    def build(
        self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, token_ids: TokenIds | None = None
    ) -> RowSampler:
        order = None
        if self.order == "stream":
            order = np.arange(len(stream) // length)
        elif self.order == "prevalence":
            order = _by_prevalence(stream, length)
        elif self.order == "full-stops":
            full_stop = token_ids(".") if token_ids is not None else None
            if full_stop is None:
                raise UserError("The vocabulary has no '.' to order sequences by.", "Use --rows.order shuffled.")
            order = _by_full_stops(stream, length, full_stop)
        return RowSampler(stream, length, seed, special, cls=False, order=order)


class RowSampler(ShuffledSampler):
    """Divides a stream into sequences of consecutive tokens.

    Args:
        cls: whether the first of the ids is [CLS].
        order: integer [rows_per_epoch], the order of each epoch; None to shuffle each epoch anew.
    """

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds = FIXED_IDS,
        *,
        cls: bool = True,
        order: np.ndarray | None = None,
    ):
        super().__init__(stream, length, seed, special)
        self._first, self._order = int(cls), order
        self.rows_per_epoch = len(stream) // (length - self._first)
        if self.rows_per_epoch == 0:
            raise UserError(
                f"The corpus is too small: {len(stream)} tokens do not fill one sequence of {length}.",
                "Give more text, or a shorter --length.",
            )

    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        if self._order is None:
            return super().take(position, rows)
        return self.at(self._order[np.arange(position, position + rows) % self.rows_per_epoch])

    def _gather(self, order: np.ndarray, epochs: np.ndarray) -> Batch:
        width = self._length - self._first
        ids = np.full((len(order), self._length), self._special.cls, np.int64)
        ids[:, self._first :] = self._stream.windows(order.astype(np.int64) * width, width)
        return Batch(input_ids=ids, special=self._special)


COUNTED_ROWS = 1 << 14
"""Sequences read at a time to compute an order."""
LOG_RANGE = 64
"""Upper bound of the logarithm of a count."""


def _blocks(stream: TokenStream, length: int) -> Iterator[np.ndarray]:
    """Yield the sequences of ``length`` ids, unsigned [rows, length], COUNTED_ROWS at a time."""
    rows = len(stream) // length
    for start in range(0, rows, COUNTED_ROWS):
        stop = min(rows, start + COUNTED_ROWS)
        yield stream.read(start * length, stop * length).reshape(-1, length)


def _descending(keys: list[np.ndarray]) -> np.ndarray:
    """Return unsigned [rows]: the indices that sort ``keys`` in descending order, equal ones in stream order."""
    found = np.concatenate(keys or [np.zeros(0, np.uint16)])
    order = np.argsort(np.invert(found, out=found), kind="stable")
    return order.astype(np.min_scalar_type(len(order)))


def _by_full_stops(stream: TokenStream, length: int, full_stop: int) -> np.ndarray:
    """Return the order of the published runs of Cramming: sequences with most full stops first."""
    return _descending([(ids == full_stop).sum(axis=1, dtype=np.uint16) for ids in _blocks(stream, length)])


def _by_prevalence(stream: TokenStream, length: int) -> np.ndarray:
    """Return the order of the text of Geiping and Goldstein (2022): sequences of the most frequent tokens first.

    The key of a sequence is the mean of log2((c + 1) / (N + V)) over its tokens, where c is the count of a token in all
    sequences, N the number of tokens and V the size of the vocabulary. This is the average unigram prevalence by which
    the text sorts, likely sequences first (their ``reverse-unigram-curriculum``). Their ``unigram-curriculum`` is the
    opposite, and their published runs are sorted by full stops. N and V shift all keys equally and are left out.
    Logarithms are added in fixed point, so the result does not depend on the order of addition.
    """
    counts = np.zeros(0, np.int64)
    for ids in _blocks(stream, length):
        found = np.bincount(ids.ravel(), minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    logarithms = np.rint(np.log2(counts + 1.0) * fixed_point(length)).astype(np.uint32)
    return _descending([logarithms[ids].sum(axis=1, dtype=np.uint32) for ids in _blocks(stream, length)])


def fixed_point(length: int) -> int:
    """Return the fixed-point scale with which the sum of ``length`` logarithms of counts fits 32 bits."""
    return int((2**32 - 1) // (LOG_RANGE * length))


# ---------------------------------------------------------------- segments and padding


def add_special_tokens(
    rows: Sequence[Sequence[np.ndarray]], length: int, special: SpecialIds
) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of [CLS], a few segments, each followed by [SEP], and padding.

    Returns:
        int64 [B, L], the ids, and bool [B, L], True for all but the padding.
    """
    ids = np.full((len(rows), length), special.pad, np.int64)
    ids[:, 0] = special.cls
    filled = np.empty(len(rows), np.int64)
    for row, segments in enumerate(rows):
        end = 1
        for segment in segments:
            ids[row, end : end + len(segment)] = segment
            end += len(segment) + 1
            ids[row, end - 1] = special.sep
        filled[row] = end
    return ids, np.arange(length) < filled[:, None]


@dataclass(frozen=True, kw_only=True)
class ChunkRows(SequencesConfig):
    """[CLS], a document's first ``length - 2`` tokens, [SEP], padding; all documents once an epoch, shuffled.

    The sequences of pretraining-BERT ("bert-8gb"). The rest of a longer document is not used. ``daybreak prepare
    --chunk-characters`` splits documents to about the length of a sequence.
    """

    mask_padding: bool = True
    """Whether padding is excluded from attention. The original has no such mask."""

    def build(
        self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, token_ids: TokenIds | None = None
    ) -> ChunkSampler:
        return ChunkSampler(stream, length, seed, special, mask_padding=self.mask_padding)


class ChunkSampler(ShuffledSampler):
    """Returns the documents of ``stream``; an empty one becomes [CLS] [SEP]."""

    def __init__(self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, mask_padding: bool):
        super().__init__(stream, length, seed, special)
        self._mask_padding = mask_padding
        self._ends = stream.document_ends()
        self.rows_per_epoch = len(self._ends)

    def _gather(self, order: np.ndarray, epochs: np.ndarray) -> Batch:
        rows = []
        for document in order.tolist():
            start = int(self._ends[document - 1]) if document else 0
            rows.append([self._stream.read(start, min(int(self._ends[document]) - 1, start + self._length - 2))])
        ids, attention_mask = add_special_tokens(rows, self._length, self._special)
        return Batch(
            input_ids=ids, attention_mask=attention_mask if self._mask_padding else None, special=self._special
        )
