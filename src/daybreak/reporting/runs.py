"""Reading run folders. A run may be new, killed or finished, so everything but its recipe is optional."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.core.files import parse_json, read_json
from daybreak.core.locks import who_holds
from daybreak.core.recipe_file import is_edited, read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict
from daybreak.schemas.corpus import CORPUS_FILE, CorpusReport
from daybreak.schemas.forecast import ForecastLog
from daybreak.schemas.probes import Probes
from daybreak.schemas.records import RECORD_FILE
from daybreak.schemas.run import (
    Change,
    Decisions,
    Environment,
    FillMask,
    MachineRecord,
    Manifest,
    Retrieval,
    StepRecord,
    Summary,
    TraceRecord,
    ValidationRecord,
)
from daybreak.schemas.studies import DATA_STUDY_FILE, STUDY_FILE
from daybreak.schemas.tasks import Average, PublishedAverage, TaskResult

Line = StepRecord | ValidationRecord | MachineRecord
"""A line of metrics.jsonl."""
KINDS: dict[str, type[Line]] = {"step": StepRecord, "validation": ValidationRecord, "machine": MachineRecord}
"""By the ``type`` of the line."""
SILENCE = 60.0
"""Seconds without a heartbeat after which a run counts as silent."""
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """The content of a run folder, or of a folder with results only."""

    path: Path
    label: str
    """Short name for legends: the name of the folder, which ``report`` makes unique."""
    recipe: dict[str, Any]
    """Empty if the model was not pretrained in this folder."""
    environment: Environment | None = None
    decisions: Decisions | None = None
    manifest: Manifest | None = None
    corpus: CorpusReport | None = None
    """None if the text was prepared by an earlier version, or is in a folder outside the run."""
    summary: Summary | None = None
    steps: list[StepRecord] = field(default_factory=list)
    validations: list[ValidationRecord] = field(default_factory=list)
    machine: list[MachineRecord] = field(default_factory=list)
    lost: list[Line] = field(default_factory=list)
    """Lines of work that was undone later: metrics.lost.jsonl."""
    silent: float = 0.0
    """Seconds from the last heartbeat (the last write of the trace) to the reading of the folder."""
    held: bool | None = None
    """Whether a process held the run folder when it was read; None if the file system has no locks."""
    faults: list[str] = field(default_factory=list)
    """Damaged files and lines, a sentence each."""
    results: list[TaskResult] = field(default_factory=list)
    examples: list[FillMask] = field(default_factory=list)
    retrieval: Retrieval | None = None
    forecast: ForecastLog | None = None
    """None if there is no forecast (unsupported recipe or older version)."""
    probes: Probes | None = None
    averages: list[tuple[Average, list[PublishedAverage]]] = field(default_factory=list)
    """Averages over the results with the published averages to compare; ``report`` computes them."""
    glue: float | None = None
    """The GLUE average of the figure of compute; None if a number of it is missing."""
    glue_lacks: str = ""
    """What is missing for ``glue``; empty if nothing is, or if no task of GLUE was evaluated."""

    @property
    def pretrained_here(self) -> bool:
        return bool(self.recipe)

    @property
    def going_on(self) -> bool:
        """Whether pretraining has not ended; its process may be running or stopped."""
        return self.pretrained_here and self.summary is None

    @property
    def stopped(self) -> bool:
        """Whether pretraining has not ended and no process of this machine holds the run."""
        return self.going_on and self.held is False

    @property
    def continued(self) -> bool:
        """Whether the run continues a model or another run, whose training is not in these records."""
        origin = self.recipe.get("origin") or {}
        return bool(origin.get("init") or origin.get("branch") or (self.summary and self.summary.parent))

    @property
    def dropped(self) -> int:
        """Steps so far without an update of the weights."""
        if self.summary is not None:
            return self.summary.dropped
        return self.steps[-1].dropped if self.steps else 0

    @property
    def changes(self) -> list[Change]:
        """Changes of settings during training."""
        if self.summary is not None and self.summary.changes:
            return self.summary.changes
        return self.decisions.changes if self.decisions else []

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", self.path.name))

    @property
    def validation(self) -> ValidationRecord | None:
        """The final validation, or the last one of a run that has not ended."""
        if self.summary is not None:
            return self.summary.validation
        return self.validations[-1] if self.validations else None

    @property
    def ranked(self) -> ValidationRecord | None:
        """The validation, if it may be ranked: a run whose model was refused has no result (RULES.md)."""
        return None if self.summary is not None and self.summary.is_refused else self.validation

    @property
    def elapsed(self) -> float:
        """Seconds charged to the budget so far."""
        if self.summary is not None:
            return self.summary.elapsed
        return max((record.elapsed for record in self._newest), default=0.0)

    @property
    def tokens(self) -> int:
        if self.summary is not None:
            return self.summary.tokens
        return max((record.tokens for record in self._newest), default=0)

    @property
    def _newest(self) -> list[StepRecord | ValidationRecord]:
        return [*self.steps[-1:], *self.validations[-1:]]

    @property
    def stage_changes(self) -> list[StepRecord]:
        """The first record of each stage after the first stage."""
        return [now for before, now in zip(self.steps, self.steps[1:]) if now.stage != before.stage]

    @property
    def missing(self) -> list[str]:
        """What this folder does not contain yet; empty for a folder with results only."""
        if not self.pretrained_here:
            return []
        parts = {
            "a summary (pretraining has not ended)": self.summary,
            "training records": self.steps,
            "a validation": self.validations,
            "task results (run daybreak evaluate)": self.results,
            "fill-mask examples": self.examples,
            "the environment": self.environment,
            "the measured settings": self.decisions,
            "a description of the data": self.manifest,
        }
        return [words for words, found in parts.items() if not found]


def read_run(path: Path) -> RunRecords:
    """Read a run folder.

    Damaged lines of metrics.jsonl and damaged files that only reports need are left out and listed in ``faults``.
    """
    folder = RunFolder(path)
    if not folder.recipe.is_file():
        if any((path / name).is_file() for name in (STUDY_FILE, DATA_STUDY_FILE)):
            raise UserError(
                f"'{path}' is the folder of a study, not of a run.",
                "Read report.html or the .md file in it, or name one of its runs, which are in cells.",
            )
        if path.is_dir():
            problem = "is not a run folder: it holds no recipe.json"
        else:
            problem = "is a file, not a run folder" if path.is_file() else "does not exist"
        raise UserError(f"'{path}' {problem}.", "Give a folder written by `daybreak run` or `daybreak pretrain`.")
    recipe = read_recipe_file(folder.recipe)
    steps: dict[int, StepRecord] = {}
    validations: dict[int, ValidationRecord] = {}
    machine: list[MachineRecord] = []
    edited = "recipe.json was edited after the run started: its fingerprint does not match its fields."
    # A record has names in place of the paths that the fingerprint covers, and its own fingerprints.
    faults = [edited] if is_edited(recipe) and not (path / RECORD_FILE).is_file() else []
    for record in _metrics(folder.metrics, faults):
        if isinstance(record, StepRecord):
            steps[record.step] = record
        elif isinstance(record, ValidationRecord):
            validations[record.step] = record
        else:
            machine.append(record)
    return RunRecords(
        path=path,
        label=path.name or path.resolve().name,
        recipe=recipe,
        environment=_reported(folder.environment, Environment, faults),
        decisions=_optional(folder.decisions, Decisions),
        manifest=_reported(folder.manifest, Manifest, faults),
        corpus=_corpus(folder, faults),
        summary=_optional(folder.summary, Summary),
        steps=list(steps.values()),
        validations=list(validations.values()),
        machine=machine,
        lost=_metrics(folder.lost_metrics, []),
        silent=time.time() - (folder.trace if folder.trace.exists() else folder.recipe).stat().st_mtime,
        results=_reported(folder.results, list[TaskResult], faults) or [],
        examples=_reported(folder.examples, list[FillMask], faults) or [],
        retrieval=_reported(folder.retrieval, Retrieval, faults),
        forecast=_reported(folder.forecast, ForecastLog, faults),
        probes=_reported(folder.probes, Probes, faults),
        held=who_holds(path),
        faults=faults,
    )


def read_folder(path: Path) -> RunRecords:
    """Read a run folder, or a folder that contains only results of ``daybreak evaluate`` or ``daybreak probe``."""
    folder = RunFolder(path)
    if folder.recipe.is_file() or not (folder.results.is_file() or folder.probes.is_file()):
        return read_run(path)
    faults: list[str] = []
    return RunRecords(
        path=path,
        label=path.name or path.resolve().name,
        recipe={},
        results=_reported(folder.results, list[TaskResult], faults) or [],
        probes=_reported(folder.probes, Probes, faults),
        faults=faults,
    )


def first_trace(path: Path) -> TraceRecord | None:
    """Return the first complete line of a trace, without reading further; None if there is none."""
    return _trace(path, last=False)


def last_trace(path: Path) -> TraceRecord | None:
    """Return the last complete line of a trace, reading only the end of the file; None if there is none."""
    return _trace(path, last=True)


def _trace(path: Path, *, last: bool) -> TraceRecord | None:
    try:
        with path.open("rb") as file:
            if last:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    except OSError as error:
        why = f"cannot be read ({reason(error)})"
        raise UserError(f"'{path}' {why}.", "Restore the file, or start a new run.") from None
    line = lines[-1 if last else 0] if lines else b""
    if not line:
        return None
    try:
        record: TraceRecord = from_dict(TraceRecord, parse_json(line), path.name)
    except ValueError:
        where = "end" if last else "start"
        raise UserError(f"'{path}' is damaged at its {where}.", "Restore the file, or start a new run.") from None
    return record


def _corpus(folder: RunFolder, faults: list[str]) -> CorpusReport | None:
    """The copy made by pretraining, or else the file in the data that ``daybreak run`` keeps in the run."""
    copies = folder.corpus, folder.path / "data" / CORPUS_FILE
    found: CorpusReport | None = next((_reported(path, CorpusReport, faults) for path in copies if path.exists()), None)
    return found


def _metrics(path: Path, faults: list[str]) -> list[Line]:
    """The records of a metrics file without an incomplete last line; damaged lines are left out and reported."""
    found: list[Line] = []
    damaged: list[int] = []
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    except OSError as error:
        faults.append(f"'{path.name}' cannot be read ({reason(error)}).")
        return []
    for number, line in enumerate(lines, start=1):
        try:
            value = parse_json(line)
            kind = KINDS.get(str(value.pop("type", None)))  # None for one that this version does not know
            record = None if kind is None else from_dict(kind, value, path.name)
        except (ValueError, TypeError, AttributeError, UserError):
            damaged += [number] if line.endswith(b"\n") else []
        else:
            found += [record] if record is not None else []
    if damaged:
        first = f"Line {damaged[0]} of '{path.name}' is damaged and left out."
        faults.append(first if len(damaged) == 1 else f"{first} So are {len(damaged) - 1} others.")
    return found


def _reported(path: Path, cls: Any, faults: list[str]) -> Any:
    """A file that only reports need; a damaged one is left out."""
    try:
        return _optional(path, cls)
    except UserError:
        faults.append(f"'{path.name}' is damaged and left out.")
        return None


def _optional(path: Path, cls: Any) -> Any:
    return read_json(path, cls) if path.exists() else None
