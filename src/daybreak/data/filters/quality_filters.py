"""Quality filters of large web corpora: the filters of datatrove (extra ``corpus``) without its word tokenizer.

Their thresholds were chosen for English web pages. Words are separated by whitespace, as in the papers. datatrove uses
spaCy, which counts punctuation marks as words: they have no letters, and Gopher requires a fraction of words with
letters. The reasons to remove a document are the names that datatrove gives them. Of a document longer than
``LONGEST_FILTERED``, only the beginning is examined.
"""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from daybreak.core.errors import UserError
from daybreak.core.words import spaced_words
from daybreak.data.filters.filter import LONGEST_FILTERED, Context, DocumentFilter, FilterFunction, missing_extra
from daybreak.data.readers.sentences import split_sentences

if TYPE_CHECKING:
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.utils.word_tokenizers import WordTokenizer


@functools.cache
def datatrove_words() -> WordTokenizer:
    """Return ``spaced_words`` and ``split_sentences`` as a datatrove tokenizer, without spaCy and downloads."""
    from datatrove.utils.word_tokenizers import WordTokenizer  # an extra

    class PlainWords(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return spaced_words(text)

        def sent_tokenize(self, text: str) -> list[str]:
            return split_sentences(text)

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            """Return one span per sentence; datatrove uses only their number."""
            ends = [0]
            for sentence in split_sentences(text):
                ends.append(ends[-1] + len(sentence) + 1)
            return [(start, end - 1) for start, end in itertools.pairwise(ends)]

    return PlainWords()


@dataclass(frozen=True, kw_only=True)
class QualityFilter(DocumentFilter):
    """A filter of datatrove.

    Memory: the words and n-grams of one document, 250 MB where it is prose of 4 million characters.
    """

    @abstractmethod
    def build(self) -> BaseFilter:
        """Return the filter of datatrove with these settings."""

    def open(self, context: Context) -> FilterFunction:
        try:
            from datatrove.data import Document  # an extra
        except ImportError:
            raise missing_extra(f"The filter {self.name}", "datatrove") from None
        built = self.build()

        def evaluate(text: str) -> str | None:
            # A filter may change the document that it receives, but not the text passed in.
            verdict = built.filter(Document(text=text[:LONGEST_FILTERED], id=""))
            return verdict[1] if isinstance(verdict, tuple) else None

        return evaluate


@dataclass(frozen=True, kw_only=True)
class GopherQuality(QualityFilter):
    """Gopher's limits on words, symbols, bullets and stop words (Rae et al. 2021, arXiv 2112.11446, appendix A)."""

    fewest_words: int = 50
    most_words: int = 100_000
    """0: no limit."""
    stop_words: int = 2
    """Minimum number of eight frequent English words that occur; 0 for other languages."""

    def __post_init__(self) -> None:
        if self.fewest_words < 1:
            raise UserError(f"A minimum of {self.fewest_words} words is not possible.", "Give 1 or more.")

    def why(self) -> str:
        return "pages that are no prose: Gopher's quality rules (Rae et al. 2021), for English"

    def build(self) -> BaseFilter:
        from datatrove.pipeline.filters import GopherQualityFilter  # an extra

        return GopherQualityFilter(
            min_doc_words=self.fewest_words,
            max_doc_words=self.most_words or None,
            min_stop_words=self.stop_words or None,
            language=datatrove_words(),
        )


@dataclass(frozen=True, kw_only=True)
class GopherRepetition(QualityFilter):
    """Gopher's limits on repeated lines, paragraphs and n-grams (Rae et al. 2021, table A1)."""

    lines: float = 0.3
    """Maximum fraction of lines, and of paragraphs, that repeat an earlier one."""

    def why(self) -> str:
        return "text that repeats itself: Gopher's repetition rules (Rae et al. 2021, table A1)"

    def build(self) -> BaseFilter:
        from datatrove.pipeline.filters import GopherRepetitionFilter  # an extra

        return GopherRepetitionFilter(dup_line_frac=self.lines, dup_para_frac=self.lines, language=datatrove_words())


@dataclass(frozen=True, kw_only=True)
class C4Quality(QualityFilter):
    """C4's rules that remove a page (Raffel et al. 2020, section 2.2): braces, lorem ipsum, too few sentences.

    C4 also removes single lines of the pages that it keeps; this filter keeps or removes whole documents. Lines that C4
    would remove do not count as sentences.
    """

    sentences: int = 5
    end_marks: bool = False
    """Count only lines that end with a full stop or a similar mark, as C4 does and FineWeb does not."""

    def why(self) -> str:
        return "pages of code, filler or menus: the rules of C4 that drop a page (Raffel et al. 2020)"

    def build(self) -> BaseFilter:
        from datatrove.pipeline.filters import C4QualityFilter  # an extra

        return C4QualityFilter(
            min_num_sentences=self.sentences, filter_no_terminal_punct=self.end_marks, language=datatrove_words()
        )


@dataclass(frozen=True, kw_only=True)
class FineWebQuality(QualityFilter):
    """FineWeb's limits on lines without a full stop, repeated lines and lists (Penedo et al. 2024, section 3.6)."""

    ended_lines: float = 0.12
    """Minimum fraction of lines that end with a full stop or a similar mark."""

    def why(self) -> str:
        return "lists, menus and repeated lines: FineWeb's own rules (Penedo et al. 2024)"

    def build(self) -> BaseFilter:
        from datatrove.pipeline.filters import FineWebQualityFilter  # an extra

        return FineWebQualityFilter(line_punct_thr=self.ended_lines, language=datatrove_words())
