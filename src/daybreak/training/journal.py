"""What a run writes as it goes: the trace of its clock, its metrics, and what a resume cuts away."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, TextIO

from daybreak.base.errors import UserError
from daybreak.base.files import read_json_lines, write_text
from daybreak.base.plain import to_plain
from daybreak.base.records import StepRecord, TraceRecord, ValidationRecord
from daybreak.base.run_folder import RunFolder


class Journal:
    """Appends to trace.jsonl and metrics.jsonl, a whole line at a time, so that a kill loses no earlier line."""

    def __init__(self, run: RunFolder):
        self._folder = run.path
        self._trace = run.trace.open("a", buffering=1, encoding="utf-8")
        self._metrics = run.metrics.open("a", buffering=1, encoding="utf-8")

    def trace(self, record: TraceRecord) -> None:
        # One write a step; six digits of elapsed are microseconds, progress keeps all its bits for the replay.
        line = f'{{"step": {record.step}, "elapsed": {record.elapsed:.6f}, "progress": {record.progress!r}}}\n'
        self._append(self._trace, line)

    def on_step(self, record: StepRecord) -> None:
        self._append(self._metrics, json.dumps({"type": "step", **to_plain(record)}) + "\n")

    def on_validation(self, record: ValidationRecord) -> None:
        self._append(self._metrics, json.dumps({"type": "validation", **to_plain(record)}) + "\n")

    def _append(self, file: TextIO, line: str) -> None:
        try:
            file.write(line)
        except OSError as error:
            raise UserError(
                f"The run's records cannot be written in '{self._folder}' ({error}).",
                "Free disk space or mend the permissions; the same command goes on from the last checkpoint.",
            ) from None

    def close(self) -> None:
        for file in (self._trace, self._metrics):
            with contextlib.suppress(OSError):  # what a full disk did not take was complained of when it was written
                file.close()


def cut_back(run: RunFolder, step: int) -> int:
    """Cut trace and metrics to what the checkpoint at ``step`` knows; lost metric lines go to metrics.lost.jsonl.

    Returns:
        The number of steps lost.
    """
    lost_steps = _cut(run.trace, lambda line: line["step"] < step)
    lost_lines = _cut(run.metrics, lambda line: line["step"] <= step)
    if lost_lines:
        with run.lost_metrics.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lost_lines)
    return len(lost_steps)


def _cut(path: Path, keep: Any) -> list[dict[str, Any]]:
    lines = list(read_json_lines(path))
    kept = [line for line in lines if keep(line)]
    write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
    return [line for line in lines if not keep(line)]
