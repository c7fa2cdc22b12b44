"""The first reading: what each part of the text holds, what the steps leave out of it, and a sample for the tokenizer.

A part's findings are a folder that appears whole or not at all, so a preparation that was killed goes on where it was:

    SURVEY/00007/documents.bin  sample/  facts.json
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
"""Of each document: reason is 0 where it stays, else the place of its reason in ``Facts.reasons``, counted from 1."""
BUFFERED_ROWS = 1 << 12
EXAMPLES = 3
"""Of each reason, where examples are wanted."""
EXAMPLE_CHARACTERS = 400
SCRIPT_CHARACTERS = 2000
"""Of a document that are looked at for its script."""
PART_BITS = 40
"""A document is known by its part, above these bits, and its place in the part until all parts are counted."""


@dataclass(frozen=True, kw_only=True)
class FirstPassJob:
    """What is to be found out about every part."""

    corpus: Corpus
    filters: tuple[DocumentFilter, ...] = ()
    context: Context = field(default_factory=Context)
    evaluation: EvaluationTexts | None = None
    remove: bool = False
    """Leave out documents in which an evaluation text was met."""
    near: Path | None = None
    """Where the signatures of the documents that stay go, for ``near_duplicates``."""
    show_text: bool = False
    """Keep examples of what is left out."""
    keep: int = 0
    """Bytes of text that each part may keep for the second reading."""


@dataclass(frozen=True)
class Reason:
    """Why a document was left out, and by which step; evaluation text stands behind the last that evaluates."""

    step: int
    why: str


@dataclass(frozen=True)
class Example:
    step: int
    text: DroppedText


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was found in one part: facts.json."""

    sources: dict[str, int]
    """The inputs, as the user typed them, and how many documents each gave: first all of the first, and so on."""
    skips: Skips
    reasons: list[Reason]
    scripts: dict[str, int]
    """Letters by script, of the documents that stay."""
    languages: dict[str, int] = field(default_factory=dict)
    """Documents that stay by language, where a model tells it."""
    items: list[tuple[int, int]] = field(default_factory=list)
    """(evaluation text, item) that were met."""
    contaminated: dict[str, int] = field(default_factory=dict)
    """Documents in which each evaluation text was met, by its place."""
    examples: list[Example] = field(default_factory=list)


def first_pass_part(job: FirstPassJob, folder: Path, byte_counter: ByteCounter, number: int) -> int:
    """Read one part and leave ``folder/NUMBER``; return the number. What is there already is kept."""

    def fill(work: Path) -> None:
        write_json(work / "facts.json", _read(job, work, byte_counter, number))

    return fill_part(folder, number, fill)


def fill_part(folder: Path, number: int, fill: Callable[[Path], None]) -> int:
    """Have ``folder/NUMBER`` filled, whole or not at all; what is there already is kept. Return the number."""
    final = part_folder(folder, number)
    if not final.exists():
        work = final.with_name(f".{final.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        fill(work)
        settle(work, final)
    return number


def settle(work: Path, final: Path) -> None:
    """Give a part's finished folder its name; where an orphan of a killed preparation was faster, its work stays."""
    try:
        os.replace(work, final)
    except OSError:
        if not final.exists():
            raise
        shutil.rmtree(work)


TIDY_EVERY = 16
"""Parts, of whose samples the disk holds all the text until then."""


def keep_tidy(folder: Path, parts: Iterable[object]) -> None:
    """Go through ``parts`` as they are done; keep their samples in ``folder`` within what one sample may take."""
    for done, _ in enumerate(parts, 1):
        if done % TIDY_EVERY == 0:
            tidy(folder)


def tidy(folder: Path) -> None:
    """Keep the samples of the parts that are done within what one sample may take."""
    shrink([part / "sample" for part in sorted(folder.glob("[0-9]*"))])


def part_folder(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}"


def _read(job: FirstPassJob, work: Path, byte_counter: ByteCounter, number: int) -> Facts:
    reader = _Reader(job, work, byte_counter, number)
    staying = reader.staying()
    if job.near:
        write_signatures(staying, job.near, number)
    for _ in staying:  # all of them; or none, where their signatures were written
        pass
    return reader.facts()


class _Reader:
    """Goes through one part and keeps account."""

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
        """Read the part; yield (number, text) of the documents that stay."""
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
        """The first step that leaves ``text`` out, with its reason."""
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
    """Spaces and line breaks of a clean text."""
    if len(text) < LONG:
        return text.count(" ") + text.count("\n")
    codes = np.frombuffer(text.encode(), np.uint8)
    return int(np.count_nonzero(codes == ord(" "))) + int(np.count_nonzero(codes == ord("\n")))


class _Rows:
    """Writes rows of ROW; memory does not grow with their number."""

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
"""What the texts of all parts may take on disk until the data are made."""
LENGTH = np.dtype("<u8")


class KeptTexts:
    """Keeps the documents of one part in ``folder``, all or none: where they take more than ``limit`` bytes."""

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
    """The documents that were kept in ``folder``, in order; None where none were, and they must be read again."""
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
    """What the first reading found in the whole text."""

    folders: tuple[Path, ...]
    """Of the parts, in order."""
    facts: tuple[Facts, ...]
    offsets: tuple[int, ...]
    """The number of each part's first document, and the number of all."""
    splits: SplitAssignments
    sample: SampleTexts
    heldout_sample: SampleTexts
    characters: int
    """Of the documents that the steps kept, copies included."""
    skips: Skips
    """What could not be read."""
    evaluation_items: tuple[int, ...]
    """Of each evaluation text, the items that are long enough to be looked for."""
    near: np.ndarray | None
    """Ascending numbers of documents that are left out as near copies of others; None where none were looked for."""

    @property
    def letters(self) -> Counter[str]:
        """Letters by script, of the documents that the steps kept."""
        return sum((Counter(part.scripts) for part in self.facts), Counter())

    def documents(self, part: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows of one part (ROW) and what became of each document (uint8), a million at a time."""
        start = self.offsets[part]
        for rows in _read_rows(self.folders[part]):
            yield rows, np.asarray(self.splits.assignments[start : start + len(rows)])
            start += len(rows)


def near_copies(near: np.ndarray | None, first: int, count: int) -> np.ndarray:
    """bool[count]: which of the documents from number ``first`` on are near copies."""
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
    """Put the findings of all parts together and decide what becomes of each document.

    Holds a million rows at a time, and 1/256 of all keys; with ``signatures``, see ``near_duplicates`` too.

    Args:
        least: documents to hold out at least.
        signatures: where those of all parts lie, to leave out near copies.
        evaluation_items: see ``FirstPass``.

    Raises:
        UserError: no document stays, or a single one; a file has too many bad lines.
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
            raise UserError(f"The steps left out all {ledger.documents:,} documents.", "Choose another case or text.")
        raise UserError("The corpus is empty: no document holds any text.", "Give files with text in them.")
    splits = ledger.decide()
    if splits.train == 0:
        raise UserError(
            "The corpus is a single document, so that none can be held out to measure with.",
            "Give more text, or part it: --document line, --document blank-line or --chunk-characters 2000.",
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
