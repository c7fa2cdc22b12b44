"""A study in words and tables, in Markdown: for the terminal, for OUT/study.md and for the log of what was tried."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from daybreak.core.formatting import count, percent, signed
from daybreak.schemas.studies import DataStudy, LossComparison, ScoreComparison, Study, StudyCell, StudySettings

UNKNOWN = "-"
TWO_SEEDS = "Of two seeds this interval is 12.7 standard errors long to each side: it shows next to nothing."


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns stand under each other in plain text too."""
    cells = [[cell.replace("|", "/") for cell in row] for row in [head, *rows]]
    widths = [max(3, *(len(row[place]) for row in cells)) for place in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def mean_and_spread(values: Sequence[float], places: int = 3) -> str:
    """``4.321 +- 0.012``: mean and standard deviation (n - 1); of one value no spread."""
    if not values:
        return UNKNOWN
    spread = f" +- {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{places}f}{spread}"


# ---------------------------------------------------------------- daybreak study


def study_text(study: Study) -> str:
    """What OUT/study.md holds."""
    ended = "" if study.finished else "\n\nNot finished yet."
    parts = [f"# {study.question}{ended}", how(study), variants(study)]
    parts += [f"- {sentence(found)}" for found in study.comparisons]
    parts += [on_tasks(study)]
    parts += [f"- {score_sentence(found)}" for found in study.task_comparisons]
    parts += filter(None, [times(study.comparisons), voids(study.cells)])
    return _joined(parts)


def log_entry(study: Study, date: str) -> str:
    """An entry of docs/log.md: heading, one paragraph, a table; who lost stands in it too."""
    told = " ".join(sentence(found) for found in study.comparisons)
    scores = " ".join(score_sentence(found) for found in study.task_comparisons)
    parts = [heading(study.question, date), f"{how(study)} {told}", variants(study), on_tasks(study), scores]
    return _joined(parts)


def heading(question: str, date: str) -> str:
    return f"## {date}: {question}"


def how(study: Study) -> str:
    """What was done, in one paragraph."""
    names = ", ".join(one.name for one in study.settings.variants)
    return (
        f"{names}: {study.settings.budget} each on {study.data} ({count(study.train_tokens)} training tokens), "
        f"{_basis(study.settings, study.seeds)}"
    )


def _basis(settings: StudySettings, seeds: int) -> str:
    clock = "" if settings.equal_clock else " A budget in steps or tokens is no equal clock."
    threads = f"{settings.threads} thread{'s' if settings.threads > 1 else ''} of {settings.machine.device}"
    return (
        f"{seeds} seed{'s' if seeds > 1 else ''}, in turns, on {threads}. Loss in nats on the fixed held-out "
        f"positions.{clock}"
    )


def variants(study: Study) -> str:
    """A row a variant, the lowest loss first."""
    rows = []
    for one in study.settings.variants:
        cells = [cell for cell in study.cells if cell.variant == one.name]
        if cells:
            rows.append((statistics.fmean(cell.loss for cell in cells), _row(one.name, one.words, cells)))
    head = ("variant", "as typed", "seeds", "loss", "accuracy", "steps", "tokens", "epochs", "tokens/s", "void")
    return table(head, [row for _, row in sorted(rows, key=lambda found: found[0])])


def _row(name: str, words: str, cells: Sequence[StudyCell]) -> list[str]:
    return [
        name,
        words or UNKNOWN,
        str(len(cells)),
        mean_and_spread([cell.loss for cell in cells]),
        percent(statistics.fmean(cell.accuracy for cell in cells)),
        f"{statistics.fmean(cell.steps for cell in cells):,.0f}",
        count(statistics.fmean(cell.tokens for cell in cells)),
        f"{statistics.fmean(cell.epochs for cell in cells):.2f}",
        f"{statistics.fmean(cell.tokens_per_second for cell in cells):,.0f}",
        str(sum(bool(cell.void) for cell in cells)),
    ]


def on_tasks(study: Study) -> str:
    """How the models were fine-tuned, and a row a variant: its loss, its score on each task and their mean."""
    if study.tasks is None:
        return ""
    head, rows = task_rows(study)
    many = study.tasks.seeds
    seeds = "the protocol's seeds" if many is None else f"{many} seed{'s' if many > 1 else ''}"
    lead = (
        f"Fine-tuned after pretraining, outside of the budget: protocol {study.tasks.protocol}, {seeds} a model. "
        "Scores are points of 100, mean and standard deviation over pretraining seeds."
    )
    return _joined([lead, table(head, rows)])


def task_rows(study: Study) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of tasks, the highest mean first; variants without a score come last."""
    names = study.tasks.tasks if study.tasks else []
    metrics = {one.task: one.metric for cell in study.cells for one in cell.tasks}
    head = ["variant", "seeds", "loss"]
    head += [f"{name} ({metrics[name].replace('_', ' ')})" if name in metrics else name for name in names]
    head += [f"mean of {len(names)}"] if len(names) > 1 else []
    rows = []
    for one in study.settings.variants:
        cells = [cell for cell in study.cells if cell.variant == one.name]
        scores = [{score.task: 100 * score.score for score in cell.tasks} for cell in cells if cell.tasks]
        means = [statistics.fmean(score.values()) for score in scores]
        columns = [[score[name] for score in scores] for name in names] + ([means] if len(names) > 1 else [])
        row = [one.name, str(len(scores)), mean_and_spread([cell.loss for cell in cells])]
        row += [mean_and_spread(column, 1) for column in columns]
        rows.append((statistics.fmean(means) if means else -1e9, row))
    return head, [row for _, row in sorted(rows, key=lambda found: -found[0])]


def score_sentence(found: ScoreComparison) -> str:
    """A comparison on a task in words."""
    metric = f" ({found.metric.replace('_', ' ')})" if found.metric else ""
    told = (
        f"{found.task}{metric}, {found.b} (B) against {found.a} (A): {found.verdict}. B's score less A's: "
        f"{signed(100 * found.difference, 1)} points"
    )
    if found.low is None or found.high is None:
        return f"{told}, in one run."
    return (
        f"{told}, 95 % interval [{signed(100 * found.low, 1)}, {signed(100 * found.high, 1)}] ({len(found.seeds)} "
        f"seeds), spread {100 * found.spread:.1f}."
    )


def sentence(found: LossComparison) -> str:
    """A comparison in words."""
    told = (
        f"{found.b} (B) against {found.a} (A): {found.verdict}. B's loss less A's: {signed(found.difference, 3)} nats"
    )
    if found.low is not None and found.high is not None:
        told += (
            f", 95 % interval [{signed(found.low, 3)}, {signed(found.high, 3)}] (Student's t over the differences of "
            f"{len(found.seeds)} seeds), spread {found.spread:.3f}. {TWO_SEEDS if len(found.seeds) == 2 else ''}"
        )
    else:
        told += ", in one run."
    reached = next((time.ratio for time in found.times if time.level == "A's final loss"), None)
    if reached is not None:
        told += f" B reached A's final loss after {reached:.2f} of A's time."
    return re.sub(r"\s+", " ", told).strip()


def times(comparisons: Sequence[LossComparison]) -> str:
    """How much of A's time B took to the same loss."""
    rows = [
        [
            found.a,
            found.b,
            time.level,
            UNKNOWN if time.ratio is None else f"{time.ratio:.2f}",
            ", ".join(UNKNOWN if ratio is None else f"{ratio:.2f}" for ratio in time.ratios),
        ]
        for found in comparisons
        for time in found.times
    ]
    if not rows:
        return ""
    return _joined(
        [
            "B's time to a held-out loss as a share of A's, on straight lines between validations (the interim ones "
            f"read fewer held-out rows than the last); {UNKNOWN} where one was not seen to reach it.",
            table(("A", "B", "held-out loss", "B's share", "seed by seed"), rows),
        ]
    )


def voids(cells: Sequence[StudyCell]) -> str:
    """Which cells are void, and why."""
    found = [f"- {cell.variant}, seed {cell.seed}: {cell.void}" for cell in cells if cell.void]
    return "\n".join(["Void:", "", *found]) if found else ""


# ---------------------------------------------------------------- daybreak study-data


def data_study_text(study: DataStudy) -> str:
    """What OUT/study-data.md holds."""
    ended = "" if study.finished else "\n\nNot finished yet."
    parts = [f"# {study.question}{ended}", how_data(study), sources(study), crossed(study)]
    parts += [f"- {sentence(found)}" for found in study.comparisons]
    parts += filter(None, [voids(study.cells)])
    return _joined(parts)


def data_log_entry(study: DataStudy, date: str) -> str:
    """An entry of docs/log.md."""
    told = " ".join(sentence(found) for found in study.comparisons)
    return _joined([heading(study.question, date), f"{how_data(study)} {told}", sources(study)])


def how_data(study: DataStudy) -> str:
    """What was done, in one paragraph."""
    steps = ", ".join(_steps(study))
    ordered = f" Sorted: rows in the order {study.order}, else shuffled." if "sorted" in study.preprocessings else ""
    held = ", ".join(f"{one.heldout_documents:,} documents of {one.name}" for one in study.sources)
    return (
        f"{', '.join(one.name for one in study.sources)} x {steps}: {study.settings.budget} each, one tokenizer for "
        f"all, {_basis(study.settings, study.seeds)} Each preprocessing stands on those before it.{ordered} Held out "
        f"before any preprocessing: {held}."
    )


def _steps(study: DataStudy) -> list[str]:
    return [name if place == 0 or name == "raw" else f"+ {name}" for place, name in enumerate(study.preprocessings)]


def data_variant(source: str, preprocessing: str) -> str:
    """What a cell of a data study is called."""
    return f"{source}, {preprocessing}"


def sources(study: DataStudy) -> str:
    """Sources down, preprocessings across: loss on the source's own held-out text, tokens left, epochs."""
    texts = {(text.source, text.preprocessing): text for text in study.texts}
    rows = []
    for one in study.sources:
        row = [one.name]
        for preprocessing in study.preprocessings:
            cells = _cells(study, one.name, preprocessing)
            text = texts.get((one.name, preprocessing))
            told = mean_and_spread([cell.loss for cell in cells])
            if text is not None:
                told += f"; {count(text.tokens)} tokens ({text.kept:.0%})"
            if cells:
                told += f", {statistics.fmean(cell.epochs for cell in cells):.2f} epochs"
            row.append(told)
        rows.append(row)
    return table(("source", *_steps(study)), rows)


def crossed(study: DataStudy) -> str:
    """Each model on the held-out text of each source."""
    names = [one.name for one in study.sources]
    rows = []
    for source in names:
        for preprocessing in study.preprocessings:
            cells = _cells(study, source, preprocessing)
            if cells:
                judged = [[cell.others[name] for cell in cells if name in cell.others] for name in names]
                rows.append([data_variant(source, preprocessing), *map(mean_and_spread, judged)])
    if not rows:
        return ""
    head = table(("trained on", *(f"judged on {name}" for name in names)), rows)
    return _joined(["Each model on the held-out text of every source:", head])


def _cells(study: DataStudy, source: str, preprocessing: str) -> list[StudyCell]:
    return [cell for cell in study.cells if cell.variant == data_variant(source, preprocessing)]


def _joined(parts: Sequence[str]) -> str:
    """Paragraphs with an empty line between them; items of one list without."""
    text = ""
    for part in filter(None, parts):
        both = part.startswith("- ") and text.rpartition("\n")[2].startswith("- ")
        text += ("" if not text else "\n" if both else "\n\n") + part
    return text
