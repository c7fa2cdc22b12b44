"""The first pass over the text: apply the filters, count, sample text for the tokenizer, and decide on the splits.

Each part writes its results to a folder, which is renamed when it is complete, so an interrupted preparation resumes:

    SURVEY/00007/documents.bin  sample/  facts.json  kept

The clean text of a part is kept for the second pass if it fits, because parsing it again takes longer than encoding.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.data.filters.contamination import REASON as CONTAMINATED
from daybreak.data.filters.contamination import EvaluationTexts
from daybreak.data.filters.custom_filters import FilterFailed
from daybreak.data.filters.deduplication import HELDOUT, TRAIN, Ledger, SplitAssignments, document_key
from daybreak.data.filters.filter import Context, DocumentFilter
from daybreak.data.filters.languages import Language, open_identifier
from daybreak.data.filters.near_duplicates import near_duplicates, write_signatures
from daybreak.data.filters.scripts import script_fractions
from daybreak.data.pipeline.corpus import Corpus
from daybreak.data.pipeline.resuming import fill_once, part_folder
from daybreak.data.pipeline.sample import SampleSpool, SampleTexts, shrink
from daybreak.data.readers.documents import Document, Skips
from daybreak.data.readers.inputs import ByteCounter
from daybreak.schemas.corpus import DroppedText

ROW = np.dtype([("key", "<u8"), ("characters", "<u4"), ("words", "<u4"), ("reason", "<u4")])
"""One document. reason: 0 if it is kept, else the 1-based index of its reason in ``Facts.reasons``."""
LINE_BREAKS = re.compile("\n+")
EXAMPLES = 3
"""Examples stored for each reason."""
EXAMPLE_CHARACTERS = 400
SCRIPT_CHARACTERS = 2000
"""Characters of a document that are examined for its script."""
PART_BITS = 40
"""Until all parts are counted, a document number is its index in the part, with the part number above these bits."""


@dataclass(frozen=True, kw_only=True)
class FirstPassJob:
    """Settings of the first pass, the same for every part."""

    corpus: Corpus
    filters: tuple[DocumentFilter, ...] = ()
    context: Context = field(default_factory=Context)
    evaluation: EvaluationTexts | None = None
    remove: bool = False
    """Remove documents that contain evaluation text."""
    near: Path | None = None
    """Folder for the signatures of kept documents, for ``near_duplicates``."""
    show_text: bool = False
    """Store examples of removed documents."""
    keep: int = 0
    """Bytes of text that each part may store for the second pass."""


@dataclass(frozen=True)
class Reason:
    """Why a document was removed and by which filter; evaluation text counts as one after the last document filter."""

    step: int
    why: str


@dataclass(frozen=True)
class Example:
    step: int
    text: DroppedText


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Results of one part, stored as facts.json."""

    sources: dict[str, int]
    """Documents of each input, by the input as the user typed it, in reading order."""
    skips: Skips
    reasons: list[Reason]
    scripts: dict[str, int]
    """Letters by script, of the kept documents."""
    languages: dict[str, int] = field(default_factory=dict)
    """Kept documents by language; empty without a language model."""
    items: list[tuple[int, int]] = field(default_factory=list)
    """(evaluation text, item) pairs that were found."""
    contaminated: dict[str, int] = field(default_factory=dict)
    """Documents that contain each evaluation text, by its index."""
    examples: list[Example] = field(default_factory=list)


def first_pass_part(job: FirstPassJob, folder: Path, byte_counter: ByteCounter, number: int) -> int:
    """Process one part into ``folder/NUMBER`` unless it exists; return the number."""
    fill_once(part_folder(folder, number), lambda work: _read(job, work, byte_counter, number))
    return number


TIDY_EVERY = 16
"""Parts after which their samples are reduced to the sample limit."""


def keep_tidy(folder: Path, parts: Iterable[object]) -> None:
    """Consume ``parts``; reduce their samples in ``folder`` to the sample limit from time to time."""
    for done, _ in enumerate(parts, 1):
        if done % TIDY_EVERY == 0:
            shrink([part / "sample" for part in sorted(folder.glob("[0-9]*"))])


def _read(job: FirstPassJob, work: Path, byte_counter: ByteCounter, number: int) -> None:
    """Read one part and write its results into ``work``."""
    filters = [step.open(job.context) for step in job.filters]
    models = [step.model for step in job.filters if isinstance(step, Language)]
    identify = open_identifier(models[0]) if models else None
    skips, sources = Skips(), dict.fromkeys(job.corpus.sources(number), 0)
    scripts, languages, contaminated = Counter[str](), Counter[str](), Counter[str]()
    codes: dict[Reason, int] = {}
    items: set[tuple[int, int]] = set()
    examples: list[Example] = []

    def why_not(text: str) -> Reason | None:
        """Return the first filter that removes ``text``, with its reason, or None."""
        for step, evaluate in enumerate(filters):
            if (why := evaluate(text)) is not None:
                return Reason(step, why)
        if job.evaluation is None or not (met := job.evaluation.find(text)):
            return None
        items.update(met)
        contaminated.update({str(evaluation) for evaluation, _ in met})
        return Reason(len(filters), CONTAMINATED) if job.remove else None

    def staying() -> Iterator[tuple[int, str]]:
        """Read the part; yield (number, text) of kept documents."""
        spool, kept, shown = SampleSpool(work / "sample"), KeptTexts(work, job.keep), Counter[int]()
        with (work / "documents.bin").open("wb") as rows:
            for place, document in enumerate(job.corpus.documents(number, skips, byte_counter)):
                text = document.text
                kept.add(text)
                sources[document.source] += 1
                try:
                    why = why_not(text)
                except FilterFailed as failed:
                    raise failed.on(job.corpus.place(number, place)) from None
                key, words = document_key(text), text.count(" ") + len(LINE_BREAKS.findall(text)) + 1  # it is clean
                code = codes.setdefault(why, len(codes) + 1) if why else 0
                rows.write(np.array((key, len(text), words, code), ROW).tobytes())
                if why is None:
                    spool.add(place, key, text)
                    scripts.update(script_fractions(text[:SCRIPT_CHARACTERS]))
                    if identify:
                        languages[identify(text)] += 1
                    yield number << PART_BITS | place, text
                elif job.show_text and shown[code] < EXAMPLES:
                    shown[code] += 1
                    examples.append(Example(why.step, DroppedText(reason=why.why, text=text[:EXAMPLE_CHARACTERS])))
        spool.close()
        kept.close()

    documents = staying()
    if job.near:
        write_signatures(documents, job.near, number)
    deque(documents, maxlen=0)  # exhausted already if signatures were written
    facts = Facts(
        sources=sources, skips=skips, reasons=list(codes), scripts=dict(scripts), languages=dict(languages),
        items=sorted(items), contaminated=dict(contaminated), examples=examples,
    )  # fmt: skip
    write_json(work / "facts.json", facts)


KEPT_BYTES = 4 << 30
"""Disk space for the stored texts of all parts."""
KEPT = "kept"
HEAD_BYTES = 8
"""The length of a text stands before it."""


class KeptTexts:
    """Stores the documents of one part in ``folder``, or none of them if they exceed ``limit`` bytes."""

    def __init__(self, folder: Path, limit: int):
        self._path, self._room = folder / KEPT, limit
        self._file = self._path.open("wb")

    def add(self, text: str) -> None:
        data = text.encode()
        self._room -= len(data)
        if self._room >= 0:
            self._file.write(len(data).to_bytes(HEAD_BYTES, "little") + data)

    def close(self) -> None:
        self._file.close()
        if self._room < 0:
            self._path.unlink()


def kept_documents(folder: Path) -> Iterator[Document] | None:
    """Return the documents stored in ``folder`` in order, or None if they must be read from the input again."""
    return _read_kept(folder / KEPT) if (folder / KEPT).exists() else None


def _read_kept(path: Path) -> Iterator[Document]:
    with path.open("rb") as file:
        while head := file.read(HEAD_BYTES):
            yield Document(text=file.read(int.from_bytes(head, "little")).decode(), source="")


@dataclass(frozen=True)
class FirstPass:
    """Results of the first pass over all parts, with the split of each document."""

    folders: tuple[Path, ...]
    """Folders of the parts, in order."""
    facts: tuple[Facts, ...]
    offsets: tuple[int, ...]
    """Number of the first document of each part, then the total number of documents."""
    splits: SplitAssignments
    sample: SampleTexts
    heldout_sample: SampleTexts
    characters: int
    """Characters of the documents that passed the filters, including duplicates."""
    skips: Skips
    """Counts of what could not be read."""
    evaluation_items: tuple[int, ...]
    """Number of items of each evaluation text that are long enough to search for."""
    near: np.ndarray | None
    """Ascending numbers of documents removed as near duplicates; None if they were not searched for."""

    @property
    def letters(self) -> Counter[str]:
        """Letters by script, of the documents that passed the filters."""
        return sum((Counter(part.scripts) for part in self.facts), Counter())

    def documents(self, part: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows of one part (ROW) and the split of each document (uint8), a million at a time."""
        start = self.offsets[part]
        for rows in _read_rows(self.folders[part]):
            yield rows, np.asarray(self.splits.assignments[start : start + len(rows)])
            start += len(rows)


def near_copies(near: np.ndarray | None, first: int, count: int) -> np.ndarray:
    """Return bool[count]: whether each document from number ``first`` on is a near duplicate."""
    found = np.zeros(count, bool)
    if near is not None:
        start, stop = np.searchsorted(near, [first, first + count])
        found[near[start:stop] - first] = True
    return found


def _read_rows(part: Path) -> Iterator[np.ndarray]:
    with (part / "documents.bin").open("rb") as file:
        while data := file.read(ROW.itemsize << 20):
            yield np.frombuffer(data, ROW)


def decide(
    folder: Path, parts: int, *, least: int, signatures: Path | None = None, evaluation_items: Sequence[int] = ()
) -> FirstPass:
    """Merge the results of all parts and assign each document to a split.

    Memory: a million entries of ``documents.bin`` and a 256th of all hashes. With ``signatures``, ``near_duplicates``
    adds its own.

    Args:
        least: minimum number of held-out documents.
        signatures: folder of the signatures of all parts, to remove near duplicates.
        evaluation_items: see ``FirstPass``.
    """
    folders = tuple(part_folder(folder, number) for number in range(parts))
    shrink([one / "sample" for one in folders])
    counts = [(one / "documents.bin").stat().st_size // ROW.itemsize for one in folders]
    offsets = np.cumsum([0, *counts])
    near = None
    if signatures:
        found = near_duplicates(signatures).astype(np.int64)
        near = offsets[found >> PART_BITS] + (found & (1 << PART_BITS) - 1)
    facts, skips = tuple(read_json(one / "facts.json", Facts) for one in folders), Skips()
    for part in facts:
        skips.merge(part.skips)
    skips.evaluate()
    for spooled in (folder / "keys").glob("[0-9a-f][0-9a-f]"):
        spooled.unlink()
    ledger = Ledger(folder / "keys", least=least)
    for one in folders:
        for rows in _read_rows(one):
            stays = (rows["reason"] == 0) & ~near_copies(near, ledger.documents, len(rows))
            ledger.add(rows["key"], rows["characters"], stays)
    if not ledger.kept:
        if ledger.documents:
            raise UserError(
                f"The filters removed all {ledger.documents:,} documents.", "Choose another --preset or text."
            )
        if skips.counts:
            skipped = ", ".join(f"{count:,} {reason}" for reason, count in skips.counts.items())
            raise UserError(
                f"No document with text is left. Skipped: {skipped}.",
                "Check --text-field, --document and --chunk-characters, or give other text.",
            )
        raise UserError("The corpus is empty: no document holds any text.", "Give files with text in them.")
    splits = ledger.decide()
    if splits.train == 0:
        if splits.duplicates:
            raise UserError(
                f"The corpus holds one document {splits.duplicates + 1:,} times, so no text can be held out for "
                "validation.",
                "Give text with different documents.",
            )
        raise UserError(
            "The corpus is a single document, so no text can be held out for validation.",
            "Give more text, or split it: --document line, --document blank-line or --chunk-characters 2000.",
        )
    spools, starts = [one / "sample" for one in folders], offsets[:-1].tolist()
    return FirstPass(
        folders=folders,
        facts=facts,
        offsets=tuple(offsets.tolist()),
        splits=splits,
        sample=SampleTexts(spools, starts, splits, TRAIN),
        heldout_sample=SampleTexts(spools, starts, splits, HELDOUT),
        characters=ledger.characters,
        skips=skips,
        evaluation_items=tuple(evaluation_items),
        near=near,
    )
