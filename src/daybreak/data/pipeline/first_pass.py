"""The first pass over the text: apply the filters, count, sample text for the tokenizer, and decide on the splits.

Each part writes its results to a folder, which is renamed when it is complete, so an interrupted preparation resumes:

    SURVEY/00007/documents.bin  sample/  facts.json  kept.texts  kept.lengths

The clean text of a part is kept for the second pass if it fits, because parsing it again takes longer than encoding.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from daybreak.data.pipeline.sample import SampleSpool, SampleTexts, shrink
from daybreak.data.readers.cleaning import LONG
from daybreak.data.readers.documents import Document, Skips
from daybreak.data.readers.inputs import ByteCounter
from daybreak.schemas.corpus import DroppedText

ROW = np.dtype([("key", "<u8"), ("characters", "<u4"), ("words", "<u4"), ("reason", "<u4")])
"""One document. reason: 0 if it is kept, else the 1-based index of its reason in ``Facts.reasons``."""
BUFFERED_ROWS = 1 << 12
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
    """Drop documents that contain evaluation text."""
    near: Path | None = None
    """Folder for the signatures of kept documents, for ``near_duplicates``."""
    show_text: bool = False
    """Store examples of dropped documents."""
    keep: int = 0
    """Bytes of text that each part may store for the second pass."""


@dataclass(frozen=True)
class Reason:
    """Why a document was dropped and by which filter; evaluation text counts as one after the last document filter."""

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

    def fill(work: Path) -> None:
        write_json(work / "facts.json", _read(job, work, byte_counter, number))

    return fill_part(folder, number, fill)


def fill_part(folder: Path, number: int, fill: Callable[[Path], None]) -> int:
    """Create ``folder/NUMBER`` atomically with ``fill`` unless it exists; return the number."""
    final = part_folder(folder, number)
    if not final.exists():
        work = final.with_name(f".{final.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        fill(work)
        settle(work, final)
    return number


def settle(work: Path, final: Path) -> None:
    """Rename the complete folder of a part; keep an existing one, from an orphan process of a killed preparation."""
    try:
        os.replace(work, final)
    except OSError:
        if not final.exists():
            raise
        shutil.rmtree(work)


TIDY_EVERY = 16
"""Parts after which their samples are reduced to the sample limit."""


def keep_tidy(folder: Path, parts: Iterable[object]) -> None:
    """Consume ``parts``; reduce their samples in ``folder`` to the sample limit from time to time."""
    for done, _ in enumerate(parts, 1):
        if done % TIDY_EVERY == 0:
            tidy(folder)


def tidy(folder: Path) -> None:
    """Reduce the samples of finished parts to the sample limit."""
    shrink([part / "sample" for part in sorted(folder.glob("[0-9]*"))])


def part_folder(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}"


def _read(job: FirstPassJob, work: Path, byte_counter: ByteCounter, number: int) -> Facts:
    reader = _Reader(job, work, byte_counter, number)
    staying = reader.staying()
    if job.near:
        write_signatures(staying, job.near, number)
    for _ in staying:  # exhausted already if signatures were written
        pass
    return reader.facts()


class _Reader:
    """Reads one part and collects its results."""

    def __init__(self, job: FirstPassJob, work: Path, byte_counter: ByteCounter, number: int):
        self._job, self._work, self._byte_counter, self._number = job, work, byte_counter, number
        self._filters = [step.open(job.context) for step in job.filters]
        self._skips = Skips()
        self._sources = dict.fromkeys(job.corpus.sources(number), 0)
        self._reasons: dict[Reason, int] = {}
        self._scripts: Counter[str] = Counter()
        self._languages: Counter[str] = Counter()
        models = [step.model for step in job.filters if isinstance(step, Language)]
        self._identify = open_identifier(models[0]) if models else None
        self._items: set[tuple[int, int]] = set()
        self._contaminated: Counter[str] = Counter()
        self._examples: list[Example] = []
        self._shown: Counter[int] = Counter()

    def staying(self) -> Iterator[tuple[int, str]]:
        """Read the part; yield (number, text) of kept documents."""
        spool, rows = SampleSpool(self._work / "sample"), _Rows(self._work / "documents.bin")
        kept = KeptTexts(self._work, self._job.keep)
        for place, document in enumerate(self._job.corpus.documents(self._number, self._skips, self._byte_counter)):
            text = document.text
            kept.add(text)
            self._sources[document.source] += 1
            try:
                why = self._why_not(text)
            except FilterFailed as failed:
                raise failed.on(self._job.corpus.place(self._number, place)) from None
            key = document_key(text)
            code = self._reasons.setdefault(why, len(self._reasons) + 1) if why else 0
            rows.add((key, len(text), _blanks(text) + 1, code))
            if why is None:
                spool.add(place, key, text)
                self._scripts.update(script_fractions(text[:SCRIPT_CHARACTERS]))
                if self._identify:
                    self._languages[self._identify(text)] += 1
                yield self._number << PART_BITS | place, text
            elif self._job.show_text and self._shown[code] < EXAMPLES:
                self._shown[code] += 1
                shown = DroppedText(reason=why.why, text=text[:EXAMPLE_CHARACTERS])
                self._examples.append(Example(why.step, shown))
        spool.close()
        rows.close()
        kept.close()

    def _why_not(self, text: str) -> Reason | None:
        """Return the first filter that drops ``text``, with its reason, or None."""
        for step, evaluate in enumerate(self._filters):
            if (why := evaluate(text)) is not None:
                return Reason(step, why)
        if self._job.evaluation is None or not (met := self._job.evaluation.find(text)):
            return None
        self._items |= met
        self._contaminated.update({str(evaluation) for evaluation, _ in met})
        return Reason(len(self._filters), CONTAMINATED) if self._job.remove else None

    def facts(self) -> Facts:
        return Facts(
            sources=self._sources,
            skips=self._skips,
            reasons=list(self._reasons),
            scripts=dict(self._scripts),
            languages=dict(self._languages),
            items=sorted(self._items),
            contaminated=dict(self._contaminated),
            examples=self._examples,
        )


def _blanks(text: str) -> int:
    """Count the spaces and line breaks of a clean text."""
    if len(text) < LONG:
        return text.count(" ") + text.count("\n")
    codes = np.frombuffer(text.encode(), np.uint8)
    return int(np.count_nonzero(codes == ord(" "))) + int(np.count_nonzero(codes == ord("\n")))


class _Rows:
    """Writes rows of ROW with a bounded buffer."""

    def __init__(self, path: Path):
        self._file = path.open("wb")
        self._held: list[tuple[int, int, int, int]] = []

    def add(self, row: tuple[int, int, int, int]) -> None:
        self._held.append(row)
        if len(self._held) == BUFFERED_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._file.write(np.array(self._held, ROW).tobytes())
        self._held.clear()

    def close(self) -> None:
        self._flush()
        self._file.close()


KEPT_BYTES = 4 << 30
"""Disk space for the stored texts of all parts."""
LENGTH = np.dtype("<u8")


class KeptTexts:
    """Stores the documents of one part in ``folder``, or none of them if they exceed ``limit`` bytes."""

    def __init__(self, folder: Path, limit: int):
        self._paths, self._limit = _files(folder), limit
        self._texts, self._lengths = (path.open("wb") for path in self._paths)
        self._size = 0

    def add(self, text: str) -> None:
        data = text.encode()
        self._size += len(data)
        if self._size <= self._limit:
            self._texts.write(data)
            self._lengths.write(len(data).to_bytes(LENGTH.itemsize, "little"))

    def close(self) -> None:
        self._texts.close()
        self._lengths.close()
        if self._size > self._limit:
            for path in self._paths:
                path.unlink()


def kept_documents(folder: Path) -> Iterator[Document] | None:
    """Return the documents stored in ``folder`` in order, or None if they must be read from the input again."""
    texts, lengths = _files(folder)
    return _read_kept(texts, lengths) if lengths.exists() else None


def _read_kept(texts: Path, lengths: Path) -> Iterator[Document]:
    with texts.open("rb") as file:
        for size in np.fromfile(lengths, LENGTH).tolist():
            yield Document(text=file.read(size).decode(), source="")


def _files(folder: Path) -> tuple[Path, Path]:
    return folder / "kept.texts", folder / "kept.lengths"


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
    """Ascending numbers of documents dropped as near duplicates; None if they were not searched for."""

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

    Memory: a million rows and 1/256 of all keys; with ``signatures`` also that of ``near_duplicates``.

    Args:
        least: minimum number of held-out documents.
        signatures: folder of the signatures of all parts, to drop near duplicates.
        evaluation_items: see ``FirstPass``.

    Raises:
        UserError: fewer than two documents are kept, or a file has too many bad lines.
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
                f"The filters dropped all {ledger.documents:,} documents.", "Choose another --preset or text."
            )
        raise UserError("The corpus is empty: no document holds any text.", "Give files with text in them.")
    splits = ledger.decide()
    if splits.train == 0:
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
