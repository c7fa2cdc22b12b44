"""A file or a byte range of it, with counts of what is skipped that merge to the counts of the whole file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from daybreak.core.errors import UserError
from daybreak.data.readers.inputs import ByteCounter, InputFile, read_positions

FEW_BAD, BAD_FRACTION = 10, 0.01
"""A file is refused if it has more bad lines than the first number and a larger fraction than the second."""


@dataclass(frozen=True)
class Location:
    """A position in the input, for messages."""

    where: str
    """The file name if ``number`` is set, otherwise a description of the position."""
    unit: str = ""
    """line, row, record or page."""
    number: int = 0
    """1-based, relative to the part that was read; 0 for none."""

    def __str__(self) -> str:
        return f"'{self.where}' {self.unit} {self.number}" if self.number else self.where


@dataclass
class BadLines:
    """Counts the lines (or rows) of a file or part and the bad ones, which are skipped as long as they are few."""

    name: str
    kind: str
    """malformed or undecodable."""
    remedy: str
    unit: str = "line"
    lines: int = 0
    bad: int = 0
    first: int = 0
    """1-based number of the first bad line; 0 for none."""
    problem: str = ""
    """What is wrong with the first bad line."""

    def merge(self, later: BadLines) -> BadLines:
        """Return the counts of this part and the following one together."""
        first, problem = (self.first, self.problem) if self.bad else (self.lines + later.first, later.problem)
        bad = self.bad + later.bad
        return replace(
            self, lines=self.lines + later.lines, bad=bad, first=first if bad else 0, problem=problem if bad else ""
        )

    def evaluate(self) -> None:
        """
        Raises:
            UserError: the whole file has too many bad lines.
        """
        if self.bad == self.lines > 0 or (self.bad > FEW_BAD and self.bad > BAD_FRACTION * self.lines):
            raise UserError(
                f"'{self.name}' has {self.bad} {self.kind} {self.unit}s of {self.lines}, the first in "
                f"{self.unit} {self.first}{self.problem and ': ' + self.problem}.",
                self.remedy,
            )


@dataclass
class Skips:
    """Counts skipped items by reason and records the first position of each reason.

    Plain data, so it can be pickled and stored as JSON. For files that are read in parts, ``parts`` collects the
    counts, and ``evaluate`` checks them when all parts are merged.
    """

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, Location] = field(default_factory=dict)
    parts: dict[str, BadLines] = field(default_factory=dict)
    """By file name."""

    @property
    def first(self) -> dict[str, str]:
        """The first position of each reason, as text."""
        return {reason: str(place) for reason, place in self.places.items()}

    def add(self, reason: str, where: str, unit: str = "", number: int = 0, count: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count
        if reason not in self.places:
            self.places[reason] = Location(where, unit, number)

    def merge(self, later: Skips) -> None:
        """Add the counts of the part that follows the parts added so far."""
        for reason, count in later.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
        for reason, place in later.places.items():
            before = self.parts.get(place.where)
            if before is not None and place.number:
                place = replace(place, number=before.lines + place.number)
            self.places.setdefault(reason, place)
        for name, part in later.parts.items():
            self.parts[name] = self.parts[name].merge(part) if name in self.parts else part

    def evaluate(self) -> None:
        """Check the files that were read in parts; call once all parts are merged."""
        for bad in self.parts.values():
            bad.evaluate()


@dataclass(frozen=True)
class FileRange:
    """One file, or the range in which a line must begin to be read, with the counters to update."""

    file: InputFile
    skips: Skips
    byte_counter: ByteCounter
    start: int = 0
    """Byte offset; for a .parquet file, a row group."""
    stop: int | None = None
    """In the same unit; None for the end of the file."""

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop is None

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (byte offset, line) from ``start`` on, also beyond ``stop``."""
        return read_positions(self.file, self.byte_counter, self.start, self.stop)

    def outside(self, position: int) -> bool:
        """Return whether a line at this offset belongs to a later part."""
        return self.stop is not None and position >= self.stop

    def place(self, number: int) -> str:
        """Describe line ``number`` of this range, for an error raised before the earlier parts are counted."""
        return f"line {number}" + (f" after byte {self.start:,}" if self.start else "")

    def bad_line(self, bad: BadLines, number: int, problem: str = "", lines: int = 1) -> None:
        if not bad.bad:
            bad.first, bad.problem = number, problem
        bad.bad += lines
        self.skips.add(f"{bad.kind} {bad.unit}s", bad.name, bad.unit, number, lines)

    def settle(self, bad: BadLines) -> None:
        """Check the bad lines of a whole file; store those of a part until all parts are merged."""
        if self.whole:
            bad.evaluate()
        else:
            self.skips.parts[bad.name] = bad
