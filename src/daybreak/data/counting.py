"""What a tokenizer must know of a text before it learns pieces: its characters, and how many documents use a piece."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer

SMALLEST_ALPHABET, LARGEST_ALPHABET = 128, 1000
BATCH_DOCUMENTS = 64
PIECE_CHARACTERS = 1 << 16
"""Long texts are cut at whitespace into pieces of about this size: bounds memory and feeds every core."""


def cut_at_whitespace(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``text`` in pieces of at most about ``characters``, cut only where whitespace is: same ids in all."""
    start = 0
    while len(text) - start > characters:
        end = max(text.rfind(" ", start + 1, start + characters), text.rfind("\n", start + 1, start + characters))
        if end < 0:
            ends = [place for mark in " \n" if (place := text.find(mark, start + characters)) >= 0]
            end = min(ends, default=len(text))
        yield text[start:end]
        start = end
    yield text[start:]


def document_counts(texts: Iterable[str], tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """Return int64[ids], the number of texts that use each id, and the number of texts."""
    counts = np.zeros(tokenizer.get_vocab_size(), np.int64)
    documents = 0
    source = iter(texts)
    while batch := list(itertools.islice(source, BATCH_DOCUMENTS)):
        pieces = [list(cut_at_whitespace(text)) for text in batch]
        flat = list(itertools.chain.from_iterable(pieces))
        encoded = iter(tokenizer.encode_batch_fast(flat, add_special_tokens=False))
        for own in pieces:
            counts[list({id for _ in own for id in next(encoded).ids})] += 1
        documents += len(batch)
    return counts, documents


def alphabet_limit(vocabulary: int) -> int:
    return min(LARGEST_ALPHABET, max(SMALLEST_ALPHABET, vocabulary // 32))


def alphabet_of(texts: Iterable[str], tokenizer: Tokenizer, limit: int) -> tuple[list[str], list[str]]:
    """Return the commonest characters after normalisation, and those among them that may continue a word; sorted."""
    raw = np.zeros(0x110000, np.int64)
    for text in texts:
        for piece in cut_at_whitespace(text):
            values, counts = np.unique(np.frombuffer(piece.encode("utf-32-le"), np.uint32), return_counts=True)
            raw[values] += counts
    counted: dict[str, int] = {}
    continues: set[str] = set()

    def words(text: str) -> list[str]:
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))]

    for code in np.flatnonzero(raw):
        # A character goes on a word after a letter, or after a mark where marks in a row are a word.
        for word in [*words(f"a{chr(code)}"), *words(f".{chr(code)}")]:
            continues.update(word[1:])
        for word in words(f"a{chr(code)}"):
            for character in word:
                counted[character] = counted.get(character, 0) + int(raw[code])
    # The probe's own "a" was counted with every character; it is in the alphabet of any text that has one anyway.
    kept = sorted(counted, key=lambda character: (-counted[character], character))[:limit]
    return sorted(kept), sorted(continues.intersection(kept))
