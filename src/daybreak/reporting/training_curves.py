"""What happened on the way, a row an event."""

from __future__ import annotations

from collections.abc import Sequence

from daybreak.core.terminal import duration
from daybreak.reporting.events import Event, events
from daybreak.reporting.markup import Markup, fold, join, note, section, table, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.sections import NOTHING, UNKNOWN, run_name

EVENTS_SHOWN = 25


def course(runs: Sequence[RunRecords]) -> Markup:
    """Resumes, dropped steps and changes of course; nothing where every run went straight to its end."""
    blocks: list[Markup] = []
    for number, run in enumerate(runs):
        found, notes = events(run), _notes(run)
        if not found and not notes:
            continue
        name = [tag("h3", run_name(runs, number))] if len(runs) > 1 else []
        shown, more = found[:EVENTS_SHOWN], found[EVENTS_SHOWN:]
        blocks += [*name, *([_table(shown)] if shown else [])]
        blocks += [fold(f"{len(more)} more", _table(more))] if more else []
        blocks += [note(" ".join(notes), "quiet")] if notes else []
    if not blocks:
        return NOTHING
    caption = (
        "In order of time; the step and the time charged by then, as near as the recorded lines tell. A dropped step "
        "is a step of the run that left the weights as they were. Lost work was charged to the budget."
    )
    return section("What happened on the way", join(*blocks), caption=caption)


def _table(found: Sequence[Event]) -> Markup:
    rows = [
        [
            event.words,
            f"{event.step:,}",
            duration(event.elapsed),
            UNKNOWN if event.lost is None else f"{event.lost:.1f} s",
        ]
        for event in found
    ]
    return table(("What", "Step", "Elapsed", "Work lost"), rows)


def _notes(run: RunRecords) -> list[str]:
    """What the events do not tell: resumes that lost no line, how long nothing ran, lines put aside."""
    found = []
    summary = run.summary
    silent = (summary.resumes if summary else 0) - sum(event.kind == "resumed" for event in events(run))
    if silent > 0:
        times = "once" if silent == 1 else f"{silent:,} times"
        found.append(f"Resumed {times} more, without a lost line to tell where.")
    if summary and (lost := summary.time_by_category.get("lost", 0.0)):
        found.append(f"In all {lost:.1f} s of work was lost.")
    if summary and summary.resumes:
        found.append(f"Between stop and resume {duration(max(0.0, summary.wall - summary.elapsed))} passed.")
    if run.lost:
        lines = "1 metric line" if len(run.lost) == 1 else f"{len(run.lost):,} metric lines"
        found.append(f"{lines} of lost work in metrics.lost.jsonl.")
    return found
