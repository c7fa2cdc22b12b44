"""How one file is read: which phase of it, and what is left out, counted so that parts add up to the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from daybreak.core.errors import UserError
from daybreak.data.readers.inputs import InputFile, Meter, read_positions

FEW_BAD, BAD_SHARE = 10, 0.01
"""A file is refused when it has more bad lines than the first number and a larger share than the second."""


@dataclass(frozen=True)
class Place:
    """Where something was met."""

    where: str
    """With a number the name of the file; without one, a place as it is told to people."""
    unit: str = ""
    """line, row, record or page."""
    number: int = 0
    """From 1, counted in the part that was read; 0 for none."""

    def __str__(self) -> str:
        return f"'{self.where}' {self.unit} {self.number}" if self.number else self.where


@dataclass
class BadLines:
    """The lines (or rows) of a file or of a part of it, and those that are bad: left out and counted while few."""

    name: str
    kind: str
    """malformed or undecodable."""
    remedy: str
    unit: str = "line"
    lines: int = 0
    bad: int = 0
    first: int = 0
    """Number of the first bad line, from 1; 0 where there is none."""
    problem: str = ""
    """What is wrong with it."""

    def add(self, number: int, problem: str = "", lines: int = 1) -> None:
        if not self.bad:
            self.first, self.problem = number, problem
        self.bad += lines

    def merge(self, later: BadLines) -> BadLines:
        """This part and the one that follows it, as one."""
        first, problem = (self.first, self.problem) if self.bad else (self.lines + later.first, later.problem)
        bad = self.bad + later.bad
        return replace(
            self, lines=self.lines + later.lines, bad=bad, first=first if bad else 0, problem=problem if bad else ""
        )

    def evaluate(self) -> None:
        """
        Raises:
            UserError: there are too many bad lines, for all that the whole file has.
        """
        if self.bad == self.lines > 0 or (self.bad > FEW_BAD and self.bad > BAD_SHARE * self.lines):
            raise UserError(
                f"'{self.name}' has {self.bad} {self.kind} {self.unit}s of {self.lines}, the first in "
                f"{self.unit} {self.first}{self.problem and ': ' + self.problem}.",
                self.remedy,
            )


@dataclass
class Skips:
    """Counts what was left out, by reason, and remembers where each reason was first met.

    Plain data: it can be sent to another process, and goes to JSON and back. The files that were read in parts wait in
    ``parts`` until all of them are there; then ``evaluate`` says whether they had too many bad lines.
    """

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    parts: dict[str, BadLines] = field(default_factory=dict)
    """By the name of the file."""

    @property
    def first(self) -> dict[str, str]:
        """Where each reason was first met, in words."""
        return {reason: str(place) for reason, place in self.places.items()}

    def add(self, reason: str, where: str, unit: str = "", number: int = 0, count: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count
        if reason not in self.places:
            self.places[reason] = Place(where, unit, number)

    def merge(self, later: Skips) -> None:
        """Add what was left out of a part that follows the parts added so far."""
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
        """Call when all parts are merged.

        Raises:
            UserError: a file that was read in parts has too many bad lines.
        """
        for bad in self.parts.values():
            bad.evaluate()


@dataclass(frozen=True)
class Reading:
    """One file, or the phase of it in which a line must begin to be read, and where is counted."""

    file: InputFile
    skips: Skips
    meter: Meter
    start: int = 0
    """Bytes; of a .parquet file row groups."""
    stop: int | None = None
    """Likewise; None for the end of the file."""

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop is None

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines from ``start`` on, beyond ``stop`` too, each with the byte at which it begins."""
        return read_positions(self.file, self.meter, self.start, self.stop)

    def outside(self, position: int) -> bool:
        """Whether a line that begins there belongs to a later part."""
        return self.stop is not None and position >= self.stop

    def place(self, number: int) -> str:
        """Line ``number`` of this phase, for an error that cannot wait until the parts before it are counted."""
        return f"line {number}" + (f" after byte {self.start:,}" if self.start else "")

    def bad_line(self, bad: BadLines, number: int, problem: str = "", lines: int = 1) -> None:
        bad.add(number, problem, lines)
        self.skips.add(f"{bad.kind} {bad.unit}s", bad.name, bad.unit, number, lines)

    def settle(self, bad: BadLines) -> None:
        """Judge the lines of a whole file; keep those of a part until the others are there.

        Raises:
            UserError: the file has too many bad lines.
        """
        if self.whole:
            bad.evaluate()
        else:
            self.skips.parts[bad.name] = bad
