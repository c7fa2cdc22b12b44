"""From input files to documents: what one document is, and what is left out because it cannot be read."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daybreak.base.errors import UserError
from daybreak.base.plain import nearest
from daybreak.data import hub
from daybreak.data.cleaning import clean
from daybreak.data.counting import cut_at_whitespace
from daybreak.data.inputs import DATA_SET, RECORDS, TEXT, InputFile, Meter, read_lines

RULES = ("auto", "file", "line", "blank-line")
SAMPLE_BYTES = 1 << 20
"""How much text is looked at to choose a rule."""
WHOLE_FILE_BYTES = 1 << 20
"""Several files of at most this mean size are taken as one document each."""
LARGEST_DOCUMENT = 4 << 20
"""Characters. A longer document is cut at a line border, so that memory does not grow with it."""
FEW_BAD, BAD_SHARE = 10, 0.01
"""A file is refused when it has more bad lines than the first number and a larger share than the second."""
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


@dataclass(frozen=True)
class DocumentRule:
    kind: str
    """file, line or blank-line."""
    sentences: bool = False
    """Whether each line is a sentence; only with blank-line."""


class Skips:
    """Counts what was left out, by reason, and remembers where each reason was first met."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, reason: str, where: str) -> None:
        self.counts[reason] += 1
        self.first.setdefault(reason, where)


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
        for line in read_lines(file):
            lines.append(line.decode("utf-8", "replace").strip())
            size += len(line)
            if size >= SAMPLE_BYTES:
                return lines
        while lines and not lines[-1]:  # blank lines at the end of a file part nothing
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
        if file.form == RECORDS:
            found: Iterator[Document] = _records(file, text_field, skips, meter)
        elif file.form == DATA_SET:
            found = _data_set(file, text_field, skips)
        else:
            lines = _text_lines(file, skips, meter)
            if rule.kind == "line":
                found = (Document(text, file.given) for line in lines if (text := clean(line)))
            else:
                found = _paragraphs(lines, file.given, rule)
        yield from found


class _BadLines:
    """The bad lines of one file: skipped and counted while they are few."""

    def __init__(self, file: InputFile, kind: str, remedy: str, skips: Skips):
        self._path, self._kind, self._remedy, self._skips = file.path, kind, remedy, skips
        self._bad = 0
        self._first = ""

    def add(self, line: int, problem: str = "") -> None:
        self._bad += 1
        self._first = self._first or f"line {line}{problem and ': ' + problem}"
        self._skips.add(f"{self._kind} lines", f"'{self._path}' line {line}")

    def judge(self, lines: int) -> None:
        """Call at the end of the file with its number of lines."""
        if self._bad == lines > 0 or (self._bad > FEW_BAD and self._bad > BAD_SHARE * lines):
            raise UserError(
                f"'{self._path}' has {self._bad} {self._kind} lines of {lines}, the first in {self._first}.",
                self._remedy,
            )


def _text_lines(file: InputFile, skips: Skips, meter: Meter) -> Iterator[str]:
    bad = _BadLines(file, "undecodable", "Convert the file to UTF-8, or leave it out.", skips)
    number = 0
    for number, line in enumerate(read_lines(file, meter), 1):
        if b"\0" in line:
            raise UserError(
                f"'{file.path}' is binary, not text (line {number}).", "Leave it out, or convert it to UTF-8 text."
            )
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError:
            bad.add(number)
    bad.judge(number)


def _paragraphs(lines: Iterator[str], source: str, rule: DocumentRule) -> Iterator[Document]:
    """Group lines into documents: at blank lines, or the whole file; cut at LARGEST_DOCUMENT in any case."""
    held: list[str] = []
    size = 0

    def close() -> Iterator[Document]:
        if rule.kind == "file":
            text = clean("".join(held))
        else:
            sentences = tuple(filter(None, map(clean, held)))
            text = "\n".join(sentences)
        held.clear()
        if text:
            yield Document(text, source, sentences if rule.sentences else None)

    for line in lines:
        if size >= LARGEST_DOCUMENT or (rule.kind == "blank-line" and not line.strip()):
            yield from close()
            size = 0
        held.append(line)
        size += len(line)
    yield from close()


def _records(file: InputFile, field: str, skips: Skips, meter: Meter) -> Iterator[Document]:
    bad = _BadLines(file, "malformed", "Mend these lines, or leave the file out.", skips)
    texts = _TextField(file, field, "line", skips)
    number = 0
    for number, line in enumerate(read_lines(file, meter), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (ValueError, RecursionError) as error:
            bad.add(number, "no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error))
            continue
        if not isinstance(record, dict):
            bad.add(number, "no object")
            continue
        if text := texts.pick(record, number):
            yield Document(text, file.given)
    bad.judge(number)


def _data_set(file: InputFile, field: str, skips: Skips) -> Iterator[Document]:
    texts = _TextField(file, field, "record", skips)
    for number, record in enumerate(hub.read_records(hub.parse(file.given), file.revision, field), 1):
        if text := texts.pick(record, number):
            yield Document(text, file.given)


class _TextField:
    """Takes the text out of the records of one input."""

    def __init__(self, file: InputFile, field: str, unit: str, skips: Skips):
        self._name, self._field, self._unit, self._skips = file.name, field, unit, skips
        self._seen = False

    def pick(self, record: dict[str, Any], number: int) -> str:
        """Clean text, empty where the record has none.

        Raises:
            UserError: the first record has no such field.
        """
        if not self._seen and self._field not in record:
            names = ", ".join(sorted(map(str, record))[:12]) or "none"
            raise UserError(
                f"'{self._name}' {self._unit} {number} has no field '{self._field}', but: {names}."
                f"{nearest(self._field, record)}",
                "Name the field that holds the text with --text-field."
                + (" Token ids cannot be prepared." if "input_ids" in record else ""),
            )
        self._seen = True
        text = record.get(self._field)
        if isinstance(text, str):
            return clean(text)
        self._skips.add("records without text", f"'{self._name}' {self._unit} {number}")
        return ""


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
