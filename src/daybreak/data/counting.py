"""What a tokenizer must know of a text before it learns pieces: its characters, and how many documents use a piece."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

SMALLEST_ALPHABET, LARGEST_ALPHABET = 128, 1000
BATCH_DOCUMENTS = 64
PIECE_CHARACTERS = 1 << 16
"""Long texts are cut at whitespace into pieces of about this size: bounds memory and feeds every core."""


LONGEST_PIECE = 1 << 20
"""Text without any place to cut is cut in the middle here; a word there is none that a tokenizer could know."""
LONGEST_WORD = 1000
"""Characters. Trainers take time that grows with the square of a word, and learn nothing from one this long."""
COVERAGE = 0.9995
"""Share of a text that its alphabet should hold, as SentencePiece has it (Kudo and Richardson 2018)."""

_SPACE = " \n"
# After a full stop or comma of the scripts that write no spaces, where a letter follows: Chinese and Japanese marks
# with their wide forms, Khmer, Tibetan, Burmese and Devanagari ends of sentences.
_MARKS = "\u3001\u3002\uff0c\uff01\uff1f\uff1a\uff1b\u17d4\u17d5\u0f0d\u104a\u104b\u0964"
_AFTER_MARK = re.compile(rf"(?<=[{_MARKS}])(?=[^\W\d_])")
_GAP = re.compile(rf"(?<=[^ \n])(?=[ \n])|{_AFTER_MARK.pattern}")
_LONG_WORD = re.compile(rf"\w{{{LONGEST_WORD}}}|[^\w\s]{{{LONGEST_WORD}}}")


def cut_at_whitespace(text: str, characters: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Yield ``text`` in pieces of at most about ``characters``, cut only where whitespace begins: same ids in all.

    The ids are the same for BERT's tokenizers and for byte-level ones, for which a run of whitespace must stay whole.
    Where there is no whitespace within ``characters``, as in Chinese, a piece ends behind a full stop or comma of such
    a script (the ids are the same unless the normaliser deletes that mark, as Cramming's does). A piece never has more
    than LONGEST_PIECE characters.
    """
    start = 0
    while len(text) - start > characters:
        end = _last_gap(text, start, start + characters) or _next_gap(text, start, characters)
        yield text[start:end]
        start = end
    yield text[start:]


def _last_gap(text: str, start: int, stop: int) -> int:
    """The last place to cut in (start, stop), or 0."""
    end = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
    if end > 0 and (length := len(text[start:end].rstrip(_SPACE))):
        return start + length
    return max((found.start() for found in _AFTER_MARK.finditer(text, start + 1, stop)), default=0)


def _next_gap(text: str, start: int, characters: int) -> int:
    """The first place to cut from ``start + characters`` on, or the end of the text, or of the longest piece."""
    limit = start + max(LONGEST_PIECE, characters)
    found = _GAP.search(text, start + characters, limit)
    return found.start() if found else min(limit, len(text))


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
    """Occurrences of each, commonest first, ties in the order of Unicode."""
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
