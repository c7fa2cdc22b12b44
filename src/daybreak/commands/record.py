"""Command ``record``: verify a finished run, or take a finished study, and write a folder of results to ``records/``.

Records are never edited.
"""

from __future__ import annotations

import datetime
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

import daybreak
from daybreak.commands.options import RecipeFileOptions, RunDataOptions, data_of, load_recipe_file, parse
from daybreak.commands.verify import verify
from daybreak.core.errors import UserError, check_option
from daybreak.core.files import make_folder, read_json, whole_folder, write_json, write_text
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import is_first_process, say
from daybreak.data.sequences.shards import open_shards
from daybreak.reporting.studies import data_study_text, study_text
from daybreak.schemas.records import RECORD_FILE, VERIFIED_STEPS
from daybreak.schemas.run import Decisions
from daybreak.schemas.studies import DATA_STUDY_FILE, STUDY_FILE, DataStudy, Study
from daybreak.studies.cell_runner import slug

STUDIES: dict[str, tuple[type, Callable[[Any], str]]] = {
    STUDY_FILE: (Study, study_text),
    DATA_STUDY_FILE: (DataStudy, data_study_text),
}
"""The file of each kind of study, its type and its text."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions(RunDataOptions, RecipeFileOptions):
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a finished run or study."""
    out: Path = Path("records")
    """Folder of all records."""
    name: str = ""
    """Name of the new folder after the date. Defaults to recipe, budget and seed."""
    last: int = VERIFIED_STEPS
    """Verify at least this many steps at the end of the run; 0 for all."""


def main(arguments: Sequence[str]) -> None:
    options = parse(RecordOptions, "record", arguments)
    load_recipe_file(options.recipe)
    record(options.run, out=options.out, data=options.data, name=options.name, last=options.last)


def record(
    run: Path | str,
    *,
    out: Path | str,
    data: Path | str | None = None,
    name: str = "",
    last: int = VERIFIED_STEPS,
) -> Path:
    """Verify the last steps of ``run`` and write its results to a new folder in ``out``.

    The folder contains the run's own files without weights, text or paths, and record.json. It is written completely or
    not at all. All other checks come before the steps are repeated. For a study, the record contains its settings,
    cells, scores and comparisons, and no step is repeated.

    The keywords are the options of ``daybreak record``. The path of the new folder is returned.

    Raises:
        UserError: the run is not finished, off its budget, refused by the parity check, or its steps differ when
            repeated; the name is taken or invalid.
    """
    from daybreak.recipe import FAMILY, load_recipe
    from daybreak.studies.record_writer import (
        commit_of,
        describe,
        evidence,
        fingerprints,
        refuse_contradictions,
        refuse_unfit,
    )

    run, out = Path(run), Path(out)
    check_option("--last", last, last >= 0, "of at least 0")
    for file in STUDIES:
        if (run / file).is_file():
            return _record_study(run / file, out, name)
    folder = RunFolder(run)
    refuse_unfit(folder)
    evidence(folder)  # a damaged file is refused before the steps are repeated
    draft = describe(folder)
    recipe = draft.recipe.removeprefix(FAMILY)
    target = _new_record(out, draft.date, name, slug(f"{recipe}-{draft.budget}-seed-{draft.seed}"))
    data = data_of(run, data)
    text = fingerprints(
        load_recipe(run), open_shards(data), data, first=read_json(folder.decisions, Decisions).first_heldout
    )
    make_folder(out)
    verified = verify(run, data=data, last=last)
    refuse_contradictions(folder, verified)
    if not is_first_process():  # all processes verify, the first one writes
        return target
    # Read after the repeated steps, during which an evaluation may have added results.
    files = evidence(folder)
    found = describe(folder, verified=verified, text=text, commit=commit_of(Path(daybreak.__file__)))
    with whole_folder(target) as new:
        make_folder(new)
        for file, value in files.items():
            if file.endswith(".jsonl"):
                write_text(new / file, "".join(json.dumps(line) + "\n" for line in value))
            else:
                write_json(new / file, value)
        write_json(new / RECORD_FILE, found)
        _refuse_existing(target)  # made by another process since the first check
    say(
        f"Record: {target}, held-out loss {found.loss:.3f}. To rank all records:",
        f"daybreak leaderboard {shlex.quote(str(out))}",
    )
    if found.void:
        say(f"The leaderboard will not rank it: {found.void}.")
    return target


def _record_study(file: Path, out: Path, name: str) -> Path:
    folder, (kind, text) = file.parent, STUDIES[file.name]
    found = read_json(file, kind)
    if not found.finished:
        raise UserError(f"The study in '{folder}' is not finished.", "Finish it with the same command first.")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    target = _new_record(out, today, name, f"study-{slug(folder.resolve().name)}")
    make_folder(out)
    with whole_folder(target) as new:
        make_folder(new)
        write_json(new / file.name, found)
        write_text(new / f"{file.stem}.md", text(found) + "\n")
        _refuse_existing(target)
    say(f"Record: {target}.")
    return target


def _new_record(out: Path, date: str, name: str, default: str) -> Path:
    """Return the folder of a new record in ``out``, called ``name`` or ``default`` after its date."""
    if slug(name) != name:
        raise UserError(f"'{name}' is not a valid record name.", f"Use a name such as '{slug(name) or 'mini-wiki'}'.")
    target = out / f"{date}-{name or default}"
    _refuse_existing(target)
    return target


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise UserError(f"The record '{target}' exists, and records are never edited.", "Choose another --name.")
