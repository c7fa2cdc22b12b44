"""One document per sequence, as in pretraining-BERT ("bert-8gb"): [CLS], the start of the document, [SEP], padding.

The rest of a longer document is not used. ``daybreak prepare --chunk-characters`` splits documents to about the length
of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daybreak.core.batch import Batch
from daybreak.data.sequences.sampler import RowsConfig, ShuffledSampler, TokenIds
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds


@dataclass(frozen=True, kw_only=True)
class ChunkRows(RowsConfig):
    """[CLS], a document's first ``length - 2`` tokens, [SEP], padding; all documents once an epoch, shuffled."""

    mask_padding: bool = True
    """Whether padding is excluded from attention. The original has no such mask."""

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


class ChunkSampler(ShuffledSampler):
    """Returns the documents of ``stream``; an empty one becomes [CLS] [SEP]."""

    def __init__(self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, mask_padding: bool):
        self._stream, self._length, self._seed, self._special = stream, length, seed, special
        self._mask_padding = mask_padding
        self._ends = stream.document_ends()
        self.rows_per_epoch = len(self._ends)

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
