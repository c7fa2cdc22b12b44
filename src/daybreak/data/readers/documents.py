"""From input files to documents: what one document is, and what is left out because it cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.serialization import nearest
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.inputs import (
    DATA_SET,
    DUMP,
    PAGE,
    PARQUET,
    RECORDS,
    TABLE,
    TEXT,
    InputFile,
    Meter,
    read_lines,
)
from daybreak.data.readers.markup import read_page
from daybreak.data.readers.reading import BadLines, Reading, Skips
from daybreak.data.readers.tables import read_data_set, read_parquet, read_records, read_table
from daybreak.data.readers.text_pieces import cut_at_whitespace
from daybreak.data.readers.wikipedia import read_dump

RULES = ("auto", "file", "line", "blank-line")
SAMPLE_BYTES = 1 << 20
"""How much text is looked at to choose a rule."""
WHOLE_FILE_BYTES = 1 << 20
"""Several files of at most this mean size are taken as one document each."""
LARGEST_DOCUMENT = 4 << 20
"""Characters. A longer document is cut at a line border, so that memory does not grow with it."""
SHORTEST_CHUNK, LONGEST_CHUNK = 200 / 820, 1000 / 820
"""Chunks under and over these shares of the length asked for are left out (pretraining-BERT's limits)."""
_SENTENCE_END = re.compile(r"""[.!?\u2026\u3002]["'\u201d\u2019)\]]*\s*$""")


@dataclass(frozen=True)
class Document:
    text: str
    """Clean: see ``cleaning``. Never empty."""
    source: str
    """The input it came from, as the user typed it."""
    sentences: tuple[str, ...] | None = None
    """Where the input has one sentence a line: its lines. Joined by line breaks they are the text."""
    ids: np.ndarray | None = field(default=None, compare=False)
    """Where the input holds tokens: unsigned [tokens], of which ``text`` is what they decode to."""


@dataclass(frozen=True)
class DocumentRule:
    kind: str
    """file, line or blank-line."""
    sentences: bool = False
    """Whether each line is a sentence; only with blank-line."""


def choose_rule(files: Sequence[InputFile], asked: str) -> DocumentRule:
    """Decide what one document of plain text is, from at most the first megabyte when ``asked`` is auto.

    Several small files: each is one. Blank lines: they part documents. Otherwise each line is one.

    Raises:
        UserError: ``asked`` is no rule.
    """
    if asked not in RULES:
        raise UserError(f"'{asked}' is no rule for documents.{nearest(asked, RULES)}", f"Use {', '.join(RULES)}.")
    texts = [file for file in files if file.form == TEXT]
    if not texts or asked in ("file", "line"):
        return DocumentRule(asked if asked != "auto" else "line")
    if asked == "auto" and len(texts) > 1 and sum(file.bytes for file in texts) <= WHOLE_FILE_BYTES * len(texts):
        return DocumentRule("file")
    lines = _sample_lines(texts)
    if asked == "auto" and all(lines):
        return DocumentRule("line")
    filled = [line for line in lines if line]
    ended = sum(bool(_SENTENCE_END.search(line)) for line in filled)
    # Wrapped paragraphs end few of their lines with a full stop; one sentence a line ends most.
    return DocumentRule("blank-line", sentences=ended >= 0.6 * len(filled) > 0)


def _sample_lines(files: Sequence[InputFile]) -> list[str]:
    lines: list[str] = []
    size = 0
    for file in files:
        begun = False
        for line in read_lines(file):
            text = line.decode("utf-8", "replace").strip()
            begun = begun or text != ""
            lines += [text] if begun else []
            size += len(line)
            if size >= SAMPLE_BYTES:
                return lines
        while lines and not lines[-1]:  # blank lines at the beginning and at the end of a file part nothing
            lines.pop()
    return lines


def read_documents(
    files: Sequence[InputFile], rule: DocumentRule, text_field: str, skips: Skips, meter: Meter
) -> Iterator[Document]:
    """Yield the documents of ``files`` in order, clean and not empty. Counts into ``skips`` and ``meter``.

    Raises:
        UserError: a file is binary, damaged, or has too many bad lines; records lack ``text_field``.
    """
    for file in files:
        yield from read_file(file, rule, text_field, skips, meter)


def read_file(
    file: InputFile,
    rule: DocumentRule,
    text_field: str,
    skips: Skips,
    meter: Meter,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Document]:
    """Yield the documents of one file, or of the part of it from ``start`` to ``stop`` (see ``parts``).

    Raises:
        UserError: see ``read_documents``; the bad lines of a part are left for ``skips.evaluate``.
    """
    own = Skips()
    reading = Reading(file, own, meter, start, stop)
    try:
        if file.form == TEXT:
            yield from _text(reading, rule)
        elif file.form in (PAGE, DUMP):
            read = read_page if file.form == PAGE else read_dump
            yield from (Document(text, file.given) for text in read(reading))
        else:
            texts = _READERS[file.form](reading, text_field)
            yield from (Document(text, file.given) for text in texts)
    finally:
        skips.merge(own)


_READERS: dict[str, Callable[[Reading, str], Iterator[str]]] = {
    RECORDS: read_records,
    TABLE: read_table,
    PARQUET: read_parquet,
    DATA_SET: read_data_set,
}


def _text(reading: Reading, rule: DocumentRule) -> Iterator[Document]:
    if rule.kind == "line":
        for inside, line in _text_lines(reading):
            if not inside:
                return
            if text := clean(line):
                yield Document(text, reading.file.given)
    else:
        yield from _paragraphs(_text_lines(reading), reading, rule)


def _text_lines(reading: Reading) -> Iterator[tuple[bool, str]]:
    """The lines, and whether they begin in the part that is read; those beyond are not counted."""
    remedy = "Convert the file to UTF-8 (from Windows: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW), or leave it out."
    bad = BadLines(reading.file.name, "undecodable", remedy)
    inside = True
    for position, line in reading.lines():
        if inside and reading.outside(position):
            inside = False
            reading.settle(bad)
        bad.lines += inside
        if b"\0" in line:
            where = f" ({reading.place(bad.lines)})" if inside else ""
            raise UserError(
                f"'{reading.file.name}' is binary, not text{where}.", "Leave it out, or convert it to UTF-8 text."
            )
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            if inside:
                reading.bad_line(bad, bad.lines)
            continue
        yield inside, text
    if inside:
        reading.settle(bad)


def _paragraphs(lines: Iterator[tuple[bool, str]], reading: Reading, rule: DocumentRule) -> Iterator[Document]:
    """Group lines into documents: at blank lines, or the whole file; cut at LARGEST_DOCUMENT in any case.

    A part of a file begins at its first blank line and ends at the first blank line beyond it.
    """
    held: list[str] = []
    size = 0
    begun = reading.start == 0

    def close() -> Iterator[Document]:
        if rule.kind == "file":
            text = clean("".join(held))
        else:
            sentences = tuple(filter(None, map(clean, held)))
            text = "\n".join(sentences)
        held.clear()
        if text:
            yield Document(text, reading.file.given, sentences if rule.sentences else None)

    for inside, line in lines:
        if not inside and not begun:
            return
        if rule.kind == "blank-line" and not line.strip():
            yield from close()
            size, begun = 0, True
            if not inside:
                return
            continue
        if not begun:
            continue
        if size >= LARGEST_DOCUMENT:
            yield from close()
            size = 0
        held.append(line)
        size += len(line)
    yield from close()


def cut_documents(documents: Iterable[Document], characters: int, skips: Skips) -> Iterator[Document]:
    """Cut documents at spaces into chunks of about ``characters``, each a document; much shorter or longer ones go.

    The limits are SHORTEST_CHUNK and LONGEST_CHUNK, so the rest of a document is often left out, as is text without
    spaces. A document within them stays whole: chunks cut before are not cut again.
    """
    shortest, longest = round(SHORTEST_CHUNK * characters), round(LONGEST_CHUNK * characters)
    for document in documents:
        whole = len(document.text) <= longest
        chunks = [document.text] if whole else map(str.strip, cut_at_whitespace(document.text, characters))
        for chunk in filter(None, chunks):
            if len(chunk) < shortest:
                skips.add(f"chunks under {shortest} characters", f"'{document.source}'")
            elif len(chunk) > longest:
                skips.add(f"chunks over {longest} characters", f"'{document.source}'")
            else:
                yield replace(document, text=chunk, sentences=None)
