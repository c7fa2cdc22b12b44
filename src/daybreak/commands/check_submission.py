"""Verb: whether a folder or zip of predictions is what the GLUE server takes, whoever made it."""

from __future__ import annotations

from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.terminal import say
from daybreak.evaluation.glue_server.submission import check


def check_submission(path: Path) -> None:
    """Say that ``path`` is fit to submit, or every fault that it has.

    Raises:
        UserError: it has faults, or there is nothing to read.
    """
    faults = check(path)
    for fault in faults:
        say(fault)
    if faults:
        number = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
        raise UserError(f"'{path}' is not fit to submit: {number}.", "Mend what is named above.")
    say(f"'{path}' is fit to submit: 11 files, every row there.")
