"""Journal: the records of a run (trace and metrics), and how a resume cuts them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from daybreak.core.errors import UserError
from daybreak.core.files import damaged, parse_json, read_json_lines, write_json, write_text
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict, to_dict
from daybreak.schemas.run import Decisions, MachineRecord, StepRecord, TraceRecord, ValidationRecord


class Journal:
    """Appends whole lines to trace.jsonl and metrics.jsonl, so that a kill loses no earlier line."""

    def __init__(self, run: RunFolder):
        self._run = run
        self._open()

    def _open(self) -> None:
        with disk_errors_for_users(self._run):
            self._trace = self._run.trace.open("a", buffering=1, encoding="utf-8")
            self._metrics = self._run.metrics.open("a", buffering=1, encoding="utf-8")

    def trace(self, record: TraceRecord) -> None:
        # One write per step; six digits of elapsed are microseconds, progress keeps all its bits for the replay.
        line = f'{{"step": {record.step}, "elapsed": {record.elapsed:.6f}, "progress": {record.progress!r}}}\n'
        self._append(self._trace, line)

    def on_step(self, record: StepRecord) -> None:
        self._append(self._metrics, json.dumps({"type": "step", **to_dict(record)}) + "\n")

    def on_validation(self, record: ValidationRecord) -> None:
        self._append(self._metrics, json.dumps({"type": "validation", **to_dict(record)}) + "\n")

    def on_machine(self, record: MachineRecord) -> None:
        self._append(self._metrics, json.dumps({"type": "machine", **to_dict(record)}) + "\n")

    def roll_back(self, step: int) -> None:
        """Cut the records to those before ``step``, as a resume does."""
        self.close()
        cut_back(self._run, step)
        self._open()

    def write_decisions(self, decisions: Decisions) -> None:
        """Write the decisions made during the run for resumes and replays."""
        write_json(self._run.decisions, decisions)

    def _append(self, file: TextIO, line: str) -> None:
        with disk_errors_for_users(self._run):
            file.write(line)

    def sync(self) -> None:
        """Flush the records to the disk: a checkpoint must not be newer than the records that lead to it."""
        with disk_errors_for_users(self._run):
            for file in (self._trace, self._metrics):
                file.flush()
                os.fsync(file.fileno())

    def close(self) -> None:
        for file in (self._trace, self._metrics):
            with contextlib.suppress(OSError):  # a full disk was already reported by the write
                file.close()


@contextlib.contextmanager
def disk_errors_for_users(run: RunFolder) -> Iterator[None]:
    """Raise a UserError if the records cannot be written to disk."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"The run's records cannot be written in '{run.path}' ({error}).",
            "Free disk space or correct the permissions; the same command continues from the last checkpoint.",
        ) from None


def cut_back(run: RunFolder, step: int) -> int:
    """Cut trace and metrics to the checkpoint at ``step``; lost metric lines move to metrics.lost.jsonl.

    They are on disk there before they leave metrics.jsonl: a kill in between repeats lines and loses none. Return the
    number of lost steps.
    """
    kept, lost = _partition(run.metrics, lambda line: line.get("step", 0) <= step)
    if lost:
        with disk_errors_for_users(run):
            _append_durably(run.lost_metrics, lost)
    write_text(run.metrics, kept)  # in any case: an incomplete line must not be continued
    return _cut_trace(run, step)


def _cut_trace(run: RunFolder, step: int) -> int:
    """Cut the lines of ``step`` and later steps, and an incomplete last one; return the number of these steps.

    Only these lines are parsed, from the end on: a trace may have millions of lines.
    """
    data = run.trace.read_bytes() if run.trace.exists() else b""
    end, lost = data.rfind(b"\n") + 1, 0
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        try:
            line = parse_json(data[start:end])
        except ValueError as error:
            raise damaged(run.trace, data.count(b"\n", 0, end), error) from None
        if from_dict(TraceRecord, line).step < step:
            break
        end, lost = start, lost + 1
    if end < len(data):
        with disk_errors_for_users(run), run.trace.open("r+b") as file:
            file.truncate(end)
            os.fsync(file.fileno())
    return lost


def _partition(path: Path, keep: Callable[[dict[str, Any]], bool]) -> tuple[str, str]:
    """The lines of ``path`` for which ``keep`` is true, and the others; damaged lines are in neither."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    for line in read_json_lines(path, skip_damaged=True):
        parts[keep(line)].append(json.dumps(line) + "\n")
    return "".join(parts[True]), "".join(parts[False])


def _append_durably(path: Path, lines: str) -> None:
    """Append whole lines; an incomplete line of an earlier kill is removed, because its source is still complete."""
    with path.open("ab+") as file:
        file.seek(0)
        whole = file.read().rpartition(b"\n")
        file.truncate(len(whole[0]) + len(whole[1]))
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())
