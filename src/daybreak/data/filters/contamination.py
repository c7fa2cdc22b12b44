"""Find evaluation text in the corpus by shared runs of 13 words (Brown et al. 2020, appendix C).

Words are compared in lower case and without punctuation, but with accents (``words.bare_words``), so that line breaks,
quotes and a tokenized ``it 's`` make no difference. An item is a line of plain text, a cell of a .csv or .tsv file, or
a string anywhere in a record of a .jsonl file. A document contains an item of 13 words or more if it contains 13
consecutive words of it, and an item of 8 to 12 words if it contains all of them. Shorter items occur by chance and are
ignored, as in the paper. In scripts without spaces, each character is a word here, so the numbers are three times as
large: otherwise one name would be an item. Documents are searched separately, so an item that is split over two
documents is not found.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.core.errors import UserError, reason
from daybreak.core.words import bare_words, is_unspaced
from daybreak.data.filters.filter import Filter
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.inputs import RECORDS, TEXT, InputFile, read_lines, suffixes
from daybreak.data.readers.tables import LARGEST_ROW
from daybreak.data.readers.text_pieces import LONGEST_PIECE, cut_at_whitespace

RUN, SHORTEST = 13, 8
"""Number of consecutive words that must be equal, and minimum number of words of an item."""
REASON = "text of an evaluation"
RUN_UNSPACED, SHORTEST_UNSPACED = 3 * RUN, 3 * SHORTEST
"""The same for items that are mostly in scripts without spaces, where a character counts as a word."""
PIECE = 1 << 17
"""Number of characters searched at once, as long as a document has whitespace at which it can be split."""
MOST_WORDS = LONGEST_PIECE + RUN_UNSPACED
_BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse modulo 2**64."""
_SPARE_BITS = 4
"""Bits by which the bitmap of hashes is larger than their number, so that at most 1 in 16 of its bits is set."""


@functools.cache
def _powers() -> tuple[np.ndarray, np.ndarray]:
    """Powers of _BASE and of its inverse, modulo 2**64: uint64[MOST_WORDS + 1] each."""

    def row(base: int) -> np.ndarray:
        powers = np.full(MOST_WORDS + 1, base, np.uint64)
        powers[0] = 1
        return np.multiply.accumulate(powers)

    return row(_BASE), row(pow(_BASE, -1, 1 << 64))


class _Runs:
    """Hashes of all runs of n words in a sequence of keys, by one subtraction and one product for each n.

    The hash of a run is the sum of the keys of its words (64 bits of blake2b each) times increasing powers of an odd
    number, modulo 2**64. Two different runs have the same hash with a probability of about 2**-64.
    """

    def __init__(self, keys: np.ndarray):
        powers, self._inverses = _powers()
        self._sums = np.zeros(len(keys) + 1, np.uint64)
        np.cumsum(keys * powers[: len(keys)], out=self._sums[1:])

    def of(self, words: int) -> np.ndarray:
        """Return the hashes of all runs of ``words``: uint64[len(keys) - words + 1], or empty."""
        if words >= len(self._sums):
            return np.zeros(0, np.uint64)
        runs: np.ndarray = (self._sums[words:] - self._sums[:-words]) * self._inverses[: len(self._sums) - words]
        return runs

    def at(self, place: int, words: int) -> int | None:
        """Return the hash of the run that begins at ``place``, or None if it exceeds the sequence."""
        if place + words >= len(self._sums):
            return None
        run = int(self._sums[place + words]) - int(self._sums[place])
        return run * int(self._inverses[place]) % (1 << 64)


class _Table:
    """Maps hashes to their items: 12 bytes per hash, and a bitmap of 2 to 4 bytes per hash that is checked first."""

    def __init__(self, hashes: np.ndarray, items: np.ndarray):
        order = np.lexsort((items, hashes))
        self._hashes, self._items = hashes[order], items[order]
        bits = max(8, len(self._hashes).bit_length() + _SPARE_BITS)
        self._shift = np.uint64(64 - bits)
        self._taken = np.zeros(1 << (bits - 3), np.uint8)
        cells = self._hashes >> self._shift
        np.bitwise_or.at(self._taken, cells >> np.uint64(3), np.uint8(1) << (cells & np.uint64(7)).astype(np.uint8))

    def find(self, hashes: np.ndarray) -> Iterator[tuple[int, list[int]]]:
        """Yield each index of ``hashes`` whose hash is in the table, with its items."""
        cells = hashes >> self._shift
        taken = self._taken[cells >> np.uint64(3)] >> (cells & np.uint64(7)).astype(np.uint8) & np.uint8(1)
        places = np.flatnonzero(taken)
        if len(places):
            first = np.searchsorted(self._hashes, hashes[places], "left")
            last = np.searchsorted(self._hashes, hashes[places], "right")
            for hit in np.flatnonzero(last > first):
                yield int(places[hit]), self._items[first[hit] : last[hit]].tolist()


class EvaluationTexts:
    """An index of evaluation texts, ready to be sent to worker processes.

    Memory: 14 to 16 bytes per run (an item of n words with spaces has n - 12), 100 per item and 200 per distinct word.
    Of an item longer than LONGEST_PIECE words, only the beginning is indexed.

    Args:
        evaluations: the items of each evaluation, as strings.
    """

    def __init__(self, evaluations: Sequence[Iterable[str]]):
        self._keys: dict[bytes, int] = {}
        self._places: list[tuple[int, int]] = []
        self._whole: dict[int, tuple[int, int]] = {}
        """Item that must occur as a whole -> its number of words, and their hash."""
        self.counts: list[int] = []
        """Number of items of each evaluation that are long enough; only these are numbered."""
        rows: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for evaluation, texts in enumerate(evaluations):
            self.counts.append(0)
            for text in texts:
                words = bare_words(text)[:LONGEST_PIECE]
                run, shortest = (RUN_UNSPACED, SHORTEST_UNSPACED) if is_unspaced(words) else (RUN, SHORTEST)
                if len(words) < shortest:
                    continue
                keys, item = self._learn(words), len(self._places)
                runs = _Runs(keys)
                if len(words) < run:
                    self._whole[item] = len(words), int(runs.of(len(words))[0])
                    found = runs.of(shortest)[:1]
                    rows.setdefault(shortest, []).append((found, np.array([item], np.uint32)))
                else:
                    found = runs.of(run)
                    rows.setdefault(run, []).append((found, np.full(len(found), item, np.uint32)))
                self._places.append((evaluation, self.counts[-1]))
                self.counts[-1] += 1
        self._tables = {
            words: _Table(*map(np.concatenate, zip(*found, strict=True))) for words, found in sorted(rows.items())
        }
        """Number of words -> the runs of as many words that point to an item."""

    def _learn(self, words: list[bytes]) -> np.ndarray:
        for word in words:
            if word not in self._keys:
                self._keys[word] = int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little")
        return np.array([self._keys[word] for word in words], np.uint64)

    @classmethod
    def read(cls, paths: Sequence[str | Path]) -> EvaluationTexts:
        """Index files: plain text, .csv, .tsv or .jsonl, each one evaluation; .gz and .zst as well.

        Raises:
            UserError: a file cannot be read, or has no item that is long enough.
        """
        found = cls([_items(str(path)) for path in paths])
        for path, count in zip(paths, found.counts, strict=True):
            if count == 0:
                raise UserError(
                    f"'{path}' has no text of {SHORTEST} words or more.",
                    "Give the evaluation's own file: plain text, .csv, .tsv or .jsonl.",
                )
        return found

    def find(self, text: str) -> set[tuple[int, int]]:
        """Return (number of the evaluation, number of the item in it) for every item that ``text`` contains."""
        found: set[int] = set()
        key, carried = self._keys.get, np.zeros(0, np.uint64)
        for piece in cut_at_whitespace(text, PIECE):
            # A word of no evaluation gets key 0, and no run with it is in a table.
            own = [key(word, 0) for word in bare_words(piece)]
            keys = np.concatenate([carried, np.fromiter(own, np.uint64, len(own))])
            if len(keys) < SHORTEST:
                carried = keys
                continue
            runs = _Runs(keys)
            for words, table in self._tables.items():
                for place, items in table.find(runs.of(words)):
                    for item in items:
                        whole, hash = self._whole.get(item, (0, None))
                        if not whole or runs.at(place, whole) == hash:
                            found.add(item)
            carried = keys[max(0, len(keys) - RUN_UNSPACED + 1) :]
        return {self._places[item] for item in found}


def _items(given: str) -> Iterator[str]:
    path = Path(os.path.expanduser(given))
    kind, compression = suffixes(path.name)
    try:
        facts = path.stat()
    except OSError as error:
        raise UserError(
            f"'{given}' cannot be read: {os.strerror(error.errno or 0).lower()}.", "Check the path."
        ) from None
    form = RECORDS if kind == ".jsonl" else TEXT
    file = InputFile(path, given, form, compression, facts.st_size, facts.st_mtime_ns)
    lines = _decoded(file)
    if kind == ".json":
        raise UserError(f"'{given}' is JSON, not text.", "Convert it to .jsonl, with one record a line.")
    if kind == ".csv":
        texts = _cells(lines, given)
    elif kind == ".tsv":
        texts = itertools.chain.from_iterable(line.split("\t") for line in lines)
    elif form == TEXT:
        texts = lines
    else:
        records = (_record(line, given, number) for number, line in enumerate(lines, 1) if line.strip())
        texts = itertools.chain.from_iterable(map(_strings, records))
    return map(clean, texts)


def _decoded(file: InputFile) -> Iterator[str]:
    for number, line in enumerate(read_lines(file), 1):
        if b"\0" in line:  # such as a .parquet file, whose words would never be found in text
            raise UserError(
                f"'{file.given}' is binary, not text (line {number}).", "Give plain text, .csv, .tsv or .jsonl."
            )
        try:
            yield line.decode("utf-8").lstrip("\ufeff")
        except UnicodeDecodeError:  # words with other bytes would never be found either
            raise UserError(
                f"'{file.given}' is not UTF-8 text (line {number}).",
                "Convert it, as in: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW.",
            ) from None


def _cells(lines: Iterator[str], given: str) -> Iterator[str]:
    """Yield the cells of a .csv file; quoted cells may contain line breaks.

    The delimiter is a comma, or a semicolon or tab if the first line has only these.
    """
    csv.field_size_limit(max(LARGEST_ROW, csv.field_size_limit()))
    split = (piece for line in lines for piece in io.StringIO(line, newline=""))  # at old line ends, too
    head = next(split, "")
    delimiter = next((mark for mark in ",;\t" if mark in head), ",")
    rows = csv.reader(itertools.chain([head], split), delimiter=delimiter)
    try:
        for row in rows:
            yield from row
    except csv.Error as error:
        raise UserError(
            f"'{given}' cannot be read as csv: {reason(error)} (line {rows.line_num}).", "Correct it, or leave it out."
        ) from None


def _record(line: str, given: str, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"'{given}' line {number} is not valid JSON: {reason(error)}.", "Correct that line, or leave the file out."
        ) from None


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


@dataclass(frozen=True, kw_only=True)
class EvaluationText(Filter):
    """Reports the documents that contain evaluation text; the first pass removes them on request.

    Memory: 16 bytes per run of 13 words of the evaluation texts, and their distinct words.
    """

    paths: tuple[str, ...]

    def why(self) -> str:
        return f"evaluation text in the corpus: runs of {RUN} words (Brown et al. 2020, appendix C)"

    def index(self) -> EvaluationTexts:
        """Read the evaluation texts."""
        return EvaluationTexts.read(self.paths)
