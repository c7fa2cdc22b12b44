"""The corpus: files in parts, which processes share and a restart skips, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from daybreak.core.errors import UserError
from daybreak.data.readers.documents import Document, DocumentRule, Skips, cut_documents, read_file
from daybreak.data.readers.file_range import FileRange
from daybreak.data.readers.inputs import DATA_SET, PARQUET, RECORDS, TEXT, UNITS, ByteCounter, InputFile
from daybreak.data.readers.sentences import with_sentences
from daybreak.data.readers.tables import row_groups

PART_BYTES = 16 << 20


@dataclass(frozen=True)
class Part:
    """A range of a file. The documents of all parts, in order, are the documents of the file."""

    file: InputFile
    start: int
    """Byte offset; for a .parquet file a row group. A record or line belongs to the part in which it begins, a document
    between blank lines to the part in which the last blank line before it begins."""
    stop: int | None
    """In the same unit; None for the end of the file."""

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop is None


def split_parts(files: Sequence[InputFile], rule: DocumentRule, part_bytes: int = PART_BYTES) -> list[Part]:
    """Split uncompressed records and text (unless a file is one document) and .parquet files into parts.

    A part of a .parquet file has at least one row group. Other files are one part.

    Raises:
        UserError: a .parquet file is damaged, or pyarrow is not installed.
    """
    found = []
    for file in files:
        ends = _ends(file, rule, part_bytes) if file.bytes > part_bytes else []
        found += [Part(file, start, stop) for start, stop in zip([0, *ends], [*ends, None], strict=True)]
    return found


def _ends(file: InputFile, rule: DocumentRule, part_bytes: int) -> list[int]:
    """Return where the parts of a large file end, without the last part."""
    if not file.compression and (file.form == RECORDS or (file.form == TEXT and rule.kind != "file")):
        return list(range(part_bytes, file.bytes, part_bytes))
    ends, size = [], 0
    for number, group in enumerate(row_groups(file)[:-1] if file.form == PARQUET else [], 1):
        size += group
        if size >= part_bytes:
            ends.append(number)
            size = 0
    return ends


Bundle = tuple[Part, ...]
"""Parts that form one task, so that many small files do not become as many tasks."""


def bundle_files(
    files: Sequence[InputFile], rule: DocumentRule, size: int = PART_BYTES, *, together: bool = False
) -> tuple[Bundle, ...]:
    """Split large files and group small ones, in order, into bundles of about ``size`` bytes.

    Args:
        together: whether a bundle may contain files of several inputs, which must then have the same epochs.
    """
    bundles: list[list[Part]] = []
    room = 0
    for part in split_parts(files, rule, size):
        # The size of a data set is not known, and what is bundled with it is lost with it if the process is killed.
        small = part.whole and part.file.form != DATA_SET and part.file.bytes <= room
        if small and bundles and (together or bundles[-1][0].file.given == part.file.given):
            bundles[-1].append(part)
        else:
            bundles.append([part])
            room = size if part.whole and part.file.form != DATA_SET else 0
        room -= part.file.bytes
    return tuple(map(tuple, bundles))


@dataclass(frozen=True)
class Corpus:
    """Text in parts, and how its documents are read."""

    parts: tuple[Bundle, ...]
    rule: DocumentRule
    text_field: str
    split_sentences: bool
    chunk_characters: int
    """Documents are split into chunks of about this length; 0 for no split."""

    def __post_init__(self) -> None:
        if self.chunk_characters < 0:
            raise UserError(f"A chunk cannot have {self.chunk_characters} characters.", "Give a number above 0.")

    @property
    def sentences(self) -> bool:
        """Whether every document is split into sentences."""
        return self.split_sentences or (self.rule.sentences and not self.chunk_characters and self.forms == {TEXT})

    @property
    def files(self) -> Iterator[InputFile]:
        """The file of every part; a file in several parts is repeated."""
        return (part.file for bundle in self.parts for part in bundle)

    @property
    def forms(self) -> set[str]:
        """The forms of the files, such as TEXT or TABLE."""
        return {file.form for file in self.files}

    @property
    def rule_name(self) -> str:
        """The unit of a document, see ``Manifest.document_rule``."""
        units = sorted({UNITS[form] for form in self.forms - {TEXT}}, reverse=True)
        return " and ".join(units + ([self.rule.kind] if TEXT in self.forms else []))

    def sources(self, number: int) -> list[str]:
        """Return the inputs of a bundle, as the user typed them, in order."""
        return list(dict.fromkeys(part.file.given for part in self.parts[number]))

    def place(self, number: int, document: int) -> str:
        """Describe document ``document`` of bundle ``number``, both 0-based, for an error message."""
        first, last = self.parts[number][0], self.parts[number][-1]
        until = f"' to '{last.file.name}" if last.file != first.file else ""
        unit = "row group" if first.file.form == PARQUET else "byte"
        since = f" after {unit} {first.start:,}" if first.start else ""
        return f"document {document + 1:,} of '{first.file.name}{until}'{since}"

    def documents(self, number: int, skips: Skips, byte_counter: ByteCounter) -> Iterator[Document]:
        """Yield the documents of one bundle, in order.

        Call ``skips.evaluate`` after all bundles, in order, to check the bad lines of files that were read in parts.
        """
        found: Iterator[Document] = (
            document for part in self.parts[number] for document in self._read(part, skips, byte_counter)
        )
        if self.chunk_characters:
            found = cut_documents(found, self.chunk_characters, skips)
        return with_sentences(found) if self.split_sentences else found

    def _read(self, part: Part, skips: Skips, byte_counter: ByteCounter) -> Iterator[Document]:
        read = FileRange(part.file, skips, byte_counter, part.start, part.stop)
        # The sentences of one file are not used beside files that have none, so that all documents are read alike.
        rule = replace(self.rule, sentences=self.rule.sentences and self.sentences)
        return read_file(read, rule, self.text_field)
