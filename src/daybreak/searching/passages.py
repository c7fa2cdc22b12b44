"""Passages: the documents of prepared data, cut into pieces of about equal length that begin at a word.

Where no word begins nearby, as in text without spaces, they begin at a character.

N passages. A document is numbered within its split; passages of the training split come first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from daybreak.data.sequences.shards import Shards, TokenStream
from daybreak.data.tokenizers.tokenizer import continuation_table, inner_byte_table

SPLITS = ("train", "heldout")
MOST_TOKENS = 96
"""Tokens of a passage at most: about 60 English words."""
SHIFT = 8
"""A cut moves back to the beginning of a word by at most MOST_TOKENS / SHIFT tokens."""
DECODED_TOGETHER = 4096
"""Passages that are decoded in one call."""


def cut_passages(shards: Shards, tokenizer: Tokenizer, most: int) -> np.ndarray:
    """Cut both splits; a function of the data and ``most`` alone.

    A document becomes as few passages of equal length as fit. Its separator belongs to none. A copy of an earlier
    document of its split, as ``prepare --epochs`` makes them, has no passages.

    Args:
        most: tokens of a passage at most.

    Returns:
        int64 [N, 4]: 0 for the training split or 1 for the held-out split, document, first token of the passage in
        the stream of its split, and the token just past its last one.
    """
    tables = continuation_table(tokenizer), inner_byte_table(tokenizer)
    parts = [_cut(stream, tables, most) for stream in (shards.train, shards.heldout)]
    return np.concatenate([np.insert(part, 0, split, axis=1) for split, part in enumerate(parts)])


def _cut(stream: TokenStream, tables: tuple[np.ndarray, ...], most: int) -> np.ndarray:
    """Return int64 [N, 3] of document, start and end."""
    ends = stream.document_ends().astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    sizes = ends - starts - 1  # without the separator
    shift = most // SHIFT
    counts = -(-sizes // (most - shift))
    counts[_copies(stream, starts, ends)] = 0
    documents = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = starts[documents] + sizes[documents] * number // counts[documents]
    inner = number > 0
    first[inner] = _moved_back(stream, tables, first[inner], shift)
    last = np.append(first[1:], 0)
    closes = np.append(documents[1:] != documents[:-1], True)
    last[closes] = (ends - 1)[documents[closes]]
    return np.stack([documents, first, last], axis=1)


def _copies(stream: TokenStream, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return bool [documents]: whether an earlier document has the same tokens."""
    keys = np.fromiter((_key(stream.read(start, end)) for start, end in zip(starts.tolist(), ends.tolist())), np.uint64)
    copies = np.ones(len(keys), bool)
    copies[np.unique(keys, return_index=True)[1]] = False
    return copies


def _key(tokens: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=8).digest(), "little")


def _moved_back(stream: TokenStream, tables: tuple[np.ndarray, ...], places: np.ndarray, shift: int) -> np.ndarray:
    """Move each place back by at most ``shift`` tokens to the nearest one that begins a word, or else a character."""
    if not len(places):
        return places
    continues, inside = (table[stream.windows(places - shift, shift + 1)][:, ::-1] for table in tables)
    back = np.where(continues.all(axis=1), (~inside).argmax(axis=1), (~continues).argmax(axis=1))
    return places - back  # argmax is 0 where all tokens begin inside a character


@dataclass(frozen=True)
class PassageReader:
    """Reads the tokens and the text of passages."""

    shards: Shards
    tokenizer: Tokenizer
    passages: np.ndarray
    """int64 [N, 4], see ``cut_passages``."""

    def ids(self, number: int) -> np.ndarray:
        """Token ids of a passage."""
        split, _, start, end = self.passages[number].tolist()
        return (self.shards.heldout if split else self.shards.train).read(start, end)

    def texts(self, first: int, past: int) -> list[str]:
        """Decoded text of passages [first, past), without special tokens."""
        return self.tokenizer.decode_batch([self.ids(number).tolist() for number in range(first, past)])

    def all_texts(self, show: Callable[[float], None] = lambda share: None) -> Iterator[str]:
        """Decoded text of all passages in order; ``show`` is called with the fraction that is decoded."""
        for first in range(0, len(self.passages), DECODED_TOGETHER):
            past = min(first + DECODED_TOGETHER, len(self.passages))
            yield from self.texts(first, past)
            show(past / len(self.passages))
