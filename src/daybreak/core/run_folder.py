"""File names in a run folder; no other module contains them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from daybreak.core.errors import UserError, reason
from daybreak.core.files import FINDER, refuse_not_utf8
from daybreak.core.locks import PATIENCE, alone_in
from daybreak.core.terminal import say
from daybreak.schemas.corpus import CORPUS_FILE

REFUSED = "REFUSED.txt"
"""The file that marks a model folder as refused by the parity check; it says why."""
_BEGINNINGS = {"checkpoints", "stacks", "environment.json", "data.json", CORPUS_FILE, FINDER}
"""Files that a killed start may leave before it writes recipe.json, and one that anybody who looks may leave."""
_PREPARED = {"data": "manifest.json", "general": "manifest.json", "corpus": "docstrings.jsonl"}
"""Text folders that ``daybreak run`` creates, and the file that identifies each as such."""
_PREPARING = (".data.", ".general.")
"""Name prefixes of folders in which such text is being prepared."""


def warn_if_refused(model: Path) -> None:
    """Print a warning if the parity check refused this model folder."""
    if (model / REFUSED).exists():
        say(f"Warning: the model in '{model}' failed its parity check, so do not trust its results ({REFUSED}).")


def as_argument(run: Path) -> str:
    """The folder of a run as the first argument of a command, where a name alone would mean a recipe."""
    return str(run) if run.parts[1:] else f"./{run}"


class _Inside:
    """An attribute of RunFolder: the path of a file or folder inside it."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, run: RunFolder, owner: type[RunFolder]) -> Path:
        return run.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """Paths inside one run folder. It creates nothing."""

    path: Path

    recipe = _Inside("recipe.json")
    environment = _Inside("environment.json")
    decisions = _Inside("decisions.json")
    trace = _Inside("trace.jsonl")
    heartbeat = _Inside("heartbeat")
    """The seconds charged so far; exists only while the run is not finished."""
    retrieval = _Inside("retrieval.json")
    """How well search finds passages of held-out documents, with examples of that text."""
    metrics = _Inside("metrics.jsonl")
    lost_metrics = _Inside("metrics.lost.jsonl")
    checkpoints = _Inside("checkpoints")
    branch = _Inside("before-decay")
    """The checkpoint from before the decay; it stays after the run."""
    best = _Inside("best")
    """The checkpoint of the best interim validation."""
    late = _Inside("before-end")
    """A checkpoint from near the end, from which ``daybreak verify`` repeats the last steps; it stays."""
    stacks = _Inside("stacks")
    """Stacks of each process at a time when no step ended for too long."""
    model = _Inside("model")
    exported = _Inside("exported.json")
    """The summary as far as it was known after the export, with which the time of the run ends; exists only while the
    checks after it are not finished."""
    summary = _Inside("summary.json")
    forecast = _Inside("forecast.json")
    """The expected results of the run, at its start and during it."""
    examples = _Inside("examples.json")
    results = _Inside("results.json")
    cells = _Inside("cells")
    """One file for each fine-tuning run behind the results."""
    probes = _Inside("probes.json")
    search = _Inside("search")
    """The index of ``daybreak search``."""
    report = _Inside("report.html")
    manifest = _Inside("data.json")
    """A copy of the data folder's manifest without most hashes and without paths, so that a report needs only this
    folder."""
    corpus = _Inside(CORPUS_FILE)
    """A copy of the data folder's statistics of the text, without paths and examples."""

    def delete(self, needed: Iterable[Path] = ()) -> None:
        """Remove the folder with its content, but only if it looks like a run.

        A folder without a recipe must contain only files that a run creates at its start. So a project of the user that
        has a folder named data is not deleted.

        Args:
            needed: files and folders that the next run needs.
        """
        refuse_not_utf8(self.path)  # the next run would be refused after this one is gone
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
                self._empty()
                with suppress(OSError):
                    self.path.rmdir()  # a link to the folder stays

    def _empty(self) -> None:
        """Delete what is inside, recipe.json last: after a kill, the rest is still known as a run."""
        for inside in sorted(self.path.iterdir(), key=lambda path: path == self.recipe):
            try:
                if inside.is_dir() and not inside.is_symlink():
                    shutil.rmtree(inside)
                else:
                    inside.unlink()
            except FileNotFoundError:  # another process of the run has deleted it
                continue
            except OSError as error:
                raise UserError(
                    f"'{inside}' cannot be deleted: {error.strerror or reason(error)}.",
                    "Delete it, or choose another --out.",
                ) from None

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
