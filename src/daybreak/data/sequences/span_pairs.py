"""Pairs of neighboring spans of one document for a contrastive loss; a function of (seed, position).

A passage is a document, or one of the equal parts of at most PASSAGE tokens of a longer document. Each epoch visits all
passages once, in an order keyed by the seed. Sequences 2i and 2i + 1 of the run are two spans of one passage, with
random lengths; the second begins a few tokens before or after the end of the first. A passage that is too short for the
drawn lengths gives shorter spans, at least its two halves.

A model that trains on single spans alone loses the attention between segments and the fit to longer text. A fraction
of the pairs is therefore replaced by two sequences of views (see ``views``) or two ordinary sequences of the stream,
which belong to no document.
"""

from __future__ import annotations

import numpy as np

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.data.sequences.sampler import Sampler, add_special_tokens, shuffled_indices, uniforms
from daybreak.data.sequences.shards import TokenStream
from daybreak.data.sequences.views import ViewRows, ViewSampler
from daybreak.schemas.run import SpecialIds

PASSAGE = 2048
"""Maximum tokens of a passage."""
FEWEST = 8
"""Minimum tokens of a passage; shorter documents are skipped."""
FEWEST_PASSAGES = 2
"""Minimum passages of a text, because the loss compares spans of different documents."""
OVERLAP, GAP = 6, 7
"""Maximum tokens shared by the two spans, and maximum tokens between them."""
DRAWS = 4
"""Random numbers per pair: two lengths, the distance, the position."""
NO_DOCUMENT = -1
"""Value of ``Batch.passage_ids`` for a sequence that takes no part in the contrastive loss."""


def passages(stream: TokenStream) -> int:
    """Return the number of passages of a stream."""
    return int(_documents(stream)[2].sum())


def check_passages(count: int) -> None:
    """Raise UserError if a stream has too few passages to compare spans."""
    if count < FEWEST_PASSAGES:
        raise UserError(
            f"The text has {count} documents of at least {FEWEST} tokens, too few to compare spans.",
            "Give more text, prepare it with another --document rule, or leave --finish.start at 1.",
        )


def _documents(stream: TokenStream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each document its end in the stream, its tokens without the separator, and its passages, int64 [N]."""
    ends = stream.document_ends().astype(np.int64)
    sizes: np.ndarray = np.diff(ends, prepend=0) - 1
    return ends, sizes, np.where(sizes >= FEWEST, -(-sizes // PASSAGE), 0)


class SpanSampler(Sampler):
    """Returns [CLS] span [SEP] and padding, with the numbers of the passages; uses 16 bytes of memory per passage.

    Args:
        shortest: minimum tokens of a span, if its passage is long enough.
        longest: maximum tokens of a span; at most the length of a sequence.
        views: fraction of the pairs that are replaced by two sequences of views.
        ordinary: fraction of the pairs that are replaced by two ordinary sequences of the stream.
    """

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds,
        *,
        shortest: int,
        longest: int,
        views: float = 0.0,
        ordinary: float = 0.0,
    ):
        self._stream, self._length, self._seed, self._special = stream, length, seed, special
        self._longest = min(longest, length - 2)
        self._shortest = min(shortest, self._longest)
        ends, sizes, parts = _documents(stream)
        document = np.repeat(np.arange(len(ends)), parts)
        number = np.arange(len(document)) - np.repeat(np.cumsum(parts) - parts, parts)
        begins = sizes[document] * number // parts[document]
        self._sizes = sizes[document] * (number + 1) // parts[document] - begins
        self._starts = ends[document] - 1 - sizes[document] + begins
        check_passages(len(self._starts))
        # At most half a sequence, so that each contains at least two views.
        reach = min(self._longest, max(2, length // 2 - 1))
        self._unpaired_fraction = views + ordinary
        if self._unpaired_fraction:
            share = views / self._unpaired_fraction
            rows = ViewRows(fraction=share, later_fraction=share, shortest=min(self._shortest, reach), longest=reach)
            self._unpaired = ViewSampler(stream, length, seed, special, rows)
        mean = (self._shortest + self._longest) / 2
        self.rows_per_epoch = max(2, int(self._sizes.sum() / mean))

    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        numbers = np.arange(position, position + rows)
        pairs, first = numbers // 2, position // 2
        passages = shuffled_indices(first, (position + rows + 1) // 2 - first, len(self._starts), self._seed)[1]
        batch = self._gather(numbers, passages[pairs - first])
        if self._unpaired_fraction:
            chosen = uniforms(f"{self._seed} views among spans", pairs) < self._unpaired_fraction
            batch.input_ids[chosen] = self._unpaired.take(position, rows).input_ids[chosen]
            batch.attention_mask[chosen] = True
            batch.passage_ids[chosen] = NO_DOCUMENT
        return batch

    def view(self, progress: float) -> None:
        return None

    def at(self, numbers: np.ndarray) -> Batch:
        return self._gather(numbers, numbers // 2 % len(self._starts))

    def _gather(self, numbers: np.ndarray, passages: np.ndarray) -> Batch:
        """Return the sequences with these numbers in the run, of these passages, int64 [B] each."""
        starts, sizes = (both[np.arange(len(numbers)), numbers % 2] for both in self._spans(numbers // 2, passages))
        spans = [[self._stream.read(start, start + size)] for start, size in zip(starts.tolist(), sizes.tolist())]
        ids, attention_mask = add_special_tokens(spans, self._length, self._special)
        return Batch(input_ids=ids, attention_mask=attention_mask, passage_ids=passages, special=self._special)

    def _spans(self, pairs: np.ndarray, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the stream positions and lengths of both spans, int64 [N, 2] each, of ``pairs`` in ``passages``."""
        draw = uniforms(f"{self._seed} spans", pairs[:, None] * DRAWS + np.arange(DRAWS))
        room = self._sizes[passages]
        lengths = self._shortest + (draw[:, :2] * (self._longest - self._shortest + 1)).astype(np.int64)
        lengths = np.minimum(lengths, room[:, None] // 2)
        # At least half of each span is its own.
        overlap = np.minimum(OVERLAP, lengths.min(axis=1) // 2)
        gap = np.minimum(GAP, room - lengths.sum(axis=1))
        apart = (draw[:, 2] * (overlap + gap + 1)).astype(np.int64) - overlap
        places = room - lengths.sum(axis=1) - apart + 1
        begin = self._starts[passages] + (draw[:, 3] * places).astype(np.int64)
        return np.stack((begin, begin + lengths[:, 0] + apart), axis=1), lengths
