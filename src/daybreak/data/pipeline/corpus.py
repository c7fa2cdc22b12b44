"""The corpus: its parts and its document rule, the same in every pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from daybreak.core.errors import UserError
from daybreak.data.pipeline.parts import PART_BYTES, Part, read_part, split_parts
from daybreak.data.readers.documents import Document, DocumentRule, Skips, cut_documents
from daybreak.data.readers.inputs import PARQUET, TEXT, TOKENS, UNITS, ByteCounter, InputFile
from daybreak.data.readers.sentences import with_sentences

Bundle = tuple[Part, ...]
"""Parts that form one task, so that many small files do not become as many tasks."""


def bundled(
    files: Sequence[InputFile], rule: DocumentRule, size: int = PART_BYTES, *, together: bool = False
) -> tuple[Bundle, ...]:
    """Split large files and group small ones, in order, into bundles of about ``size`` bytes.

    Args:
        together: whether a bundle may contain files of several inputs, which must then have the same epochs.
    """
    bundles: list[list[Part]] = []
    room = 0
    for part in split_parts(files, rule, size):
        small = part.start == 0 and part.stop is None and part.file.bytes <= room
        if small and bundles and (together or bundles[-1][0].file.given == part.file.given):
            bundles[-1].append(part)
        else:
            bundles.append([part])
            room = size if part.start == 0 and part.stop is None else 0
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
    tokenizer: str = ""
    """Folder of the tokenizer of token files; empty without such files."""

    def __post_init__(self) -> None:
        if self.chunk_characters < 0:
            raise UserError(f"A chunk cannot have {self.chunk_characters} characters.", "Give a number above 0.")

    @property
    def sentences(self) -> bool:
        """Whether every document is split into sentences."""
        return self.split_sentences or (self.rule.sentences and not self.chunk_characters and self._forms() == {TEXT})

    @property
    def is_tokens(self) -> bool:
        """Whether all files contain token ids."""
        return self._forms() == {TOKENS}

    @property
    def has_tokens(self) -> bool:
        """Whether some files contain token ids."""
        return TOKENS in self._forms()

    @property
    def files(self) -> Iterator[InputFile]:
        """The file of every part; a file in several parts is repeated."""
        return (part.file for bundle in self.parts for part in bundle)

    def _forms(self) -> set[str]:
        return {file.form for file in self.files}

    @property
    def rule_name(self) -> str:
        """The unit of a document, see ``Manifest.document_rule``."""
        units = sorted({UNITS[form] for form in self._forms() if form != TEXT}, reverse=True)
        return " and ".join(units + ([self.rule.kind] if TEXT in self._forms() else []))

    def sources(self, number: int) -> list[str]:
        """Return the inputs of a bundle, as the user typed them, in order."""
        return list(dict.fromkeys(part.file.given for part in self.parts[number]))

    def place(self, number: int, document: int) -> str:
        """Describe document ``document`` of bundle ``number``, both 0-based, for an error message."""
        first, last = self.parts[number][0], self.parts[number][-1]
        until = f"' to '{last.file.name}" if last.file != first.file else ""
        unit = {PARQUET: "row group", TOKENS: "document"}.get(first.file.form, "byte")
        since = f" after {unit} {first.start:,}" if first.start else ""
        return f"document {document + 1:,} of '{first.file.name}{until}'{since}"

    def documents(self, number: int, skips: Skips, byte_counter: ByteCounter) -> Iterator[Document]:
        """Yield the documents of one bundle, in order."""
        found: Iterator[Document] = (
            document
            for part in self.parts[number]
            for document in read_part(part, self.rule, self.text_field, skips, byte_counter, self.tokenizer)
        )
        if self.chunk_characters:
            found = cut_documents(found, self.chunk_characters, skips)
        return with_sentences(found) if self.split_sentences else found
