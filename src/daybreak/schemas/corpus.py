"""What ``daybreak prepare`` found out about a text, as it reaches disk: DATA/corpus.json.

Counts and shares only; text stands in it where the user asked for examples (``--show-text``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

CORPUS_FILE = "corpus.json"


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How often a quantity fell between two edges."""

    edges: list[float]
    """Ascending; what is below the first or not below the last belongs to the outermost ones."""
    counts: list[int]
    """One fewer than ``edges``."""


@dataclass(frozen=True, kw_only=True)
class DroppedText:
    """A document that a step left out, shown because the user asked for it."""

    reason: str
    text: str
    """Its beginning."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step of the preparation did."""

    name: str
    why: str
    """What it is for and where it comes from, in one line for people."""
    passes: int
    """How often it reads the whole text beyond the two readings that every preparation takes."""
    documents_in: int
    documents_out: int
    characters_in: int
    characters_out: int
    reasons: dict[str, int] = field(default_factory=dict)
    """Documents left out, by reason."""
    examples: list[DroppedText] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SourceReport:
    """What one input gave."""

    path: str
    """As the user typed it."""
    documents: int
    """Read, before any step."""
    characters: int
    kept_documents: int
    kept_characters: int
    epochs: float = 1.0
    """How often each document stands in the training text."""


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """How much of one evaluation text was met in the corpus."""

    path: str
    """As the user typed it."""
    items: int
    """Lines of it that are long enough to be looked for."""
    items_found: int
    """Of these, items that were met: 13 of their words in a row, or all of one with 8 to 12 words."""
    documents: int
    """Documents of the corpus in which any was met."""
    removed: bool


@dataclass(frozen=True, kw_only=True)
class TokenizerQuality:
    """How a tokenizer treats held-out text. A word is what whitespace parts."""

    vocabulary: int
    characters: int
    tokens_per_word: float
    """Fertility (Rust et al. 2021, arXiv 2012.15613)."""
    characters_per_token: float
    whole_words: float
    """Share of words that are one piece."""
    unknown_tokens: float
    """Share of tokens that are the unknown token."""
    covered_words: float
    """Share of words without an unknown token."""


@dataclass(frozen=True, kw_only=True)
class VocabularyAdvice:
    """What vocabulary size suits the text, and what each size would give."""

    sizes: list[TokenizerQuality]
    recommended: int
    why: str


@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """All of DATA/corpus.json."""

    preset: str
    """plain, books, web or crammed."""
    documents: int
    """Kept, training and held-out together, each once."""
    characters: int
    words: int
    tokens: int
    seconds: float
    steps: list[StepReport]
    """In their order; exact duplicates are one of them."""
    sources: list[SourceReport]
    lengths: Histogram
    """Characters of the kept documents; edges are powers of two."""
    compressibility: Histogram
    """Tokens per character of the kept documents; Cramming leaves out what is at 0.25 or above."""
    scripts: dict[str, float]
    """Share of the letters by Unicode script (Latin, Han, Arabic ...), largest first."""
    languages: dict[str, float] = field(default_factory=dict)
    """Share of the kept documents by language code, where a model for it was given."""
    contamination: list[Contamination] = field(default_factory=list)
    tokenizer: TokenizerQuality | None = None
    advice: VocabularyAdvice | None = None
