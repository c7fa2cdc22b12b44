"""Split large files into parts, so that processes share them and a restart skips finished parts."""

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
    """A range of a file. The documents of all parts, in order, are the documents of the file."""

    file: InputFile
    start: int
    """Byte offset; for a .parquet file a row group, for a .ds file a document. A record or line belongs to the part in
    which it begins, a document between blank lines to the part in which the last blank line before it begins."""
    stop: int | None
    """In the same unit; None for the end of the file."""


def split_parts(files: Sequence[InputFile], rule: DocumentRule, part_bytes: int = PART_BYTES) -> list[Part]:
    """Split uncompressed records and text (unless a file is one document), .parquet and .ds files into parts.

    A part of a .parquet file has at least one row group. Other files are one part.

    Raises:
        UserError: a .parquet file is damaged, or pyarrow is not installed; a .ds file has no index.
    """
    return [part for file in files for part in _parts(file, rule, part_bytes)]


def _parts(file: InputFile, rule: DocumentRule, part_bytes: int) -> Iterator[Part]:
    if file.bytes <= part_bytes:
        ends: list[int] = []
    elif file.form == PARQUET:
        ends, size = [], 0
        for number, group in enumerate(row_groups(file)[:-1], 1):  # no part begins after the last one
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
    """Yield the documents of ``part``.

    Call ``skips.evaluate`` after all parts, in order, to check the bad lines of files that were read in parts.

    Args:
        tokenizer: folder of the tokenizer of a .ds file.

    Raises:
        UserError: see ``read_documents``; for bad lines only if the part is the whole file.
    """
    if part.file.form == TOKENS:
        return read_tokens(FileRange(part.file, skips, byte_counter, part.start, part.stop), tokenizer)
    return read_file(part.file, rule, text_field, skips, byte_counter, part.start, part.stop)
