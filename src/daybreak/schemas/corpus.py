"""Type of DATA/corpus.json, the report of ``daybreak prepare`` on a text.

It holds counts and fractions, and text only if the user asks for examples (``--show-text``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

CORPUS_FILE = "corpus.json"


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Histogram of a quantity."""

    edges: list[float]
    """Ascending; values outside the edges are counted in the outermost bins."""
    counts: list[int]
    """One fewer than ``edges``."""


@dataclass(frozen=True, kw_only=True)
class DroppedText:
    """A removed document, stored because the user asked for examples."""

    reason: str
    text: str
    """Its first characters."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Effect of one filter of the preparation."""

    name: str
    why: str
    """Purpose and source, in one line."""
    passes: int
    """Passes over the whole text beyond the two of every preparation."""
    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Removed documents, by reason."""
    examples: list[DroppedText] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """Documents of one input."""

    path: str
    """As the user typed it."""
    documents: int
    """Documents read, before any filter."""
    characters: int
    kept_documents: int
    kept_characters: int
    epochs: float = 1.0
    """Copies of each document in the training text."""


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """Overlap of one evaluation text with the corpus."""

    path: str
    """As the user typed it."""
    items: int
    """Lines that are long enough to be searched for."""
    items_found: int
    """Lines that occur in the corpus: 13 consecutive words of them, or all words of a line of 8 to 12 words."""
    documents: int
    """Documents of the corpus in which any of them occurs."""
    removed: bool


@dataclass(frozen=True, kw_only=True)
class TokenizerQuality:
    """Quality of a tokenizer on held-out text. Words are separated by whitespace."""

    vocabulary: int
    characters: int
    tokens_per_word: float
    """Fertility (Rust et al. 2021, arXiv 2012.15613)."""
    characters_per_token: float
    whole_words: float
    """Fraction of words that are one token."""
    unknown_tokens: float
    """Fraction of tokens that are the unknown token."""
    covered_words: float
    """Fraction of words without an unknown token."""


@dataclass(frozen=True, kw_only=True)
class VocabularyAdvice:
    """Recommended vocabulary size, with the measurements for each size."""

    sizes: list[TokenizerQuality]
    recommended: int
    why: str


@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """Content of DATA/corpus.json."""

    preset: str
    """Name of the filter preset."""
    documents: int
    """Documents kept, training and held-out together, each counted once."""
    characters: int
    words: int
    tokens: int
    seconds: float
    steps: list[StepReport]
    """In order, including the removal of exact duplicates."""
    sources: list[SourceReport]
    lengths: Histogram
    """Characters of the kept documents; edges are powers of two."""
    compressibility: Histogram
    """Tokens per character of the kept documents; Cramming removes documents at 0.25 or above."""
    scripts: dict[str, float]
    """Fraction of the letters by Unicode script (Latin, Han, Arabic ...), largest first."""
    languages: dict[str, float] = field(default_factory=dict)
    """Fraction of the kept documents by language code; empty without a language model."""
    contamination: list[Contamination] = field(default_factory=list)
    tokenizer: TokenizerQuality | None = None
    advice: VocabularyAdvice | None = None
