"""Verb: run folders -> one HTML page that opens anywhere, also offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from daybreak.base.errors import UserError
from daybreak.base.files import make_folder, write_text
from daybreak.reporting.page import render_page
from daybreak.reporting.runs import read_run


def report(runs: Sequence[Path], out: Path) -> Path:
    """Write the report of one run, or of several laid over each other, and return its path.

    Unfinished runs are welcome: the page says what they lack.

    Raises:
        UserError: no run was named, a folder is no run or holds a damaged file, or ``out`` cannot be written.
    """
    if not runs:
        raise UserError("No run folder was named.", "Give at least one, as in `daybreak report runs/tiny`.")
    if out.is_dir():
        raise UserError(f"'{out}' is a folder.", "Name the file to write, as in `--out report.html`.")
    page = render_page([read_run(path) for path in dict.fromkeys(runs)])
    make_folder(out.parent)
    write_text(out, page)
    return out
