"""Verb: how a run is doing, asked from another shell while it goes on, or after it."""

from __future__ import annotations

import time
from pathlib import Path

from daybreak.core.formatting import count, percent, significant
from daybreak.core.locks import is_held
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import duration
from daybreak.reporting.events import dropped_words
from daybreak.reporting.machine import machine_words
from daybreak.reporting.runs import SILENCE, RunRecords, first_trace, last_trace, read_run
from daybreak.schemas.run import TraceRecord

CHANGES_SHOWN = 3


def status(run: Path) -> str:
    """Return a few lines of text about a run: state, budget, stage, rates, losses.

    Raises:
        UserError: ``run`` is no run folder, or one of its files is damaged.
    """
    folder = RunFolder(run)
    if not folder.recipe.is_file() and _begins(folder):
        return f"run      {run}\nstate    {_BEGINNING}"
    found = read_run(run)
    trace = last_trace(folder.trace)
    lines = [
        ("run", f"{run}: recipe {found.name}, seed {found.recipe.get('seed', 'unknown')}"),
        ("state", _state(found, folder)),
        ("budget", _budget(found, first_trace(folder.trace), trace)),
        ("training", _training(found, trace)),
        ("held out", _heldout(found)),
        ("course", _course(found)),
        ("machine", machine_words(found.machine[-1]) if found.machine else ""),
        ("watchdog", _stacks(folder)),
        ("export", _export(found)),
        ("files", " ".join(found.faults)),
    ]
    return "\n".join(f"{name:<9}{words}" for name, words in lines if words)


_BEGINNING = "starting: text is being prepared or steps are being timed; nothing is trained yet"


def _begins(folder: RunFolder) -> bool:
    """Whether a run begins in the folder, which has no recipe yet."""
    return folder.path.is_dir() and not folder.strange() and (is_held(folder.path) or any(folder.path.iterdir()))


def _state(found: RunRecords, folder: RunFolder) -> str:
    """Ended, running, stopped or silent."""
    if found.summary is not None:
        ago = duration(time.time() - folder.summary.stat().st_mtime)
        resumes = found.summary.resumes
        times = f", after {resumes} resume{'s' if resumes > 1 else ''}" if resumes else ""
        return f"ended {ago} ago{times}"
    started = "running" if folder.trace.exists() else "starting"
    if found.stopped:
        ago = duration(found.silent)
        return f"stopped, last heartbeat {ago} ago: no process here holds the run; the same command resumes it"
    if found.silent <= SILENCE:
        return f"{started}, last heartbeat {duration(found.silent)} ago"
    if is_held(folder.path):
        return f"silent for {duration(found.silent)}, though its process is there: stuck, or busy with one thing"
    return f"silent for {duration(found.silent)}: stopped, killed or stuck; the same command resumes it"


def _budget(found: RunRecords, first: TraceRecord | None, trace: TraceRecord | None) -> str:
    if found.summary is not None:
        return f"{found.summary.budget} asked, {significant(found.summary.elapsed)} s charged"
    asked = found.recipe.get("budget", "unknown")
    if first is None or trace is None or trace.progress <= first.progress:
        return f"{asked} asked, nothing trained yet"
    # Progress begins with the first step; in runs of earlier versions it began with the process.
    left = (trace.elapsed - first.elapsed) * (1 - trace.progress) / (trace.progress - first.progress)
    of_training = " of training" if found.stopped else ""
    used = f"{duration(trace.elapsed)} used ({trace.progress:.0%})"
    return f"{asked} asked, {used}, about {duration(left)}{of_training} left"


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


def _course(found: RunRecords) -> str:
    """What went otherwise than planned: steps without an update, and the last decisions in mid-course."""
    told = [f"at step {change.step:,} {change.why}" for change in found.changes]
    earlier = len(told) - CHANGES_SHOWN
    dropped = [dropped_words(found.dropped)] if found.dropped else []
    before = [f"{earlier} change{'s' if earlier > 1 else ''} before"] if earlier > 0 else []
    return "; ".join([*dropped, *before, *told[-CHANGES_SHOWN:]])


def _stacks(folder: RunFolder) -> str:
    written = sorted(file for file in folder.stacks.glob("*.txt") if file.stat().st_size)
    if not written:
        return ""
    ago = duration(time.time() - max(file.stat().st_mtime for file in written))
    return f"wrote where each process stands, {ago} ago: {', '.join(str(file) for file in written[:8])}"


def _export(found: RunRecords) -> str:
    if found.summary is None or found.summary.parity is None:
        return ""
    parity = found.summary.parity
    model = RunFolder(found.path).model
    return f"{model}, parity passed" if parity.passed else f"refused: {parity.failure or 'the parity gate failed'}"
