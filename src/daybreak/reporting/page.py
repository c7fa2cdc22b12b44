"""The report as one self-contained HTML page."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from daybreak.reporting.background import background
from daybreak.reporting.blocks import buttons, document
from daybreak.reporting.compute import compute
from daybreak.reporting.corpus import training_text
from daybreak.reporting.forecast import forecasts
from daybreak.reporting.headline import comparison, forgetting, headline, title_of, use
from daybreak.reporting.machine import machine
from daybreak.reporting.probes import context_use, examples, layers, search
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.studies import study_section
from daybreak.reporting.tasks import averages, tasks, verdicts
from daybreak.reporting.training import course, time_spent, training
from daybreak.schemas.studies import DataStudy, Study
from daybreak.schemas.tasks import Comparison, PublishedAverage

RELOAD_SECONDS = 60
"""Interval at which the page of an unfinished run reloads."""


def render_page(
    runs: Sequence[RunRecords],
    comparisons: Sequence[Comparison] = (),
    unpaired: Sequence[str] = (),
    *,
    form: str = "html",
    published: Sequence[PublishedAverage] = (),
    text: bool = True,
    study: Study | DataStudy | None = None,
) -> str:
    """Return a page about one run, or about several that are compared in the same plots.

    Args:
        runs: with unique labels.
        comparisons: of tasks on which both sides were fine-tuned on the same rows.
        unpaired: why other tasks that both sides have are not compared, a sentence each.
        form: html, one self-contained file, or md.
        published: models with GLUE and compute, to compare the runs with.
        text: whether held-out sentences may be on the page.
        study: the study whose cells the runs are.
    """
    several, pretrained = len(runs) > 1, any(run.pretrained_here for run in runs)
    body = [
        headline(runs, comparisons),
        study_section(study) if study is not None else None,
        buttons(runs) if several else None,
        comparison(runs) if several and pretrained else None,
        training(runs),
        forgetting(runs),
        tasks(runs),
        averages(runs),
        compute(runs, published),
        verdicts(comparisons, unpaired),
        layers(runs),
        context_use(runs),
        search(runs, text=text),
        examples(runs) if text else None,
        time_spent(runs),
        forecasts(runs),
        course(runs),
        machine(runs),
        training_text(runs),
        use(runs),
        background(runs) if pretrained else None,
    ]
    title = f"{len(runs)} runs compared" if several else title_of(runs[0])
    reload_seconds = RELOAD_SECONDS if any(run.going_on for run in runs) else None
    return document(
        f"{title} - Daybreak report", body, "the files of the run", form=form, reload_seconds=reload_seconds
    )


def with_unique_labels(runs: Sequence[RunRecords]) -> list[RunRecords]:
    """Give every run a unique label: the folder's name, with its parent or a number if names are equal."""
    for parts in (1, 2):
        labels = ["/".join(run.path.resolve().parts[-parts:]) for run in runs]
        if max(Counter(labels).values()) == 1:
            return [dataclasses.replace(run, label=label) for run, label in zip(runs, labels)]
    numbered = enumerate(runs, start=1)
    return [dataclasses.replace(run, label=f"{run.path.resolve().name} ({place})") for place, run in numbered]
