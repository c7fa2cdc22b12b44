"""Command ``status``: show the progress of a run, from another shell while it trains or after its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from daybreak.commands.options import parse
from daybreak.core.files import is_empty
from daybreak.core.formatting import count, percent, significant
from daybreak.core.locks import is_held
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import duration, hanging
from daybreak.reporting.events import dropped_words
from daybreak.reporting.machine import machine_words
from daybreak.reporting.runs import SILENCE, RunRecords, first_trace, last_trace, read_run
from daybreak.schemas.run import TraceRecord

CHANGES_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""


def main(arguments: Sequence[str]) -> None:
    options = parse(StatusOptions, "status", arguments)
    print(status(options.run))


def status(run: Path | str) -> str:
    """Return a few lines of text about a run: state, budget, stage, rates, losses."""
    run = Path(run)
    folder = RunFolder(run)
    if not folder.recipe.is_file() and _has_begun(folder):
        state = "not started, and no process is at work here; the same command starts it again"
        if _is_at_work(folder):
            state = "starting: preparing text or measuring step times; no training step yet"
        return f"run      {run}\nstate    {state}"
    found = read_run(run)
    trace = last_trace(folder.trace)
    lines = [
        ("run", f"{run}: recipe {found.name}, seed {found.recipe.get('seed', 'unknown')}"),
        ("state", _state(found, folder)),
        ("budget", _budget(found, first_trace(folder.trace), trace)),
        ("training", _training(found, trace)),
        ("held out", _heldout(found)),
        ("changes", _changes(found)),
        ("machine", machine_words(found.machine[-1]) if found.machine else ""),
        ("watchdog", _stacks(folder)),
        ("export", _export(found)),
        ("files", " ".join(found.faults)),
    ]
    return "\n".join(hanging(f"{name:<9}", words) for name, words in lines if words)


def _has_begun(folder: RunFolder) -> bool:
    """Return whether the start of a run has left files in the folder, or holds it; it has no recipe.json yet."""
    return folder.path.is_dir() and not folder.strange() and (is_held(folder.path) or not is_empty(folder.path))


def _is_at_work(folder: RunFolder) -> bool:
    """Return whether a process holds the folder or a preparation in it, or has written there in the last seconds."""
    if any(map(is_held, (folder.path, *folder.path.glob(".*/lock")))):
        return True
    changed = 0.0
    for path in folder.path.rglob("*"):
        with suppress(OSError):  # a process has deleted it
            changed = max(changed, path.stat().st_mtime)
    return time.time() - changed <= SILENCE


def _state(found: RunRecords, folder: RunFolder) -> str:
    """Describe whether the run has ended, is running, was stopped or is silent."""
    if found.summary is not None:
        ago = duration(time.time() - folder.summary.stat().st_mtime)
        resumes = found.summary.resumes
        times = f", after {resumes} resume{'s' if resumes > 1 else ''}" if resumes else ""
        return f"ended {ago} ago{times}"
    started = "running" if folder.trace.exists() else "starting"
    if found.stopped:
        ago = duration(found.silent)
        return f"stopped, last heartbeat {ago} ago: no process holds the run folder; the same command resumes it"
    if found.silent <= SILENCE:
        return f"{started}, last heartbeat {duration(found.silent)} ago"
    if is_held(folder.path):
        return f"silent for {duration(found.silent)}, but its process is alive: stuck, or in a long operation"
    return f"silent for {duration(found.silent)}: stopped, killed or stuck; the same command resumes it"


def _budget(found: RunRecords, first: TraceRecord | None, trace: TraceRecord | None) -> str:
    if found.summary is not None:
        return f"{found.summary.budget}, {significant(found.summary.elapsed)} s used"
    budget = found.recipe.get("budget", "unknown")
    if first is None or trace is None or trace.progress <= first.progress:
        return f"{budget}, no training step yet"
    # Progress starts at the first step; in earlier versions it started with the process.
    left = (trace.elapsed - first.elapsed) * (1 - trace.progress) / (trace.progress - first.progress)
    of_training = " of training" if found.stopped else ""
    used = f"{duration(trace.elapsed)} used ({trace.progress:.0%})"
    return f"{budget}, {used}, about {duration(left)}{of_training} left"


def _training(found: RunRecords, trace: TraceRecord | None) -> str:
    if not found.steps:
        return ""
    last = found.steps[-1]
    step = max(last.step, trace.step if trace else 0)
    rate = found.summary.tokens_per_second if found.summary else last.tokens_per_second
    loss = "next-token" if last.stage == "causal" else "masked"
    return (
        f"{last.stage} stage, step {step:,}, {count(found.tokens)} tokens, {count(rate)} tokens/s; "
        f"{loss} loss {last.loss:.3f} nats, learning rate {significant(last.learning_rate)}"
    )


def _heldout(found: RunRecords) -> str:
    last = found.validation
    if last is None:
        return "not validated yet"
    gap = last.loss - last.unigram_loss
    side = "above" if gap > 0 else "below"
    return (
        f"loss {last.loss:.3f} nats at step {last.step:,}, {abs(gap):.3f} {side} the unigram baseline; "
        f"accuracy {percent(last.accuracy)}, most frequent token {percent(last.most_frequent_fraction)}"
    )


def _changes(found: RunRecords) -> str:
    """Describe deviations from the plan: skipped steps, and the latest changes of settings during the run."""
    changes = [f"at step {change.step:,} {change.why}" for change in found.changes]
    earlier = len(changes) - CHANGES_SHOWN
    dropped = [dropped_words(found.dropped)] if found.dropped else []
    before = [f"{earlier} earlier change{'s' if earlier > 1 else ''}"] if earlier > 0 else []
    return "; ".join([*dropped, *before, *changes[-CHANGES_SHOWN:]])


def _stacks(folder: RunFolder) -> str:
    written = sorted(file for file in folder.stacks.glob("*.txt") if file.stat().st_size)
    if not written:
        return ""
    ago = duration(time.time() - max(file.stat().st_mtime for file in written))
    return f"wrote stack traces {ago} ago: {', '.join(str(file) for file in written[:8])}"


def _export(found: RunRecords) -> str:
    if found.summary is None or found.summary.parity is None:
        return ""
    parity = found.summary.parity
    model = RunFolder(found.path).model
    if not parity.passed:
        return f"refused: {parity.failure or 'the parity check failed'}"
    return f"{model}, parity passed" if model.is_dir() else "parity passed; the model is not in this folder"
