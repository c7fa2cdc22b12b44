"""The text as it is read: its parts, and what one document of it is. The same in every pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from daybreak.core.errors import UserError
from daybreak.data.pipeline.parts import PART_BYTES, Part, read_part, split_parts
from daybreak.data.readers.documents import Document, DocumentRule, Skips, cut_documents
from daybreak.data.readers.inputs import PARQUET, TEXT, TOKENS, UNITS, ByteCounter, InputFile
from daybreak.data.readers.sentences import with_sentences

Bundle = tuple[Part, ...]
"""Read and kept together, so that a hundred thousand small files are not as many tasks."""


def bundled(
    files: Sequence[InputFile], rule: DocumentRule, size: int = PART_BYTES, *, together: bool = False
) -> tuple[Bundle, ...]:
    """Cut big files and put small ones together, in their order, into bundles of about ``size`` bytes.

    Args:
        together: a bundle may hold files of several inputs, as long as all inputs are read equally often.
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
    """Text in parts."""

    parts: tuple[Bundle, ...]
    rule: DocumentRule
    text_field: str
    split_sentences: bool
    chunk_characters: int
    """Documents are cut to about this length; 0 leaves them whole."""
    tokenizer: str = ""
    """The folder of the one whose ids the text is, where it is tokens already."""

    def __post_init__(self) -> None:
        if self.chunk_characters < 0:
            raise UserError(f"A chunk of {self.chunk_characters} characters holds no text.", "Give a number above 0.")

    @property
    def sentences(self) -> bool:
        """Whether every document has its sentences."""
        return self.split_sentences or (self.rule.sentences and not self.chunk_characters and self._forms() == {TEXT})

    @property
    def is_tokens(self) -> bool:
        """Whether nothing needs to be encoded."""
        return self._forms() == {TOKENS}

    @property
    def has_tokens(self) -> bool:
        """Whether some of it need not be encoded."""
        return TOKENS in self._forms()

    @property
    def files(self) -> Iterator[InputFile]:
        """Of every part; one that was cut comes several times."""
        return (part.file for bundle in self.parts for part in bundle)

    def _forms(self) -> set[str]:
        return {file.form for file in self.files}

    @property
    def rule_name(self) -> str:
        """What documents are, see ``Manifest.document_rule``."""
        units = sorted({UNITS[form] for form in self._forms() if form != TEXT}, reverse=True)
        return " and ".join(units + ([self.rule.kind] if TEXT in self._forms() else []))

    def sources(self, number: int) -> list[str]:
        """The inputs that a part is of, as the user typed them, in their order."""
        return list(dict.fromkeys(part.file.given for part in self.parts[number]))

    def place(self, number: int, document: int) -> str:
        """In words, the document ``document`` of the part ``number``, both counted from 0, for an error about it."""
        first, last = self.parts[number][0], self.parts[number][-1]
        until = f"' to '{last.file.name}" if last.file != first.file else ""
        unit = {PARQUET: "row group", TOKENS: "document"}.get(first.file.form, "byte")
        since = f" behind {unit} {first.start:,}" if first.start else ""
        return f"document {document + 1:,} of '{first.file.name}{until}'{since}"

    def documents(self, number: int, skips: Skips, byte_counter: ByteCounter) -> Iterator[Document]:
        """The documents of one part, in order."""
        found: Iterator[Document] = (
            document
            for part in self.parts[number]
            for document in read_part(part, self.rule, self.text_field, skips, byte_counter, self.tokenizer)
        )
        if self.chunk_characters:
            found = cut_documents(found, self.chunk_characters, skips)
        return with_sentences(found) if self.split_sentences else found
