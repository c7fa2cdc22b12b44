"""File names in a run folder; no other module contains them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.locks import PATIENCE, alone_in
from daybreak.schemas.corpus import CORPUS_FILE

_BEGINNINGS = {"checkpoints", "stacks", "environment.json", "data.json", CORPUS_FILE}
"""Files that a killed start may leave before it writes recipe.json."""
_PREPARED = {"data": "manifest.json", "general": "manifest.json", "corpus": "docstrings.jsonl"}
"""Text folders that ``daybreak run`` creates, and the file that identifies each as such."""
_PREPARING = (".data.", ".general.")
"""Name prefixes of folders in which such text is being prepared."""


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder. It creates nothing."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def decisions(self) -> Path:
        return self.path / "decisions.json"

    @property
    def trace(self) -> Path:
        return self.path / "trace.jsonl"

    @property
    def heartbeat(self) -> Path:
        """The seconds charged so far; exists only while the run is not finished."""
        return self.path / "heartbeat"

    @property
    def retrieval(self) -> Path:
        """How well search finds passages of held-out documents, with examples of that text."""
        return self.path / "retrieval.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def lost_metrics(self) -> Path:
        return self.path / "metrics.lost.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def branch(self) -> Path:
        """The checkpoint from before the decay; it stays after the run."""
        return self.path / "before-decay"

    @property
    def best(self) -> Path:
        """The checkpoint of the best interim validation."""
        return self.path / "best"

    @property
    def late(self) -> Path:
        """A checkpoint from near the end, from which ``daybreak verify`` repeats the last steps; it stays."""
        return self.path / "before-end"

    @property
    def stacks(self) -> Path:
        """Stacks of each process at a time when no step ended for too long."""
        return self.path / "stacks"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def forecast(self) -> Path:
        """The expected results of the run, at its start and during it."""
        return self.path / "forecast.json"

    @property
    def examples(self) -> Path:
        return self.path / "examples.json"

    @property
    def results(self) -> Path:
        return self.path / "results.json"

    @property
    def cells(self) -> Path:
        """One file for each fine-tuning run behind the results."""
        return self.path / "cells"

    @property
    def probes(self) -> Path:
        return self.path / "probes.json"

    @property
    def search(self) -> Path:
        """The index of ``daybreak search``."""
        return self.path / "search"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def manifest(self) -> Path:
        """A copy of the data folder's manifest without hashes and paths, so that a report needs only this folder."""
        return self.path / "data.json"

    @property
    def corpus(self) -> Path:
        """A copy of the data folder's statistics of the text, without paths and examples."""
        return self.path / CORPUS_FILE

    def delete(self, needed: Iterable[Path] = ()) -> None:
        """Remove the folder with its content, but only if it looks like a run.

        A folder without a recipe must contain only files that a run creates at its start. So a project of the user that
        has a folder named data is not deleted.

        Args:
            needed: files and folders that the next run needs.

        Raises:
            UserError: the folder holds something else, or some of ``needed``, or another process is working in it.
        """
        for path in needed:
            if path.resolve().is_relative_to(self.path.resolve()):
                raise UserError(
                    f"'{path}' lies in '{self.path}', which --overwrite would delete.", "Choose another --out."
                )
        if not self.recipe.exists() and (strange := self.strange()):
            raise UserError(
                f"'{self.path}' holds '{strange[0]}' and is not a run folder, so --overwrite will not delete it.",
                "Choose another --out.",
            )
        if self.path.is_dir():
            with alone_in(self.path, PATIENCE):
                shutil.rmtree(self.path, ignore_errors=True)

    def strange(self) -> list[str]:
        """Names in the folder that no run creates before its recipe."""
        inside = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(path.name for path in inside if not _begins_a_run(path))


def _begins_a_run(path: Path) -> bool:
    """Whether a run folder may hold this before it holds a recipe."""
    name = path.name
    if name in _PREPARED and path.is_dir():
        return not any(path.iterdir()) or any(path.glob(f"*{_PREPARED[name]}*"))  # or that file, half written
    return name in _BEGINNINGS or name.startswith(_PREPARING) or name.endswith(".tmp")
