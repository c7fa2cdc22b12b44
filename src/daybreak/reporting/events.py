"""What happened to a run on its way: resumes, steps without an update, changes of course.

A resume leaves no line of its own. But lost work is charged, so every line that was ever written, of the run or lost,
has its own place in elapsed time: where lost lines end, something went back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from daybreak.reporting.runs import Line, RunRecords
from daybreak.schemas.run import StepRecord


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened. ``tokens`` are those read by then, so that it has a place on either axis."""

    kind: str
    """resumed, dropped or changed."""
    words: str
    step: int
    elapsed: float
    tokens: int
    lost: float | None = None
    """Seconds of work that was undone, from the last line kept to the last one lost."""


def events(run: RunRecords) -> list[Event]:
    """All that the files tell, in order of time."""
    found = [*_resumed(run), *_dropped(run), *_changed(run)]
    return sorted(found, key=lambda event: (event.elapsed, event.step))


def dropped_words(number: int) -> str:
    return "1 step dropped" if number == 1 else f"{number:,} steps dropped"


def _changed(run: RunRecords) -> Iterator[Event]:
    for change in run.changes:
        elapsed, tokens = place(run, change.step)
        words = change.why[:1].upper() + change.why[1:]
        yield Event(kind="changed", words=words, step=change.step, elapsed=elapsed, tokens=tokens)


def place(run: RunRecords, step: int) -> tuple[float, int]:
    """(elapsed, tokens) of the first line after ``step`` began, or of the end so far."""
    after = bisect_right([record.step for record in run.steps], step)
    if after < len(run.steps):
        return run.steps[after].elapsed, run.steps[after].tokens
    return max([run.elapsed, *(record.elapsed for record in run.lost)]), run.tokens


def _dropped(run: RunRecords) -> Iterator[Event]:
    """Where the count rises between two lines."""
    before = 0
    for record in run.steps:
        if record.dropped > before:
            words = f"{dropped_words(record.dropped - before)}: something was not finite or exploded, so no update"
            yield Event(kind="dropped", words=words, step=record.step, elapsed=record.elapsed, tokens=record.tokens)
        before = record.dropped


def _resumed(run: RunRecords) -> Iterator[Event]:
    """One event for each phase of lost lines."""
    lost = {id(record) for record in run.lost}
    kept: StepRecord | None = None
    begun, phase = 0.0, list[Line]()
    lines: list[Line] = sorted([*run.steps, *run.lost], key=lambda record: record.elapsed)
    for record in lines:
        if phase and (id(record) not in lost or _again(record, phase)):
            yield _back(run, kept, begun, phase, record.elapsed)
            begun, phase = phase[-1].elapsed, []
        if id(record) in lost:
            phase.append(record)
        elif isinstance(record, StepRecord):
            kept, begun = record, record.elapsed
    if phase:
        yield _back(run, kept, begun, phase, phase[-1].elapsed)


def _again(record: Line, phase: list[Line]) -> bool:
    """Whether a lost line belongs to a later attempt than the lost lines before it: its steps were done already."""
    done = max((line.step for line in phase if isinstance(line, StepRecord)), default=-1)
    return isinstance(record, StepRecord) and record.step <= done


def _back(run: RunRecords, kept: StepRecord | None, begun: float, phase: list[Line], elapsed: float) -> Event:
    """A phase was undone; where a change passes over rows, the run itself went back and no process had ended."""
    step = kept.step if kept else 0
    first = min(line.step for line in phase)
    guard = any(change.skip_to is not None and step <= change.step < first for change in run.changes)
    return Event(
        kind="changed" if guard else "resumed",
        words="Back to an earlier checkpoint" if guard else "Resumed from a checkpoint",
        step=step,
        elapsed=elapsed,
        tokens=kept.tokens if kept else 0,
        lost=max(0.0, phase[-1].elapsed - begun),
    )
