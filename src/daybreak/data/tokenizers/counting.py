"""What a tokenizer must know of a text before it learns pieces: its characters, and how many documents use a piece."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from daybreak.data.readers.text_pieces import cut_at_whitespace

SMALLEST_ALPHABET, LARGEST_ALPHABET = 128, 1000
BATCH_DOCUMENTS = 64
LONGEST_WORD = 1000
"""Characters. Trainers take time that grows with the square of a word, and learn nothing from one this long."""
COVERAGE = 0.9995
"""Share of a text that its alphabet should hold, as SentencePiece has it (Kudo and Richardson 2018)."""

_LONG_WORD = re.compile(rf"\w{{{LONGEST_WORD}}}|[^\w\s]{{{LONGEST_WORD}}}")


def training_pieces(texts: Iterable[str]) -> Iterator[str]:
    """Yield ``texts`` in pieces as a trainer should see them: words of over LONGEST_WORD characters are parted."""
    for text in texts:
        for piece in cut_at_whitespace(text):
            yield _LONG_WORD.sub(r"\g<0> ", piece) if _LONG_WORD.search(piece) else piece


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
    """Characters that a vocabulary of this size holds of a script with few, such as Latin."""
    return min(LARGEST_ALPHABET, max(SMALLEST_ALPHABET, vocabulary // 32))


@dataclass(frozen=True)
class Alphabet:
    """The characters of a text after normalisation."""

    counts: dict[str, int]
    """Occurrences of each, most frequent first, ties in the order of Unicode."""
    continues: frozenset[str]
    """Those that may go on a word."""

    def share(self, characters: Set[str]) -> float:
        """How much of the text these characters are."""
        return sum(self.counts.get(one, 0) for one in characters) / max(1, sum(self._shares().values()))

    def _shares(self) -> dict[str, int]:
        return self.counts | {"a": 0}  # it was counted with every character

    def fitted(self, vocabulary: int) -> tuple[list[str], list[str]]:
        """Return the characters for a vocabulary of this size, and those among them that go on a word; both sorted.

        They are as many as ``alphabet_limit`` says, unless so few would hold less than COVERAGE of the text: then it is
        in a script of many characters (Chinese, Japanese, Korean), and those that occur more than once may take
        half of the vocabulary.
        """
        kept = list(self.counts)[: alphabet_limit(vocabulary)]
        shares = self._shares()
        if sum(map(shares.__getitem__, kept)) < COVERAGE * sum(shares.values()):
            places = itertools.accumulate(2 if character in self.continues else 1 for character in self.counts)
            repeated = (used for used, count in zip(places, self.counts.values()) if count > 1)
            room = sum(1 for used in repeated if used <= vocabulary // 2)
            kept = list(self.counts)[: max(room, len(kept))]
        return sorted(kept), sorted(self.continues.intersection(kept))


def alphabet_of(texts: Iterable[str], tokenizer: Tokenizer) -> Alphabet:
    """Count the characters of ``texts`` as ``tokenizer`` normalises and parts them."""
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
    order = sorted(counted, key=lambda character: (-counted[character], character))
    return Alphabet({character: counted[character] for character in order}, frozenset(continues))
