"""BERT's pairs of segments for next-sentence prediction, made on the fly: a row is a function of (seed, position).

As in the original (Devlin et al. 2018, create_pretraining_data): whole sentences of a document are gathered until
they reach a target length, mostly the row's, now and then a shorter one. The first few of them, a random number, are
segment A. Either the others follow as B, or B comes from a random place of another document and the others go back,
to be gathered by the next row. What is too long then loses tokens of the longer segment, at either end.

The original walks over a document from its first sentence to its last and shuffles what comes out. To give any row
by its number, ours differs in this:

- A document gives a fixed number of rows, what a walk over it yields on average. A longer one is cut into sections
  of SECTION_ROWS rows, at sentences; a pair never spans two of them.
- A row repeats the walk over its section, drawn anew each epoch, and takes one pair of it: the k-th row the k-th pair
  after a random one, in a circle. So no sentence is favoured, but in one epoch a walk longer than expected loses a
  pair and a shorter one gives a pair twice (with another random B).
- The target is drawn for each pair; the original draws it once for a whole document.
- The random document is any other one, every time; the original tries ten times to find another.
- Masks are no part of the row: they are new each time, where the original fixes them in each of its ten copies.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.data.sequences.sampler import RowsConfig, Sampler, TokenIds, uniforms, visit
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds

SECTION_ROWS = 32
"""Rows of a section: a bound on what one row costs."""
WALK_PAIRS = 16
"""Pairs that a walk gives at least: over few sentences it goes several times, so that all its pairs weigh alike."""
DRAWS = 4
"""Random numbers a step of the walk: whether it is short, how short, where A ends, whether B is random."""
FEW_SENTENCES = 2
"""A mean number of sentences a document below which labels are nearly all 1."""


@dataclass(frozen=True, kw_only=True)
class SentencePairs(RowsConfig):
    """[CLS] A [SEP] B [SEP] and padding, with ``types``, ``attend`` and ``follows``; needs sentence ends."""

    short_fraction: float = 0.1
    """Share of the pairs whose target is uniform in [2, length - 3] instead of length - 3 tokens."""
    random_fraction: float = 0.5
    """Share of the pairs of two and more sentences whose B is random; with one sentence it always is."""

    def __post_init__(self) -> None:
        for name in ("short_fraction", "random_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}, but a share lies in [0, 1].", "Correct it.")

    def build(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds,
        *,
        token_ids: TokenIds | None = None,
    ) -> PairSampler:
        return PairSampler(stream, length, seed, special, self.short_fraction, self.random_fraction)


def check_pairs(stream: TokenStream) -> str | None:
    """Return a warning where documents are so short that next-sentence labels say little, else None.

    Raises:
        UserError: no sentence ends, or fewer than two documents with text: every B would be random.
    """
    sentences, documents = stream.sentence_ends(), stream.document_ends()
    if sentences is None:
        raise UserError(
            "The prepared text marks no sentences, so that no sentence has a next one.",
            "Prepare it with --split-sentences, or give one sentence a line and blank lines between documents.",
        )
    if len(documents) < 2:
        raise UserError(
            "The text is one document, so that no random sentence can come from another.",
            "Give more text, part its documents by blank lines, or prepare it with another --document rule.",
        )
    mean = len(sentences) / len(documents)
    if mean >= FEW_SENTENCES:
        return None
    return (
        f"Documents have {mean:.1f} sentences on average: most next-sentence labels will be 'random'. Prepare the text "
        "with --split-sentences, or give one sentence a line and blank lines only between documents."
    )


@dataclass(frozen=True)
class _Section:
    """Consecutive sentences of one document."""

    start: int
    """Stream position of its first token."""
    ends: list[int]
    """For each sentence, the stream position just past its tokens (a separator left out)."""

    def begin(self, sentence: int) -> int:
        return self.ends[sentence - 1] if sentence else self.start

    def gather(self, first: int, tokens: int) -> int:
        """The sentence up to which those from ``first`` on must go to make ``tokens``, or the number of sentences."""
        return min(len(self.ends), bisect_left(self.ends, self.begin(first) + tokens, lo=first) + 1)


@dataclass(frozen=True)
class _Pair:
    """A step of the walk: sentences [first, cut) are A; [cut, stop) are B, unless ``random``."""

    first: int
    cut: int
    stop: int
    target: int
    random: bool


class PairSampler(Sampler):
    """Hands out pairs; holds 8 bytes a document.

    Raises:
        UserError: see ``check_pairs``; or the rows are too short for a pair.
    """

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        seed: int,
        special: SpecialIds,
        short_fraction: float,
        random_fraction: float,
    ):
        check_pairs(stream)
        if length < 5:
            raise UserError(f"A row of {length} holds no pair of segments.", "Use a --length of 5 or more.")
        self._stream, self._length, self._seed, self._special = stream, length, seed, special
        self._short, self._random = short_fraction, random_fraction
        self._documents = stream.document_ends()
        sentences = stream.sentence_ends()
        assert sentences is not None  # by check_pairs
        self._sentences = sentences
        # What a pair takes out of the walk: its target and half a sentence more, and of that only A when B is random.
        # The end of a document makes one pair more, and the half rounds.
        whole = (length - 3) * (1 - short_fraction / 2) + len(stream) / len(sentences) / 2
        own: np.ndarray = np.diff(self._documents.astype(np.int64), prepend=0) - 1
        rows: np.ndarray = np.where(own > 0, np.floor(own / (whole * (1 - random_fraction / 2)) + 1.5), 0)
        if np.count_nonzero(own) < 2:
            raise UserError("Fewer than two documents hold any token.", "Give more text.")
        self._rows = np.cumsum(rows.astype(np.int64))
        self.rows_per_epoch = int(self._rows[-1])

    def take(self, position: int, rows: int, progress: float = 0.0) -> Batch:
        epochs, order = visit(position, rows, self.rows_per_epoch, self._seed)
        return self._gather(epochs.tolist(), order.tolist())

    def view(self, progress: float) -> None:
        """Rows are the same all along."""

    def in_order(self, count: int) -> Batch:
        count = min(count, self.rows_per_epoch)
        return self._gather([0] * count, list(range(count)))

    def _gather(self, epochs: list[int], order: list[int]) -> Batch:
        ids = np.full((len(order), self._length), self._special.pad, np.int64)
        types = np.zeros_like(ids)
        filled = np.empty(len(order), np.int64)
        follows = np.empty(len(order), np.int64)
        for place, (epoch, number) in enumerate(zip(epochs, order, strict=True)):
            first, second, follows[place] = self._pair(epoch, number)
            b, end = len(first) + 2, len(first) + len(second) + 3
            ids[place, 0] = self._special.cls
            ids[place, [b - 1, end - 1]] = self._special.sep
            ids[place, 1 : b - 1], ids[place, b : end - 1] = first, second
            types[place, b:end] = 1
            filled[place] = end
        attend = np.arange(self._length) < filled[:, None]
        return Batch(ids=ids, attend=attend, types=types, follows=follows, special=self._special)

    def _pair(self, epoch: int, number: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Segments A and B of row ``number`` of an epoch, and whether B is random (1) or follows (0)."""
        document = int(np.searchsorted(self._rows, number, side="right"))
        rows_before = int(self._rows[document - 1]) if document else 0
        section_number, row = divmod(number - rows_before, SECTION_ROWS)
        section = self._section(document, section_number, int(self._rows[document]) - rows_before)
        # Keyed by the section's first row, so that all its rows see the same walk.
        turn, walk = self._walk(section, number - row, epoch)
        pair = walk[(row + int(turn * len(walk))) % len(walk)]
        a = (section.begin(pair.first), section.ends[pair.cut - 1])
        draw = uniforms(f"{self._seed} {epoch} row {number}", 2)
        if pair.random:
            b = self._elsewhere(document, pair.target - (a[1] - a[0]), draw)
        else:
            b = (section.begin(pair.cut), section.ends[pair.stop - 1])
        a, b = self._truncate(a, b, f"{self._seed} {epoch} cut {number}")
        return self._stream.read(*a), self._stream.read(*b), int(pair.random)

    def _section(self, document: int, number: int, rows: int) -> _Section:
        """Section ``number`` of a document that gives ``rows`` rows: its share of the tokens, in whole sentences."""
        start = int(self._documents[document - 1]) if document else 0
        end = int(self._documents[document])
        edges = [start + (end - start) * min(rows, SECTION_ROWS * part) // rows for part in (number, number + 1)]
        first, stop = (self._sentence_at(edge) for edge in edges)
        return self._between(first, max(stop, first + 1), end)

    def _sentence_at(self, position: int) -> int:
        """The number of the sentence that holds a stream position."""
        return int(np.searchsorted(self._sentences, np.uint64(position), side="right"))

    def _between(self, first: int, stop: int, document_end: int) -> _Section:
        start = int(self._sentences[first - 1]) if first else 0
        ends: list[int] = self._sentences[first:stop].tolist()
        if ends[-1] == document_end:
            ends[-1] -= 1
        return _Section(start, ends)

    def _walk(self, section: _Section, key: int, epoch: int) -> tuple[float, list[_Pair]]:
        """The pairs that one walk over the section gives, and a number in [0, 1) to turn the circle by."""
        pairs: list[_Pair] = []
        draws = uniforms(f"{self._seed} {epoch} walk {key}", 1).tolist()
        turn, first, most = draws[0], 0, self._length - 3
        while first < len(section.ends) or len(pairs) < WALK_PAIRS:
            first %= len(section.ends)
            if DRAWS * len(pairs) + 1 >= len(draws):
                more = 1 + DRAWS * 2 * (len(pairs) + WALK_PAIRS)
                draws = uniforms(f"{self._seed} {epoch} walk {key}", more).tolist()
            short, size, cut, random = draws[1 + DRAWS * len(pairs) :][:DRAWS]
            target = 2 + int(size * (most - 1)) if short < self._short else most
            stop = section.gather(first, target)
            cut_at = first + 1 + int(cut * (stop - first - 1))
            pairs.append(_Pair(first, cut_at, stop, target, stop - first == 1 or random < self._random))
            first = cut_at if pairs[-1].random else stop
        return turn, pairs

    def _elsewhere(self, document: int, tokens: int, draw: np.ndarray) -> tuple[int, int]:
        """Sentences from a random one of another document on, until they make ``tokens``: stream positions."""
        count = len(self._documents)
        other = (document + 1 + int(draw[0] * (count - 1))) % count
        while other == document or self._rows[other] == (self._rows[other - 1] if other else 0):  # it holds nothing
            other = (other + 1) % count
        end = int(self._documents[other])
        first = self._sentence_at(int(self._documents[other - 1]) if other else 0)
        stop = int(np.searchsorted(self._sentences, np.uint64(end))) + 1
        start = first + int(draw[1] * (stop - first))
        # No sentence is shorter than a token, so that this many are enough.
        section = self._between(start, min(stop, start + max(1, tokens)), end)
        return section.start, section.ends[section.gather(0, max(1, tokens)) - 1]

    def _truncate(self, a: tuple[int, int], b: tuple[int, int], key: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Drop tokens of the longer segment, of B when they are equal, until both fit; each from the front or back."""
        sizes, room = (a[1] - a[0], b[1] - b[0]), self._length - 3
        if sum(sizes) <= room:
            return a, b
        kept = min(sizes[0], max((room + 1) // 2, room - sizes[1]))
        dropped = sizes[0] - kept, sizes[1] - (room - kept)
        front = uniforms(key, sum(dropped)) < 0.5
        fronts = int(front[: dropped[0]].sum()), int(front[dropped[0] :].sum())
        return (
            (a[0] + fronts[0], a[1] - (dropped[0] - fronts[0])),
            (b[0] + fronts[1], b[1] - (dropped[1] - fronts[1])),
        )
