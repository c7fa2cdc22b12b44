"""Command ``check-submission``: check a folder or zip of predictions for the GLUE server, from any program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from daybreak.commands.options import parse
from daybreak.core.errors import UserError
from daybreak.core.terminal import say
from daybreak.evaluation.glue_server.submission_check import check


@dataclass(frozen=True, kw_only=True)
class CheckSubmissionOptions:
    path: Positional[Path]
    """Folder or zip file of the submission."""


def main(arguments: Sequence[str]) -> None:
    options = parse(CheckSubmissionOptions, "check-submission", arguments)
    check_submission(options.path)


def check_submission(path: Path) -> None:
    """Print every problem of the submission in ``path``, or that it has none.

    Raises:
        UserError: the submission has problems, or cannot be read.
    """
    problems = check(path)
    for problem in problems:
        say(problem)
    if problems:
        number = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise UserError(f"'{path}' is not a valid submission: {number}.", "Correct the problems listed above.")
    say(f"'{path}' is a valid submission: 11 files, all rows present.")
