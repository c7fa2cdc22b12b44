"""From documents to shards: the second pass over the text."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from daybreak.base.errors import UserError
from daybreak.base.records import BlockFile, SpecialIds
from daybreak.data.counting import cut_at_whitespace
from daybreak.data.deduplication import DROPPED, HELDOUT, Verdict
from daybreak.data.documents import Document
from daybreak.data.shards import BlockWriter, ShardWriter
from daybreak.data.tokenizer import vocabulary_size

BATCH_CHARACTERS = 2 << 20


class _Flat:
    """The ids of some documents in one list, with the ends of documents and sentences."""

    def __init__(self, separator: int) -> None:
        self._separator = separator
        self.ids: list[int] = []
        self.documents: list[int] = []
        self.sentences: list[int] = []

    def add(self, sentences: list[list[int]]) -> None:
        # A sentence of which the tokenizer leaves nothing is none; the separator belongs to the last one.
        for sentence in list(filter(None, sentences)) or [[]]:
            self.ids += sentence
            self.sentences.append(len(self.ids))
        self.ids.append(self._separator)
        self.sentences[-1] = len(self.ids)
        self.documents.append(len(self.ids))


class Encoder:
    """Encodes each document that stays into its split, and counts the ids of the train split.

    Args:
        folder: an existing folder, ours until it is finished.
        tokenizer: trained; from now on it reads special tokens in text as mere text.
        special: its special ids.
        sentences: whether sentence ends are recorded; then every document must have sentences.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, special: SpecialIds, *, sentences: bool):
        self._folder, self._tokenizer, self._separator = folder, tokenizer, special.sep
        # "[SEP]" written in the text is text: only we close documents.
        tokenizer.encode_special_tokens = True
        self.vocabulary = vocabulary_size(tokenizer)
        self.token_bytes = 2 if self.vocabulary <= 1 << 16 else 4
        self.train = ShardWriter(folder, "train", self.token_bytes, sentences=sentences)
        self.heldout = ShardWriter(folder, "heldout", self.token_bytes, sentences=sentences)
        self._counts = np.zeros(self.vocabulary, np.uint64)

    def run(self, documents: Iterable[Document], verdict: Verdict) -> None:
        """Encode ``documents``, in the order in which ``verdict`` knows them.

        Raises:
            UserError: there are more or fewer of them than ``verdict`` knows.
        """
        batch: list[tuple[Document, bool]] = []
        size = number = 0
        for number, document in enumerate(documents, 1):
            fate = verdict.fates[number - 1] if number <= len(verdict.fates) else DROPPED
            if fate == DROPPED:
                continue
            batch.append((document, fate == HELDOUT))
            size += len(document.text)
            if size >= BATCH_CHARACTERS:
                self._encode(batch)
                batch, size = [], 0
        self._encode(batch)
        if number != len(verdict.fates):
            raise UserError("The input changed while it was read.", "Start again when nothing writes to it.")

    def _encode(self, batch: list[tuple[Document, bool]]) -> None:
        # A sentence, or a document without sentences, is a part; long parts go to the tokenizer in pieces.
        parts = [list(document.sentences or (document.text,)) for document, _ in batch]
        pieces = [list(cut_at_whitespace(part)) for part in itertools.chain.from_iterable(parts)]
        flat = list(itertools.chain.from_iterable(pieces))
        encoded = iter(self._tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        part_ids = [list(itertools.chain.from_iterable(next(encoded).ids for _ in piece)) for piece in pieces]
        split: dict[bool, _Flat] = {held: _Flat(self._separator) for held in (False, True)}
        place = 0
        for (_, held), own in zip(batch, parts, strict=True):
            split[held].add(part_ids[place : place + len(own)])
            place += len(own)
        for held, writer in ((False, self.train), (True, self.heldout)):
            if split[held].ids:
                ids = np.array(split[held].ids, np.uint32)
                writer.write(ids, np.array(split[held].documents), np.array(split[held].sentences))
                if not held:
                    self._counts += np.bincount(ids, minlength=len(self._counts)).astype(np.uint64)

    def write_counts(self) -> BlockFile:
        """Write the unigram counts, uint64[vocabulary]."""
        file = BlockWriter(self._folder / "unigram.bin")
        file.write(self._counts.astype("<u8"))
        return file.close()
