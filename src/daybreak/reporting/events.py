"""Events during training: resumes, steps without an update, and changes of settings.

A resume writes no line of its own. Lost work is charged to the budget, so each recorded line, kept or lost, has its own
elapsed time: the run was resumed where lost lines end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from daybreak.reporting.runs import Line, RunRecords
from daybreak.schemas.run import StepRecord


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event, with the tokens read and the seconds elapsed when it happened."""

    kind: str
    """resumed, dropped or changed."""
    words: str
    step: int
    elapsed: float
    tokens: int
    lost: float | None = None
    """Seconds of lost work, from the last line kept to the last line lost."""


def events(run: RunRecords) -> list[Event]:
    """All events that the run's files show, in order of time."""
    found = [*_resumed(run), *_dropped(run), *_changed(run)]
    return sorted(found, key=lambda event: (event.elapsed, event.step))


def dropped_words(number: int) -> str:
    return "1 step skipped" if number == 1 else f"{number:,} steps skipped"


def _changed(run: RunRecords) -> Iterator[Event]:
    for change in run.changes:
        elapsed, tokens = time_of_step(run, change.step)
        words = change.why[:1].upper() + change.why[1:]
        yield Event(kind="changed", words=words, step=change.step, elapsed=elapsed, tokens=tokens)


def time_of_step(run: RunRecords, step: int) -> tuple[float, int]:
    """(elapsed, tokens) of the first line after ``step`` began, or of the newest line."""
    after = bisect_right([record.step for record in run.steps], step)
    if after < len(run.steps):
        return run.steps[after].elapsed, run.steps[after].tokens
    return max([run.elapsed, *(record.elapsed for record in run.lost)]), run.tokens


def _dropped(run: RunRecords) -> Iterator[Event]:
    before = 0
    for record in run.steps:
        if record.dropped > before:
            words = f"{dropped_words(record.dropped - before)} (non-finite or exploding values), without an update"
            yield Event(kind="dropped", words=words, step=record.step, elapsed=record.elapsed, tokens=record.tokens)
        before = record.dropped


def _resumed(run: RunRecords) -> Iterator[Event]:
    """One event for each run of consecutive lost lines."""
    lost = {id(record) for record in run.lost}
    kept: StepRecord | None = None
    start, undone = 0.0, list[Line]()
    lines: list[Line] = sorted([*run.steps, *run.lost], key=lambda record: record.elapsed)
    for record in lines:
        if undone and (id(record) not in lost or _repeated(record, undone)):
            yield _resume(run, kept, start, undone, record.elapsed)
            start, undone = undone[-1].elapsed, []
        if id(record) in lost:
            undone.append(record)
        elif isinstance(record, StepRecord):
            kept, start = record, record.elapsed
    if undone:
        yield _resume(run, kept, start, undone, undone[-1].elapsed)


def _repeated(record: Line, undone: list[Line]) -> bool:
    """Whether a lost line belongs to a later attempt than the lost lines before it: its step was done already."""
    done = max((line.step for line in undone if isinstance(line, StepRecord)), default=-1)
    return isinstance(record, StepRecord) and record.step <= done


def _resume(run: RunRecords, kept: StepRecord | None, start: float, undone: list[Line], elapsed: float) -> Event:
    """The return to a checkpoint. If a change skips sequences there, the run returned because it diverged."""
    step = kept.step if kept else 0
    first = min(line.step for line in undone)
    by_guard = any(change.skip_to is not None and step <= change.step < first for change in run.changes)
    return Event(
        kind="changed" if by_guard else "resumed",
        words="Returned to an earlier checkpoint" if by_guard else "Resumed from a checkpoint",
        step=step,
        elapsed=elapsed,
        tokens=kept.tokens if kept else 0,
        lost=undone[-1].elapsed - start,
    )
