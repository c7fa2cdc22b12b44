"""The text as it is read: its parts, and what one document of it is. The same in every pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from daybreak.data.documents import Document, DocumentRule, Skips, cut_documents
from daybreak.data.inputs import TEXT, UNITS, InputFile, Meter
from daybreak.data.parts import PART_BYTES, Part, read_part, split_parts
from daybreak.data.sentences import with_sentences

Bundle = tuple[Part, ...]
"""Read and kept together, so that a hundred thousand small files are not as many tasks: all of one input."""


def bundled(files: Sequence[InputFile], rule: DocumentRule, size: int = PART_BYTES) -> tuple[Bundle, ...]:
    """Cut big files and put small ones together, in their order, into bundles of about ``size`` bytes."""
    bundles: list[list[Part]] = []
    room = 0
    for part in split_parts(files, rule, size):
        small = part.start == 0 and part.stop is None and part.file.bytes <= room
        if small and bundles and bundles[-1][0].file.given == part.file.given:
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

    @property
    def sentences(self) -> bool:
        """Whether every document has its sentences."""
        return self.split_sentences or (self.rule.sentences and not self.chunk_characters and self._forms() == {TEXT})

    def _forms(self) -> set[str]:
        return {part.file.form for bundle in self.parts for part in bundle}

    @property
    def rule_name(self) -> str:
        """What documents are, in words joined by 'and': record, page, article; file, line or blank-line for text."""
        units = sorted({UNITS[form] for form in self._forms() if form != TEXT}, reverse=True)
        return " and ".join(units + ([self.rule.kind] if TEXT in self._forms() else []))

    def source(self, number: int) -> str:
        """The input that a part is of, as the user typed it."""
        return self.parts[number][0].file.given

    def documents(self, number: int, skips: Skips, meter: Meter) -> Iterator[Document]:
        """The documents of one part, in order."""
        found: Iterator[Document] = (
            document
            for part in self.parts[number]
            for document in read_part(part, self.rule, self.text_field, skips, meter)
        )
        if self.chunk_characters:
            found = cut_documents(found, self.chunk_characters, skips)
        return with_sentences(found) if self.split_sentences else found
