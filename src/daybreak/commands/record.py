"""Verb: a finished run, or a finished study -> a folder of records/ with its evidence. A record is never edited.

A run is verified before it is filed.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daybreak.commands.verify import verify
from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_json, write_text
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say
from daybreak.data.sequences.shards import open_shards
from daybreak.recipe import FAMILY, load_recipe
from daybreak.reporting.studies import study_text
from daybreak.schemas.records import RECORD_FILE, VERIFIED_STEPS, Record
from daybreak.schemas.studies import STUDY_FILE, Study
from daybreak.studies.cell_runner import slug
from daybreak.studies.record_writer import (
    commit_of,
    describe,
    evidence,
    fingerprints,
    refuse_contradictions,
    refuse_unfit,
)


def record(run: Path, *, out: Path, data: Path | None = None, name: str = "", last: int = VERIFIED_STEPS) -> Path:
    """Verify the last steps of ``run`` and file what it reached under ``out``.

    The folder holds what the run wrote of itself without weights, text or paths, and record.json. It appears whole or
    not at all. Everything that would refuse it is looked at before the steps are run again. Of a study, its settings,
    cells, scores and verdicts are filed, and no step is run again.

    Args:
        run: a run folder, or the folder of a ``daybreak study``.
        out: the folder of all records.
        data: the run's prepared data; ``run/data`` when None.
        name: of the new folder, behind the day on which the run started; recipe, budget and seed when empty.
        last: steps to verify at least, from the newest kept checkpoint before them; 0 for all.

    Returns:
        The new folder.

    Raises:
        UserError: the run is not finished, off its budget, refused by the parity gate or comes out differently; the
            name is taken, or is none.
    """
    if (run / STUDY_FILE).is_file():
        return _record_study(run, out, name)
    folder, data = RunFolder(run), data or run / "data"
    refuse_unfit(folder)
    files, draft = evidence(folder), describe(folder)
    place = out / f"{draft.date}-{_named(name, draft)}"
    _refuse_taken(place)
    text = fingerprints(load_recipe(run), open_shards(data), data)
    make_folder(out)
    verified = verify(run, data=data, last=last)
    refuse_contradictions(folder, verified)
    if os.environ.get("RANK", "0") != "0":  # of several processes, which verify together, the first one files
        return place
    found = describe(folder, verified=verified, text=text, commit=commit_of(Path(__file__)))
    with _becoming(place) as new:
        for file, value in files.items():
            _write(new / file, value)
        write_json(new / RECORD_FILE, found)
    say(f"Filed: {place}, held-out loss {found.loss:.3f}. A board of all: daybreak leaderboard {out}")
    if found.void:
        say(f"Its time counts for nothing there: {found.void}.")
    return place


def _record_study(folder: Path, out: Path, name: str) -> Path:
    """File the verdicts of a finished study.

    Raises:
        UserError: the study is not finished, or the name is taken or is none.
    """
    found: Study = read_json(folder / STUDY_FILE, Study)
    if not found.finished:
        raise UserError(f"The study in '{folder}' is not finished.", "Give its command again, and record it then.")
    usual = f"study-{slug(folder.resolve().name)}"
    place = out / f"{datetime.datetime.now(datetime.UTC).date().isoformat()}-{_checked(name) if name else usual}"
    _refuse_taken(place)
    make_folder(out)
    with _becoming(place) as new:
        write_json(new / STUDY_FILE, found)
        write_text(new / "study.md", study_text(found) + "\n")
    say(f"Filed: {place}.")
    return place


def _named(name: str, found: Record) -> str:
    """The name of the folder behind its date."""
    return _checked(name) if name else slug(f"{found.recipe.removeprefix(FAMILY)}-{found.budget}-seed-{found.seed}")


def _checked(name: str) -> str:
    if slug(name) != name:
        raise UserError(f"'{name}' is no name for a record.", f"Write it like '{slug(name) or 'mini-wiki'}'.")
    return name


def _refuse_taken(place: Path) -> None:
    if place.exists():
        raise UserError(f"There is a record '{place}', and records are never edited.", "Give another --name.")


@contextmanager
def _becoming(place: Path) -> Iterator[Path]:
    """A new folder that is renamed to ``place`` when all is written, and gone when anything fails."""
    new = make_folder(place.with_name(f".{place.name}.{os.getpid()}.tmp"))
    try:
        yield new
        _refuse_taken(place)
        os.rename(new, place)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _write(path: Path, value: Any) -> None:
    if path.suffix == ".jsonl":
        write_text(path, "".join(json.dumps(line) + "\n" for line in value))
    else:
        write_json(path, value)
