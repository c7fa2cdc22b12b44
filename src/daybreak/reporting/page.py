"""Runs -> the whole page, in one string that needs nothing else."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import plotly.offline

from daybreak import __version__
from daybreak.reporting import figures, sections
from daybreak.reporting.background import background
from daybreak.reporting.comparison import comparison, worth
from daybreak.reporting.compute import compute
from daybreak.reporting.corpus_parts import the_text
from daybreak.reporting.forecast import outlook
from daybreak.reporting.headline import headline, load_lines
from daybreak.reporting.layers import layers
from daybreak.reporting.machine import machine
from daybreak.reporting.markup import Markup, escape, join, section, tag
from daybreak.reporting.runs import Published, RunRecords
from daybreak.reporting.study_section import study_section
from daybreak.reporting.style import POLICY, SCRIPT, STYLE
from daybreak.reporting.task_results import averages, tasks
from daybreak.reporting.training_curves import course
from daybreak.reporting.verdicts import verdicts
from daybreak.schemas.studies import Study
from daybreak.schemas.tasks import Comparison

SKIP = tag("nav", tag("a", "Skip to the report", href="#content"), class_="skip", aria_label="Shortcut")
REFRESH_SECONDS = 60
"""How often the page of a run that has not ended loads itself again."""


def render_page(
    runs: Sequence[RunRecords],
    comparisons: Sequence[Comparison] = (),
    unpaired: Sequence[str] = (),
    *,
    published: Sequence[Published] = (),
    text: bool = True,
    study: Study | None = None,
) -> str:
    """Return one self-contained HTML page about one run, or about several that are compared in the same plots.

    Args:
        comparisons: of tasks, where both sides were fine-tuned on the same rows.
        unpaired: why other tasks that both sides have are not compared, a sentence each.
        published: models with GLUE and compute, among which the runs stand.
        text: whether held-out sentences may stand on the page.
        study: the study whose cells the runs are.
    """
    runs = told_apart(runs)
    body = [headline(runs)]
    if study is not None:
        body.append(study_section(study))
    if len(runs) > 1:
        body.append(_switches(runs))
    if len(runs) > 1 and any(run.pretrained_here for run in runs):
        body.append(comparison(runs))
    body += [
        sections.training(runs),
        worth(runs),
        tasks(runs),
        averages(runs),
        compute(runs, published),
        verdicts(comparisons, unpaired),
        layers(runs),
        sections.context_use(runs),
        sections.search(runs, text=text),
        sections.examples(runs) if text else sections.NOTHING,
        sections.time_spent(runs),
        outlook(runs),
        course(runs),
        machine(runs),
        the_text(runs),
    ]
    exported = [run for run in runs if (run.path / "model").is_dir()]
    if exported:
        caption = "The folder is a Hugging Face model; Daybreak is not needed to use it."
        body.append(section("Use it", load_lines(exported), caption=caption))
    if any(run.pretrained_here for run in runs):
        body.append(background(runs))
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    again = REFRESH_SECONDS if any(run.going_on for run in runs) else None
    return document(f"{title} - Daybreak report", body, "the files of the run", again)


def document(title: str, body: Sequence[Markup], made_from: str, again: int | None = None) -> str:
    """Return a whole page that needs nothing else.

    Args:
        made_from: whose files the page tells of, for its last line.
        again: seconds after which the page loads itself once more, until its reader says otherwise; None for never.
    """
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    footer = tag("footer", f"Made by Daybreak {__version__} on {now} from {made_from}. This page loads nothing.")
    renewed = [_renewed(again)] if again is not None else []
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{SKIP}\n{tag('main', *renewed, *body, id='content', tabindex='-1')}\n{footer}\n"
        "<noscript><p>The plots need JavaScript; every table reads without it.</p></noscript>\n"
        f'<script id="plotly">{plotly.offline.get_plotlyjs()}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n'
    )
    # A file name that is no UTF-8 reaches us with half characters, which no file of text can hold.
    return page.encode("utf-8", "replace").decode("utf-8")


def told_apart(runs: Sequence[RunRecords]) -> list[RunRecords]:
    """Give every run a label of its own: the folder's name, with its parent or a number where names are shared.

    Labels that were given are not looked at, so that it may be done twice.
    """
    for parts in (1, 2):
        labels = ["/".join(run.path.resolve().parts[-parts:]) for run in runs]
        if max(Counter(labels).values()) == 1:
            return [dataclasses.replace(run, label=label) for run, label in zip(runs, labels)]
    numbered = enumerate(runs, start=1)
    return [dataclasses.replace(run, label=f"{run.path.resolve().name} ({place})") for place, run in numbered]


def _switches(runs: Sequence[RunRecords]) -> Markup:
    buttons = [
        tag(
            "button",
            tag("i", style=f"--c:{figures.colour(number)}"),
            run.label,
            type="button",
            data_run=str(number),
            aria_pressed="true",
            title="show or hide this run",
        )
        for number, run in enumerate(runs)
    ]
    return tag("nav", join(*buttons), class_="runs", aria_label="Runs in the plots")


def _renewed(seconds: int) -> Markup:
    """A switch, so that nobody loses the place while reading."""
    words = f"Load this page again every {seconds} seconds"
    return tag("p", tag("button", words, type="button", data_again=str(seconds), aria_pressed="true"), class_="renewed")
