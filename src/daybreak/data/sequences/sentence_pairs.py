"""BERT's segment pairs for next-sentence prediction, built on the fly: a pair is a function of (seed, position).

As in the original (Devlin et al. 2018, create_pretraining_data), whole sentences of a document are collected until they
reach a target length, usually the sequence length and sometimes a shorter one. A random number of them, from the first
on, form segment A. Either the others follow as B, or B comes from a random place in another document and the others
are used by the next pair. A pair that is too long loses tokens of the longer segment, at either end.

The original walks over a document from its first sentence to its last and shuffles the pairs. To compute any pair from
its index, this implementation differs:

- A document gives a fixed number of pairs: the mean number that a walk over it yields. A long document is divided at
  sentences into sections of SECTION_ROWS pairs, and no pair spans two sections.
- The pair with index k repeats the walk over its section, which is drawn again each epoch, and takes the k-th pair
  after a random one, cyclically. Within an epoch, a walk longer than expected loses a pair, and a shorter one gives a
  pair twice (with a different random B).
- The target length is drawn for each pair; the original draws it once per document.
- The random document is always another one; the original gives up after ten draws.
- Masks are drawn each time; the original fixes them in each of its ten copies.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError, check_option
from daybreak.data.sequences.sampler import SequencesConfig, ShuffledSampler, TokenIds, add_special_tokens, uniforms
from daybreak.data.sequences.shards import TokenStream
from daybreak.schemas.run import SpecialIds

SECTION_ROWS = 32
"""Pairs per section, which bounds the cost of one pair."""
WALK_PAIRS = 16
"""Minimum number of pairs per walk; a walk over few sentences is repeated, so that all sentences are used equally."""
DRAWS = 4
"""Random numbers per step of the walk: whether it is short, how short, where A ends, whether B is random."""
FEW_SENTENCES = 2
"""Mean number of sentences per document below which nearly all labels are 1."""


@dataclass(frozen=True, kw_only=True)
class SentencePairs(SequencesConfig):
    """[CLS] A [SEP] B [SEP] and padding, with segments and next-sentence labels; needs sentence ends."""

    short_fraction: float = 0.1
    """Fraction of the pairs whose target is uniform in [2, length - 3] instead of length - 3 tokens."""
    random_fraction: float = 0.5
    """Fraction of the pairs of two or more sentences whose B is random; with one sentence it always is."""

    def __post_init__(self) -> None:
        for name in ("short_fraction", "random_fraction"):
            value = getattr(self, name)
            check_option(f"--rows.{name.replace('_', '-')}", value, 0 <= value <= 1, "in [0, 1]")

    def build(
        self, stream: TokenStream, length: int, seed: int, special: SpecialIds, *, token_ids: TokenIds | None = None
    ) -> PairSampler:
        return PairSampler(stream, length, seed, special, self.short_fraction, self.random_fraction)


def check_pairs(stream: TokenStream) -> str | None:
    """Refuse text without pairs; return a warning if documents are too short for useful labels, else None."""
    sentences, documents = stream.sentence_ends(), stream.document_ends()
    if sentences is None:
        raise UserError(
            "The prepared text has no sentence boundaries, which sentence pairs need.",
            "Prepare it with --split-sentences, or give one sentence per line and blank lines between documents.",
        )
    if len(documents) < 2:
        raise UserError(
            "The text is one document, but random sentences must come from another one.",
            "Give more text, separate documents by blank lines, or prepare it with another --document rule.",
        )
    mean = len(sentences) / len(documents)
    if mean >= FEW_SENTENCES:
        return None
    return (
        f"Documents have {mean:.1f} sentences on average: most next-sentence labels will be 'random'. Prepare the text "
        "with --split-sentences, or give one sentence per line and blank lines only between documents."
    )


@dataclass(frozen=True)
class _Section:
    """Consecutive sentences of one document."""

    start: int
    """Stream position of its first token."""
    ends: list[int]
    """For each sentence, the stream position just past its tokens, without the separator."""

    def begin(self, sentence: int) -> int:
        return self.ends[sentence - 1] if sentence else self.start

    def gather(self, first: int, tokens: int) -> int:
        """Return where the shortest run of sentences from ``first`` with ``tokens`` tokens ends, at most the last."""
        return min(len(self.ends), bisect_left(self.ends, self.begin(first) + tokens, lo=first) + 1)


@dataclass(frozen=True)
class _Pair:
    """A step of the walk: sentences [first, cut) are A; [cut, stop) are B, unless ``random``."""

    first: int
    cut: int
    stop: int
    target: int
    random: bool


class PairSampler(ShuffledSampler):
    """Returns segment pairs; uses 8 bytes of memory per document."""

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
            raise UserError(f"{length} tokens are too few for a pair of segments.", "Use a --length of 5 or more.")
        super().__init__(stream, length, seed, special)
        self._short, self._random = short_fraction, random_fraction
        self._documents = stream.document_ends()
        sentences = stream.sentence_ends()
        assert sentences is not None  # by check_pairs
        self._sentences = sentences
        # A pair consumes its target and half a sentence more, or only the A of that if B is random. The end of a
        # document adds one pair, and 0.5 rounds.
        whole = (length - 3) * (1 - short_fraction / 2) + len(stream) / len(sentences) / 2
        own: np.ndarray = np.diff(self._documents.astype(np.int64), prepend=0) - 1
        rows: np.ndarray = np.where(own > 0, np.floor(own / (whole * (1 - random_fraction / 2)) + 1.5), 0)
        if np.count_nonzero(own) < 2:
            raise UserError("Fewer than two documents hold any token.", "Give more text.")
        self._rows = np.cumsum(rows.astype(np.int64))
        self.rows_per_epoch = int(self._rows[-1])

    def _gather(self, order: np.ndarray, epochs: np.ndarray) -> Batch:
        pairs = [self._pair(epoch, number) for epoch, number in zip(epochs.tolist(), order.tolist())]
        ids, attention_mask = add_special_tokens([segments for *segments, _ in pairs], self._length, self._special)
        second = np.array([len(first) + 2 for first, *_ in pairs], np.int64)
        token_type_ids = (attention_mask & (np.arange(self._length) >= second[:, None])).astype(np.int64)
        next_sentence_label = np.array([random for *_, random in pairs], np.int64)
        return Batch(
            input_ids=ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            next_sentence_label=next_sentence_label,
            special=self._special,
        )

    def _pair(self, epoch: int, number: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return segments A and B of pair ``number`` of an epoch, and whether B is random (1) or follows (0)."""
        document = int(np.searchsorted(self._rows, number, side="right"))
        rows_before = int(self._rows[document - 1]) if document else 0
        section_number, row = divmod(number - rows_before, SECTION_ROWS)
        section = self._section(document, section_number, int(self._rows[document]) - rows_before)
        # Keyed by the section's first pair, so that all its pairs see the same walk.
        offset, walk = self._walk(section, number - row, epoch)
        pair = walk[(row + int(offset * len(walk))) % len(walk)]
        a = (section.begin(pair.first), section.ends[pair.cut - 1])
        draw = uniforms(f"{self._seed} {epoch} row {number}", 2)
        if pair.random:
            b = self._elsewhere(document, pair.target - (a[1] - a[0]), draw)
        else:
            b = (section.begin(pair.cut), section.ends[pair.stop - 1])
        a, b = self._truncate(a, b, f"{self._seed} {epoch} cut {number}")
        return self._stream.read(*a), self._stream.read(*b), int(pair.random)

    def _section(self, document: int, number: int, rows: int) -> _Section:
        """Return section ``number`` of a document with ``rows`` pairs: its part of the tokens, in whole sentences."""
        start = int(self._documents[document - 1]) if document else 0
        end = int(self._documents[document])
        edges = [start + (end - start) * min(rows, SECTION_ROWS * part) // rows for part in (number, number + 1)]
        first, stop = (self._sentence_at(edge) for edge in edges)
        return self._between(first, max(stop, first + 1), end)

    def _sentence_at(self, position: int) -> int:
        """Return the index of the sentence that contains a stream position."""
        return int(np.searchsorted(self._sentences, np.uint64(position), side="right"))

    def _between(self, first: int, stop: int, document_end: int) -> _Section:
        start = int(self._sentences[first - 1]) if first else 0
        ends: list[int] = self._sentences[first:stop].tolist()
        if ends[-1] == document_end:
            ends[-1] -= 1
        return _Section(start, ends)

    def _walk(self, section: _Section, key: int, epoch: int) -> tuple[float, list[_Pair]]:
        """Return the pairs of one walk over the section, and a cyclic offset in [0, 1)."""
        pairs: list[_Pair] = []
        draws = uniforms(f"{self._seed} {epoch} walk {key}", 1).tolist()
        offset, first, most = draws[0], 0, self._length - 3
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
        return offset, pairs

    def _elsewhere(self, document: int, tokens: int, draw: np.ndarray) -> tuple[int, int]:
        """Return stream positions of ``tokens`` tokens in whole sentences of another document, from a random one on."""
        count = len(self._documents)
        other = (document + 1 + int(draw[0] * (count - 1))) % count
        while other == document or self._rows[other] == (self._rows[other - 1] if other else 0):  # it is empty
            other = (other + 1) % count
        end = int(self._documents[other])
        first = self._sentence_at(int(self._documents[other - 1]) if other else 0)
        stop = int(np.searchsorted(self._sentences, np.uint64(end))) + 1
        start = first + int(draw[1] * (stop - first))
        # Every sentence has at least one token, so this many are enough.
        section = self._between(start, min(stop, start + max(1, tokens)), end)
        return section.start, section.ends[section.gather(0, max(1, tokens)) - 1]

    def _truncate(self, a: tuple[int, int], b: tuple[int, int], key: str) -> tuple[tuple[int, int], tuple[int, int]]:
        """Drop tokens of the longer segment (B if equal) until both fit, each from a random end."""
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
