"""Orders in which rows are read once and for all, as the Cramming paper and its code have them (docs/formats.md).

Both go through the stream block by block and hold a few bytes a row, for a corpus has tens of millions of rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from daybreak.data.sequences.shards import TokenStream

COUNTED_ROWS = 1 << 14
"""Rows that are looked at in one go."""
SORTED_ROWS = 1 << 20
"""Rows that are sorted in one go, and more where more have nearly the same key."""
UPPER = 16
"""Bits of a key by which rows are parted before they are sorted: the upper half."""
LOG_RANGE = 64
"""No logarithm of a count is as large."""


def by_full_stops(stream: TokenStream, length: int, full_stop: int) -> np.ndarray:
    """Return unsigned [rows]: the rows of ``length`` ids, most full stops first, equals in stream order.

    Reads the stream once and holds about 6 bytes a row.
    """
    rows = len(stream) // length
    counts = np.empty(rows, np.uint16)
    histogram = np.zeros(length + 1, np.int64)
    for start, ids in _blocks(stream, length):
        found = (ids == full_stop).sum(axis=1)
        counts[start : start + len(ids)] = found
        histogram += np.bincount(found, minlength=length + 1)
    # A counting sort: numpy's own needs 8 bytes a row and more.
    order = np.empty(rows, np.min_scalar_type(rows))
    place = 0
    for count in np.flatnonzero(histogram)[::-1]:
        found = np.flatnonzero(counts == count)
        order[place : place + len(found)] = found
        place += len(found)
    return order


def by_prevalence(stream: TokenStream, length: int) -> np.ndarray:
    """Return unsigned [rows]: the rows of ``length`` ids, those of the most frequent tokens first, ties in order.

    The key of a row is the mean of log2((c + 1) / (N + V)) over its tokens, where c is how often a token stands in all
    rows, N how many tokens they have and V the vocabulary: the average unigram prevalence by which the text of Geiping
    and Goldstein (2022) sorts, so that likely rows come first (``reverse-unigram-curriculum`` in their code; its
    ``unigram-curriculum`` is the opposite, and the runs that they published are sorted by full stops). N and V shift
    all keys alike. Logarithms are added in fixed point, so that no order of adding changes the order of rows.

    Reads the stream twice and holds about 8 bytes a row.
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
    """What stands for 1 where ``length`` logarithms of counts are added in 32 bits."""
    return int((2**32 - 1) // (LOG_RANGE * length))


def _blocks(stream: TokenStream, length: int) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the first row, unsigned [rows, length]), COUNTED_ROWS at a time."""
    rows = len(stream) // length
    for start in range(0, rows, COUNTED_ROWS):
        stop = min(rows, start + COUNTED_ROWS)
        yield start, stream.read(start * length, stop * length).reshape(-1, length)


def ascending(keys: np.ndarray) -> np.ndarray:
    """Return unsigned [rows]: the places of the ascending ``keys`` (uint32), equal ones as they lie.

    Holds about 4 bytes a row beside the keys: rows are parted by the upper bits of their keys, which a counting sort
    does block by block, and then sorted some buckets at a time.
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
        # The next bucket in any case, and those behind it that fit.
        next_one, fitting = np.searchsorted(ends, [first, first + SORTED_ROWS], side="right")
        own = order[first : int(ends[max(next_one, fitting - 1)])]
        own[:] = own[np.argsort(keys[own], kind="stable")]
        first += len(own)
    return order
