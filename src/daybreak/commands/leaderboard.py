"""Command ``leaderboard``: rank the records by budget class, as a Markdown page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from tyro.conf import Positional, arg

from daybreak.commands.options import parse
from daybreak.core.errors import UserError
from daybreak.core.files import check_output_file, make_folder, read_json, write_text
from daybreak.core.run_folder import RunFolder
from daybreak.reporting.leaderboard_table import Filed, page
from daybreak.schemas.records import RECORD_FILE, Record


@dataclass(frozen=True, kw_only=True)
class LeaderboardOptions:
    records: Annotated[Positional[Path], arg(metavar="[RECORDS]")] = Path("records")
    """Folder of all records."""
    out: Path | None = None
    """File for the page. By default the page is printed."""


def main(arguments: Sequence[str]) -> None:
    options = parse(LeaderboardOptions, "leaderboard", arguments)
    text = leaderboard(options.records, options.out)
    print(options.out or text)


def leaderboard(records: Path | str, out: Path | str | None = None) -> str:
    """Return the leaderboard of all runs in ``records`` as Markdown; the same records give the same page.

    A folder that ``daybreak record`` wrote is read from its record.json. A record from before that file existed is read
    from the run's own files and gets no rank. Other folders are ignored. Links are relative to the folder of ``out``.
    """
    records, out = Path(records), Path(out) if out else None
    if not records.is_dir():
        raise UserError(f"There is no folder '{records}'.", "Name the folder that daybreak record writes to.")
    if out:
        check_output_file(out, "--out leaderboard.md")
    start = out.parent if out else Path()
    found = [
        Filed(name=folder.name, link=f"{_link(folder, start)}/", record=record)
        for folder in sorted(records.iterdir())
        if not folder.name.startswith(".") and (record := _read(folder))
    ]
    if not found and RunFolder(records).recipe.is_file():
        raise UserError(f"'{records}' is a run.", "Name the folder that daybreak record writes to.")
    rules = Path(os.path.abspath(records)).parent / "RULES.md"
    rules_link = f"[RULES.md]({_link(rules, start)}#the-speedrun)" if rules.is_file() else "RULES.md"
    text = page(found, rules=rules_link, records=f"[the records]({_link(records, start)}/)")
    if out:
        make_folder(out.parent)
        write_text(out, text)
    return text


def _link(path: Path, start: Path) -> str:
    return quote(Path(os.path.relpath(path, start)).as_posix())


def _read(folder: Path) -> Record | None:
    """Return the record in ``folder``, or None if the folder holds no finished run."""
    if (folder / RECORD_FILE).is_file():
        record: Record = read_json(folder / RECORD_FILE, Record)
        return record
    if not RunFolder(folder).recipe.is_file() or not RunFolder(folder).summary.is_file():
        return None
    from daybreak.studies.record_writer import describe

    return describe(RunFolder(folder))
