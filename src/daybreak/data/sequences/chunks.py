"""One document a row, as of pretraining-BERT ("bert-8gb"): [CLS], the document's beginning, [SEP], padding.

What a document has beyond the row is never read, so documents should be about as long as a row:
``daybreak prepare --chunk-characters`` cuts them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daybreak.core.batch import Batch
from daybreak.data.sequences.sampler import RowsConfig, Sampler, TokenIds, visit
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds


@dataclass(frozen=True, kw_only=True)
class ChunkRows(RowsConfig):
    """[CLS], a document's first ``length - 2`` tokens, [SEP], padding; all documents once an epoch, shuffled."""

    mask_padding: bool = True
    """Nobody looks at padding. The original gave no mask, so that all its positions attended to [PAD] too."""

    def build(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds,
        *,
        token_ids: TokenIds | None = None,
    ) -> ChunkSampler:
        return ChunkSampler(stream, length, seed, special, mask_padding=self.mask_padding)


class ChunkSampler(Sampler):
    """Hands out documents of ``stream``; one with no token of its own is a row of [CLS] [SEP]."""

    def __init__(self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, mask_padding: bool):
        self._stream, self._length, self._seed, self._special = stream, length, seed, special
        self._mask_padding = mask_padding
        self._ends = stream.document_ends()
        self.rows_per_epoch = len(self._ends)

    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        return self._gather(visit(position, rows, self.rows_per_epoch, self._seed)[1])

    def view(self, progress: float) -> None:
        """Rows are the same all along."""

    def in_order(self, count: int) -> Batch:
        return self._gather(np.arange(min(count, self.rows_per_epoch)))

    def _gather(self, order: np.ndarray) -> Batch:
        ids = np.full((len(order), self._length), self._special.pad, np.int64)
        ids[:, 0] = self._special.cls
        filled = np.empty(len(order), np.int64)
        for place, document in enumerate(order.tolist()):
            start = int(self._ends[document - 1]) if document else 0
            own = min(int(self._ends[document]) - 1 - start, self._length - 2)
            ids[place, 1 : 1 + own] = self._stream.read(start, start + own)
            ids[place, 1 + own] = self._special.sep
            filled[place] = own + 2
        attend = np.arange(self._length) < filled[:, None] if self._mask_padding else None
        return Batch(ids=ids, attend=attend, special=self._special)
