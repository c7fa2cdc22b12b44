"""Read tagged sentences from CoNLL files.

A line holds one word with columns separated by tabs, or by spaces if the line has no tab. A blank line ends a sentence;
``-DOCSTART-`` lines separate documents. Tags may be IOB1, IOB2 or a mixture (``spans.spans`` reads all of them); other
schemes, such as BIOES, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from daybreak.core.errors import UserError
from daybreak.evaluation.tasks.tables import readable

DOCUMENT = "-DOCSTART-"
BLANK = " \t\r\n"
TAG = re.compile("O|[BI]-.+")


@dataclass(frozen=True)
class Sentence:
    """The words of a sentence, their tags as in the file, and the 1-based line of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int


def read_sentences(path: Path, word: int, tag: int) -> list[Sentence]:
    """Read the columns ``word`` and ``tag`` (0-based) of a CoNLL file. A byte order mark is dropped.

    Raises:
        UserError: the file is missing, not UTF-8 or empty, or a line lacks a column or has an unknown tag.
    """
    # Only line feeds end lines: a stray carriage return must not split a word.
    with readable(path), path.open(encoding="utf-8-sig", newline="\n") as file:
        found = list(_sentences(file, path, word, tag))
    if not found:
        raise UserError(f"'{path}' holds no sentence.", "Give a CoNLL file with at least one tagged word.")
    return found


def _sentences(file: TextIO, path: Path, word: int, tag: int) -> Iterator[Sentence]:
    pairs: list[tuple[str, str]] = []
    number = 0
    for number, line in enumerate(file, start=1):
        line = line.strip(BLANK)
        if line and not line.startswith(DOCUMENT):
            pairs.append(_word_and_tag(line, path, number, word, tag))
        elif pairs:
            yield _sentence(pairs, number - len(pairs))
            pairs = []
    if pairs:
        yield _sentence(pairs, number + 1 - len(pairs))


def _sentence(pairs: list[tuple[str, str]], line: int) -> Sentence:
    words, tags = zip(*pairs)
    return Sentence(words, tags, line)


def _word_and_tag(line: str, path: Path, number: int, word: int, tag: int) -> tuple[str, str]:
    columns = [cell.strip(BLANK) for cell in line.split("\t")] if "\t" in line else re.split(" +", line)
    lacking = [column for column in (word, tag) if column >= len(columns) or not columns[column]]
    if lacking:
        raise UserError(
            f"Line {number} of '{path}' has nothing in column {lacking[0]}: its columns are 0 to {len(columns) - 1}.",
            "Correct the line or the 0-based number of the column.",
        )
    if not TAG.fullmatch(columns[tag]):
        raise UserError(
            f"Line {number} of '{path}' has '{columns[tag]}' in column {tag}, which is not a tag.",
            "Write O, B-type or I-type, or correct the 0-based number of the column.",
        )
    return columns[word], columns[tag]
