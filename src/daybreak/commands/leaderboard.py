"""Verb: a folder of records -> the page of the speedrun: what a fixed time buys, class by class."""

from __future__ import annotations

import os
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_text
from daybreak.core.run_folder import RunFolder
from daybreak.reporting.leaderboard_table import Filed, page
from daybreak.schemas.records import RECORD_FILE, Record
from daybreak.studies.record_writer import describe


def leaderboard(records: Path, out: Path | None = None) -> str:
    """The board of all runs filed in ``records``, as Markdown; the same records give the same page.

    A folder that ``daybreak record`` made is read from its record.json. One that was filed before there was such a file
    is read from the run's own files, and gets no place. Everything else in the folder is no run.

    Args:
        out: a file to write it to as well; its links lead from there.

    Raises:
        UserError: there is no such folder, or a record in it is damaged.
    """
    if not records.is_dir():
        raise UserError(f"There is no folder '{records}'.", "Name the one that daybreak record files into.")
    start = out.parent if out else Path()
    found = [
        Filed(name=folder.name, link=f"{_link(folder, start)}/", record=read)
        for folder in sorted(records.iterdir())
        if not folder.name.startswith(".") and (read := _read(folder))
    ]
    rules = Path(os.path.abspath(records)).parent / "RULES.md"
    told = f"[RULES.md]({_link(rules, start)}#the-speedrun)" if rules.is_file() else "RULES.md"
    text = page(found, rules=told, records=f"[the records]({_link(records, start)}/)")
    if out:
        make_folder(out.parent)
        write_text(out, text)
    return text


def _link(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path, start)).as_posix()


def _read(folder: Path) -> Record | None:
    """The record in ``folder``; None where it holds no run."""
    if (folder / RECORD_FILE).is_file():
        filed: Record = read_json(folder / RECORD_FILE, Record)
        return filed
    return describe(RunFolder(folder)) if RunFolder(folder).recipe.is_file() else None
