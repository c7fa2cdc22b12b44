"""Fixed orders of sequences from the Cramming paper and its code (docs/formats.md).

Both read the stream in blocks and use a few bytes of memory per sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from daybreak.data.sequences.shards import TokenStream

COUNTED_ROWS = 1 << 14
"""Sequences read at a time."""
SORTED_ROWS = 1 << 20
"""Sequences sorted at a time; more if more have the same upper bits."""
UPPER = 16
"""Upper bits of a key, by which sequences are distributed to buckets before they are sorted."""
LOG_RANGE = 64
"""Upper bound of the logarithm of a count."""


def by_full_stops(stream: TokenStream, length: int, full_stop: int) -> np.ndarray:
    """Return unsigned [rows]: the sequences of ``length`` ids, most full stops first, ties in stream order.

    Reads the stream once and uses about 6 bytes per sequence.
    """
    rows = len(stream) // length
    counts = np.empty(rows, np.uint16)
    histogram = np.zeros(length + 1, np.int64)
    for start, ids in _blocks(stream, length):
        found = (ids == full_stop).sum(axis=1)
        counts[start : start + len(ids)] = found
        histogram += np.bincount(found, minlength=length + 1)
    # A counting sort, because numpy's argsort needs 8 bytes or more per sequence.
    order = np.empty(rows, np.min_scalar_type(rows))
    place = 0
    for count in np.flatnonzero(histogram)[::-1]:
        found = np.flatnonzero(counts == count)
        order[place : place + len(found)] = found
        place += len(found)
    return order


def by_prevalence(stream: TokenStream, length: int) -> np.ndarray:
    """Return unsigned [rows]: the sequences of ``length`` ids, most frequent tokens first, ties in stream order.

    The key of a sequence is the mean of log2((c + 1) / (N + V)) over its tokens, where c is the count of a token in all
    sequences, N the number of tokens and V the size of the vocabulary. This is the average unigram prevalence by which
    the text of Geiping and Goldstein (2022) sorts, likely sequences first (their ``reverse-unigram-curriculum``).
    Their ``unigram-curriculum`` is the opposite, and their published runs are sorted by full stops. N and V shift all
    keys equally and are left out. Logarithms are added in fixed point, so the result does not depend on the order of
    addition.

    Reads the stream twice and uses about 8 bytes per sequence.
    """
    counts = np.zeros(0, np.int64)
    for _, ids in _blocks(stream, length):
        found = np.bincount(ids.ravel(), minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    logarithms = np.rint(np.log2(counts + 1.0) * fixed_point(length)).astype(np.uint32)
    keys = np.empty(len(stream) // length, np.uint32)
    for start, ids in _blocks(stream, length):
        keys[start : start + len(ids)] = logarithms[ids].sum(axis=1, dtype=np.uint32)
    return ascending(np.invert(keys, out=keys))


def fixed_point(length: int) -> int:
    """Return the fixed-point scale with which the sum of ``length`` logarithms of counts fits 32 bits."""
    return int((2**32 - 1) // (LOG_RANGE * length))


def _blocks(stream: TokenStream, length: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (index of the first sequence, unsigned [rows, length]), COUNTED_ROWS at a time."""
    rows = len(stream) // length
    for start in range(0, rows, COUNTED_ROWS):
        stop = min(rows, start + COUNTED_ROWS)
        yield start, stream.read(start * length, stop * length).reshape(-1, length)


def ascending(keys: np.ndarray) -> np.ndarray:
    """Return unsigned [rows]: the indices that sort ``keys`` (uint32) in ascending order; a stable sort.

    Uses about 4 bytes per key beside the keys: a counting sort distributes them by their upper bits, block by block,
    and each group of buckets is then sorted.
    """
    histogram = np.zeros(1 << UPPER, np.int64)
    for start in range(0, len(keys), COUNTED_ROWS):
        histogram += np.bincount(keys[start : start + COUNTED_ROWS] >> UPPER, minlength=len(histogram))
    ends = np.cumsum(histogram)
    places = ends - histogram
    order = np.empty(len(keys), np.min_scalar_type(len(keys)))
    for start in range(0, len(keys), COUNTED_ROWS):
        buckets = keys[start : start + COUNTED_ROWS] >> UPPER
        found = np.argsort(buckets, kind="stable")
        buckets = buckets[found]
        of_bucket = np.arange(len(found)) - np.searchsorted(buckets, buckets)
        order[places[buckets] + of_bucket] = start + found
        places += np.bincount(buckets, minlength=len(histogram))
    first = 0
    while first < len(keys):
        # At least the next bucket, and the following ones that fit.
        next_one, fitting = np.searchsorted(ends, [first, first + SORTED_ROWS], side="right")
        own = order[first : int(ends[max(next_one, fitting - 1)])]
        own[:] = own[np.argsort(keys[own], kind="stable")]
        first += len(own)
    return order
