"""The section of a study in the report of its runs: a row a variant, and the verdicts."""

from __future__ import annotations

from daybreak.reporting.markup import Markup, join, section, table, tag
from daybreak.reporting.study_table import how, mean_and_spread, score_sentence, sentence, task_rows
from daybreak.schemas.studies import Study


def study_section(study: Study) -> Markup:
    """Held-out loss and scores of each variant, and who is better."""
    if study.tasks:
        head, rows = task_rows(study)
    else:
        head, rows = ["variant", "seeds", "loss"], []
        for one in study.settings.variants:
            losses = [cell.loss for cell in study.cells if cell.variant == one.name]
            rows.append([one.name, str(len(losses)), mean_and_spread(losses)])
    words = [*map(sentence, study.comparisons), *map(score_sentence, study.task_comparisons)]
    scores = (
        f" Scores after fine-tuning (protocol {study.tasks.protocol}) are points of 100, outside of the budget."
        if study.tasks
        else ""
    )
    return section(
        "Who is better",
        table(head, rows),
        tag("ul", join(*(tag("li", line) for line in words))),
        caption=f"{how(study)}{scores}",
    )
