"""Big files in parts, so that several processes share one, and a restart need not read again what is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from daybreak.data.pipeline.tokenized import read_tokens, split_documents
from daybreak.data.readers.documents import Document, DocumentRule, read_file
from daybreak.data.readers.file_range import FileRange, Skips
from daybreak.data.readers.inputs import PARQUET, RECORDS, TEXT, TOKENS, ByteCounter, InputFile
from daybreak.data.readers.tables import row_groups

PART_BYTES = 16 << 20


@dataclass(frozen=True)
class Part:
    """A phase of a file: the documents of all its parts, in order, are those of the file."""

    file: InputFile
    start: int
    """Bytes: a record or line belongs to the part in which it begins, a document between blank lines to the part in
    which the last blank line before it begins. Of a .parquet file row groups, of a .ds file documents."""
    stop: int | None
    """Likewise; None for the end of the file."""


def split_parts(files: Sequence[InputFile], rule: DocumentRule, part_bytes: int = PART_BYTES) -> list[Part]:
    """Cut what can be cut: records and text that are not packed, unless a file is one document; .parquet and .ds files.

    A part of a .parquet file has at least one row group. Every other file is one part.

    Raises:
        UserError: a .parquet file is damaged, or pyarrow is not installed; a .ds file has no index.
    """
    return [part for file in files for part in _parts(file, rule, part_bytes)]


def _parts(file: InputFile, rule: DocumentRule, part_bytes: int) -> Iterator[Part]:
    if file.bytes <= part_bytes:
        ends: list[int] = []
    elif file.form == PARQUET:
        ends, size = [], 0
        for number, group in enumerate(row_groups(file)[:-1], 1):  # behind the last one no part begins
            size += group
            if size >= part_bytes:
                ends.append(number)
                size = 0
    elif file.form == TOKENS:
        ends = split_documents(file, part_bytes)
    elif not file.compression and (file.form == RECORDS or (file.form == TEXT and rule.kind != "file")):
        ends = list(range(part_bytes, file.bytes, part_bytes))
    else:
        ends = []
    for start, stop in zip([0, *ends], [*ends, None], strict=True):
        yield Part(file, start, stop)


def read_part(
    part: Part, rule: DocumentRule, text_field: str, skips: Skips, byte_counter: ByteCounter, tokenizer: str = ""
) -> Iterator[Document]:
    """Yield the documents of ``part``. When all parts are read, in order, into one ``skips``, or each into its own and
    these are merged in order, ``skips.evaluate`` says whether a file had too many bad lines.

    Args:
        tokenizer: the folder of the one whose ids a .ds file holds.

    Raises:
        UserError: see ``read_documents``; but of bad lines only if the part is the whole file.
    """
    if part.file.form == TOKENS:
        return read_tokens(FileRange(part.file, skips, byte_counter, part.start, part.stop), tokenizer)
    return read_file(part.file, rule, text_field, skips, byte_counter, part.start, part.stop)
