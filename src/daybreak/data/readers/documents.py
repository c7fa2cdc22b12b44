"""Read documents from input files: decide what one document is, and skip and count what cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from daybreak.core.errors import UserError
from daybreak.core.serialization import check_choice
from daybreak.core.terminal import say
from daybreak.data.readers.cleaning import clean
from daybreak.data.readers.file_range import BadLines, FileRange, Skips
from daybreak.data.readers.inputs import (
    DATA_SET,
    DUMP,
    PAGE,
    PARQUET,
    RECORDS,
    TABLE,
    TEXT,
    ByteCounter,
    InputFile,
    read_lines,
)
from daybreak.data.readers.markup import read_page
from daybreak.data.readers.tables import read_data_set, read_parquet, read_records, read_table
from daybreak.data.readers.text_pieces import cut_at_whitespace
from daybreak.data.readers.wikipedia import read_dump

RULES = ("auto", "file", "line", "blank-line")
SAMPLE_BYTES = 1 << 20
"""Bytes of text examined to choose a rule."""
WHOLE_FILE_BYTES = 1 << 20
"""Many files of at most this mean size are read as one document each."""
MANY_FILES = 50
"""Fewest files for that. One document of about this number is held out, so one of a few files would be a large part."""
MANY_LINES = 50
"""Lines of a file without blank lines that may be documents."""
COMPRESSION = 4
"""Bytes of text in a byte of a compressed file, about."""
LARGEST_DOCUMENT = 4 << 20
"""Characters. A longer document is split at a line break, which bounds memory."""
SHORTEST_CHUNK, LONGEST_CHUNK = 200 / 820, 1000 / 820
"""Chunks shorter or longer than these fractions of the requested length are dropped (limits of pretraining-BERT)."""
FULL_STOPS = "\u3002\uff01\uff1f\uff61\u0964\u0965\u061f\u06d4\u104b\u17d4\u17d5\u0589\u1362"
"""Marks that end a sentence, of Chinese and Japanese, Hindi, Arabic and Urdu, Burmese, Khmer, Armenian and Ethiopic."""
_SENTENCE_END = re.compile(rf"""[.!?\u2026{FULL_STOPS}]["'\u201d\u2019\u00bb\u300d\u300f)\]]*\s*$""")


@dataclass(frozen=True)
class Document:
    text: str
    """Normalized text, see ``cleaning``; never empty."""
    source: str
    """The input it came from, as the user typed it."""
    sentences: tuple[str, ...] | None = None
    """The lines of an input with one sentence per line, else None. Joined by line breaks they equal the text."""


@dataclass(frozen=True)
class DocumentRule:
    kind: str
    """file, line or blank-line."""
    sentences: bool = False
    """Whether each line is a sentence; only with blank-line."""


def choose_rule(files: Sequence[InputFile], choice: str) -> DocumentRule:
    """Decide what one document of plain text is. If ``choice`` is auto, at most the first megabyte is examined.

    Many small files are one document each. Otherwise blank lines separate documents if there are any, else each
    line is a document.
    """
    check_choice("--document", choice, RULES)
    texts = [file for file in files if file.form == TEXT]
    if not texts or choice in ("file", "line"):
        return DocumentRule(choice if choice != "auto" else "line")
    size = sum(file.bytes * (COMPRESSION if file.compression else 1) for file in texts)
    if choice == "auto" and len(texts) >= MANY_FILES and size <= WHOLE_FILE_BYTES * len(texts):
        return DocumentRule("file")
    lines = _sample_lines(texts)
    if choice == "auto" and all(lines):
        return DocumentRule("line")
    filled = [line for line in lines if line]
    ended = sum(bool(_SENTENCE_END.search(line)) for line in filled)
    # Few lines of a wrapped paragraph end with a full stop; most lines with one sentence each do.
    return DocumentRule("blank-line", sentences=ended >= 0.6 * len(filled) > 0)


def warn_of_single_documents(files: Sequence[InputFile], rule: DocumentRule) -> None:
    """Warn of a text file with many lines and no blank line if blank lines separate documents: it is one document."""
    if rule.kind != "blank-line":
        return
    for file in [file for file in files if file.form == TEXT][:MANY_FILES]:
        lines = _sample_lines([file])
        if len(lines) >= MANY_LINES and all(lines):
            say(
                f"Warning: '{file.given}' has no blank lines, and other inputs have: its {len(lines):,} lines or more "
                "are one document. Prepare it with --document line if each line is a document."
            )
            return


def _sample_lines(files: Sequence[InputFile]) -> list[str]:
    lines: list[str] = []
    size = 0
    for file in files:
        text_found = False
        for line in read_lines(file):
            text = line.decode("utf-8", "replace").strip()
            text_found = text_found or text != ""
            lines += [text] if text_found else []
            size += len(line)
            if size >= SAMPLE_BYTES:
                return lines
        while lines and not lines[-1]:  # blank lines at the start and end of a file separate nothing
            lines.pop()
    return lines


def read_documents(
    files: Sequence[InputFile], rule: DocumentRule, text_field: str, skips: Skips, byte_counter: ByteCounter
) -> Iterator[Document]:
    """Yield the documents of ``files`` in order, normalized and not empty; update ``skips`` and ``byte_counter``.

    Raises:
        UserError: a file is binary, damaged, or has too many bad lines; records lack ``text_field``.
    """
    for file in files:
        yield from read_file(FileRange(file, skips, byte_counter), rule, text_field)


def read_file(part: FileRange, rule: DocumentRule, text_field: str) -> Iterator[Document]:
    """Yield the documents of one file or of a part of it.

    Raises:
        UserError: see ``read_documents``. ``Skips.evaluate`` checks the bad lines of a part.
    """
    own = replace(part, skips=Skips())  # merged at the end, because numbers of lines count from the part's beginning
    try:
        if part.file.form == TEXT:
            yield from _text(own, rule)
        else:
            texts = _READERS[part.file.form](own, text_field)
            yield from (Document(text, part.file.given) for text in texts)
    finally:
        part.skips.merge(own.skips)


_READERS: dict[str, Callable[[FileRange, str], Iterator[str]]] = {
    RECORDS: read_records,
    TABLE: read_table,
    PARQUET: read_parquet,
    DATA_SET: read_data_set,
    PAGE: lambda part, _: read_page(part),
    DUMP: lambda part, _: read_dump(part),
}


def _text(part: FileRange, rule: DocumentRule) -> Iterator[Document]:
    if rule.kind == "line":
        for inside, line in _text_lines(part):
            if not inside:
                return
            if text := clean(line):
                yield Document(text, part.file.given)
    else:
        yield from _paragraphs(_text_lines(part), part, rule)


def _text_lines(part: FileRange) -> Iterator[tuple[bool, str]]:
    """Yield (whether the line begins inside the part, line); lines beyond the part are not counted."""
    remedy = "Convert the file to UTF-8 (from Windows: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW), or leave it out."
    bad = BadLines(part.file.name, "undecodable", remedy)
    inside = True
    for position, line in part.lines():
        if inside and part.outside(position):
            inside = False
            part.settle(bad)
        bad.lines += inside
        if b"\0" in line:
            where = f" ({part.place(bad.lines)})" if inside else ""
            raise UserError(
                f"'{part.file.name}' is binary, not text{where}.", "Leave it out, or convert it to UTF-8 text."
            )
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            if inside:
                part.bad_line(bad, bad.lines)
            continue
        yield inside, text
    if inside:
        part.settle(bad)


def _paragraphs(lines: Iterator[tuple[bool, str]], part: FileRange, rule: DocumentRule) -> Iterator[Document]:
    """Group lines into documents: at blank lines, or the whole file; always split at LARGEST_DOCUMENT.

    A part of a file begins at its first blank line and ends at the first blank line beyond it.
    """
    held: list[str] = []
    size = 0
    in_part = part.start == 0  # otherwise lines before the first blank line belong to the part before

    def close() -> Iterator[Document]:
        if rule.kind == "file":
            text = clean("".join(held))
        else:
            sentences = tuple(filter(None, map(clean, held)))
            text = "\n".join(sentences)
        held.clear()
        if text:
            yield Document(text, part.file.given, sentences if rule.sentences else None)

    for inside, line in lines:
        if not inside and not in_part:
            return
        if rule.kind == "blank-line" and not line.strip():
            yield from close()
            size, in_part = 0, True
            if not inside:
                return
            continue
        if not in_part:
            continue
        if size >= LARGEST_DOCUMENT:
            yield from close()
            size = 0
        held.append(line)
        size += len(line)
    yield from close()


def cut_documents(documents: Iterable[Document], characters: int, skips: Skips) -> Iterator[Document]:
    """Split documents at spaces into chunks of about ``characters``, each a document; drop much shorter or longer ones.

    The limits are SHORTEST_CHUNK and LONGEST_CHUNK. The last chunk of a document is therefore often dropped, as is text
    without spaces. A document below the upper limit is not split, so existing chunks are unchanged.
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
