"""What the first reading found in all parts together, and what becomes of each document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.data.filters.deduplication import HELDOUT, TRAIN, Ledger, Verdict
from daybreak.data.filters.near_duplicates import near_duplicates
from daybreak.data.pipeline.first_pass import PART_BITS, ROW, Facts, part_folder
from daybreak.data.pipeline.sample import SampleTexts, shrink
from daybreak.data.readers.documents import Skips


@dataclass(frozen=True)
class Survey:
    """What the first reading found in the whole text."""

    folders: tuple[Path, ...]
    """Of the parts, in order."""
    facts: tuple[Facts, ...]
    offsets: tuple[int, ...]
    """The number of each part's first document, and the number of all."""
    verdict: Verdict
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
            yield rows, np.asarray(self.verdict.assignments[start : start + len(rows)])
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
) -> Survey:
    """Put the findings of all parts together and decide what becomes of each document.

    Holds a million rows at a time, and 1/256 of all keys; with ``signatures``, see ``near_duplicates`` too.

    Args:
        least: documents to hold out at least.
        signatures: where those of all parts lie, to leave out near copies.
        evaluation_items: see ``Survey``.

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
    verdict = ledger.decide()
    if verdict.train == 0:
        raise UserError(
            "The corpus is a single document, so that none can be held out to measure with.",
            "Give more text, or part it: --document line, --document blank-line or --chunk-characters 2000.",
        )
    spools, starts = [one / "sample" for one in folders], offsets[:-1].tolist()
    return Survey(
        folders=folders,
        facts=facts,
        offsets=tuple(offsets.tolist()),
        verdict=verdict,
        sample=SampleTexts(spools, starts, verdict, TRAIN),
        heldout_sample=SampleTexts(spools, starts, verdict, HELDOUT),
        characters=ledger.characters,
        skips=skips,
        evaluation_items=tuple(evaluation_items),
        near=near,
    )
