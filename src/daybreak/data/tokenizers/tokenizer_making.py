"""Common parts of tokenizer training: configuration, special tokens, alphabets, frequencies and saving."""

from __future__ import annotations

import itertools
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from daybreak.core.errors import UserError
from daybreak.core.files import write_json, write_text
from daybreak.core.serialization import Component, to_dict
from daybreak.core.special_tokens import USUAL
from daybreak.data.readers.text_pieces import cut_at_whitespace

SMALLEST_ALPHABET, LARGEST_ALPHABET = 128, 1000
BATCH_DOCUMENTS = 64
LONGEST_WORD = 1000
"""Characters. Training time is quadratic in the length of a word, and words this long are not informative."""
COVERAGE = 0.9995
"""Fraction of the text that the alphabet covers, as in SentencePiece (Kudo and Richardson 2018)."""

_LONG_WORD = re.compile(rf"\w{{{LONGEST_WORD}}}|[^\w\s]{{{LONGEST_WORD}}}")


def training_chunks(texts: Iterable[str]) -> Iterator[str]:
    """Yield ``texts`` in chunks for the trainer; words of more than LONGEST_WORD characters are split."""
    for text in texts:
        for piece in cut_at_whitespace(text):
            yield _LONG_WORD.sub(r"\g<0> ", piece) if _LONG_WORD.search(piece) else piece


def common_ids(texts: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
    """Return bool[ids]: whether enough texts use an id, which is SEVERAL_DOCUMENTS of MANY_DOCUMENTS or more.

    This keeps the names of a single text out of the vocabulary, with two limits: of fewer than MANY_DOCUMENTS texts,
    every id is common; and chunks or lines of one file count as texts of their own.
    """
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
    return counts >= SEVERAL_DOCUMENTS if documents >= MANY_DOCUMENTS else np.ones(len(counts), bool)


def alphabet_limit(vocabulary: int) -> int:
    """Return the alphabet size for this vocabulary size and a script with few characters, such as Latin."""
    return min(LARGEST_ALPHABET, max(SMALLEST_ALPHABET, vocabulary // 32))


@dataclass(frozen=True)
class Alphabet:
    """The characters of a text after normalization."""

    counts: dict[str, int]
    """Occurrences of each character, most frequent first, ties in Unicode order."""
    continues: frozenset[str]
    """Characters that may continue a word."""

    def fraction(self, characters: Set[str]) -> float:
        """Return the fraction of the text that consists of these characters."""
        return sum(self.counts.get(one, 0) for one in characters) / max(1, sum(self._fractions().values()))

    def _fractions(self) -> dict[str, int]:
        return self.counts | {"a": 0}  # it was counted with every character

    def fitted(self, vocabulary: int) -> tuple[list[str], list[str]]:
        """Return the characters for a vocabulary of this size, and those that may continue a word; both sorted.

        Their number is ``alphabet_limit`` unless these cover less than COVERAGE of the text. The text is then in a
        script with many characters (Chinese, Japanese, Korean), and those that occur more than once may take half of
        the vocabulary.
        """
        kept = list(self.counts)[: alphabet_limit(vocabulary)]
        fractions = self._fractions()
        if sum(map(fractions.__getitem__, kept)) < COVERAGE * sum(fractions.values()):
            places = itertools.accumulate(2 if character in self.continues else 1 for character in self.counts)
            repeated = (used for used, count in zip(places, self.counts.values()) if count > 1)
            room = sum(1 for used in repeated if used <= vocabulary // 2)
            kept = list(self.counts)[: max(room, len(kept))]
        return sorted(kept), sorted(self.continues.intersection(kept))


def alphabet_of(texts: Iterable[str], tokenizer: Tokenizer) -> Alphabet:
    """Count the characters of ``texts`` after the normalizer and pre-tokenizer of ``tokenizer``."""
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
        # A character may continue a word after a letter, or after punctuation if a run of it is one word.
        for word in [*words(f"a{chr(code)}"), *words(f".{chr(code)}")]:
            continues.update(word[1:])
        for word in words(f"a{chr(code)}"):
            for character in word:
                counted[character] = counted.get(character, 0) + int(raw[code])
    # The probe's own "a" was counted with every character; it is in the alphabet of any text that has one anyway.
    order = sorted(counted, key=lambda character: (-counted[character], character))
    return Alphabet({character: counted[character] for character in order}, frozenset(continues))


SPECIAL_TOKENS = tuple(USUAL.values())
"""The special tokens in id order, which are also the fields of SpecialIds."""
SMALLEST_VOCABULARY = 300
LARGEST_VOCABULARY = 1 << 20
MANY_DOCUMENTS = 100
"""Number of documents from which every token must be used in SEVERAL_DOCUMENTS of them."""
SEVERAL_DOCUMENTS = 2
SURPLUS = 1 / 4
"""Fraction of extra tokens trained, to replace those that too few documents use."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig(Component):
    """The configuration of a tokenizer."""

    def check(self) -> None:
        """Raise UserError if a setting is wrong; this reads no text."""

    @abstractmethod
    def make(self, texts: Iterable[str], folder: Path) -> Tokenizer:
        """Write the files of the tokenizer into ``folder`` and return it.

        Args:
            texts: training text, one string per document, in any order; iterable more than once.
            folder: the tokenizer folder, created here.
        """

    def identity(self) -> Any:
        """Return a JSON value that identifies this configuration."""
        return to_dict(self)

    def training_settings(self) -> dict[str, Any]:
        """Return the settings of a tokenizer that is trained, as JSON values; empty for any other."""
        return {}


@dataclass(frozen=True, kw_only=True)
class TrainedTokenizer(TokenizerConfig):
    """A tokenizer that is trained, deterministically."""

    smallest: ClassVar[str]
    """The minimum content of a vocabulary, for messages."""

    vocabulary: int = 32768
    """Number of ids, special tokens included; a small text may give fewer."""

    def training_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = to_dict(self)
        return settings

    def check(self) -> None:
        self._check_size(self.vocabulary)

    def _check_size(self, vocabulary: int) -> None:
        if vocabulary < SMALLEST_VOCABULARY:
            raise UserError(
                f"A vocabulary of {vocabulary} cannot contain {self.smallest}.", f"Use {SMALLEST_VOCABULARY} or more."
            )
        if vocabulary > LARGEST_VOCABULARY:
            raise UserError(f"A vocabulary of {vocabulary} is too large.", f"Use at most {LARGEST_VOCABULARY}.")

    @abstractmethod
    def learn(self, texts: Iterable[str], sizes: Sequence[int]) -> list[Tokenizer]:
        """Implement ``train_sizes`` for checked arguments; ``texts`` can be iterated several times."""

    def make(self, texts: Iterable[str], folder: Path) -> Tokenizer:
        tokenizer = self.train(texts)
        save_tokenizer(tokenizer, folder)
        return tokenizer

    def train(self, texts: Iterable[str]) -> Tokenizer:
        """Train on ``texts``, which are read twice; an iterator is stored in memory."""
        return self.train_sizes(texts, (self.vocabulary,))[0]

    def train_sizes(self, texts: Iterable[str], sizes: Sequence[int]) -> list[Tokenizer]:
        """Train once, at the largest of ``sizes``, and derive the smaller vocabularies from it.

        The largest equals the result of ``train``.
        """
        self._check_size(min(sizes))
        return self.learn(list(texts) if iter(texts) is texts else texts, sizes)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` so that ``AutoTokenizer`` loads the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    names = {f"{role}_token": token for role, token in USUAL.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "do_lower_case": tokenizer.normalizer.normalize_str("A") == "a",
    }
    write_json(folder / "tokenizer_config.json", config)
