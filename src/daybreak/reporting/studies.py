"""Studies as text and tables: for the terminal, OUT/study.md and the report of the runs."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from daybreak.core.formatting import count, metric_name, percent, signed
from daybreak.reporting.blocks import UNKNOWN, Block, items, many, note, section
from daybreak.reporting.blocks import table as html_table
from daybreak.schemas.studies import DataStudy, LossComparison, ScoreComparison, Study, StudyCell, StudySettings

CROSSED = "Each model on the held-out text of every source:"
TWO_SEEDS = "With two seeds the interval extends 12.7 standard errors to each side, too wide for a conclusion."


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    cells = [[cell.replace("|", "/") for cell in row] for row in [head, *rows]]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def mean_and_spread(values: Sequence[float], places: int = 3) -> str:
    """``4.321 +- 0.012``: mean and standard deviation (n - 1); the mean alone for one value."""
    if not values:
        return UNKNOWN
    spread = f" +- {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{places}f}{spread}"


# ---------------------------------------------------------------- daybreak study


def study_text(study: Study) -> str:
    """The content of OUT/study.md."""
    parts = [_title(study.question, study.finished), setup(study), variants(study)]
    parts += [f"- {loss_sentence(found)}" for found in study.comparisons]
    parts += [on_tasks(study)]
    parts += [f"- {score_sentence(found)}" for found in study.task_comparisons]
    return _paragraphs([*parts, times(study.comparisons), voids(study.cells)])


def _cells(study: Study | DataStudy, variant: str) -> list[StudyCell]:
    return [cell for cell in study.cells if cell.variant == variant]


def _losses(cells: Sequence[StudyCell]) -> list[float]:
    return [cell.loss for cell in cells if cell.has_result]


def _title(question: str, finished: bool) -> str:
    return f"# {question}" + ("" if finished else "\n\nNot finished yet.")


def study_section(study: Study | DataStudy) -> Block:
    """The section of a study in the report of its runs: its tables, the verdicts and the void cells."""
    void = [note("Void:"), items(_void_lines(study.cells))] if _void_lines(study.cells) else []
    if isinstance(study, DataStudy):
        crossed_table = [note(CROSSED), html_table(*_crossed_rows(study))] if study.cells else []
        verdicts = items(list(map(loss_sentence, study.comparisons)))
        return section(
            "Comparison of texts",
            html_table(*_source_rows(study)), *crossed_table, verdicts, *void,
            caption=data_setup(study),
        )  # fmt: skip
    head, rows = _task_rows(study)
    sentences = [*map(loss_sentence, study.comparisons), *map(score_sentence, study.task_comparisons)]
    scores = (
        f" Scores after fine-tuning (protocol {study.tasks.protocol}, not part of the budget) are times 100."
        if study.tasks
        else ""
    )
    return section(
        "Comparison of variants",
        html_table(head, rows),
        items(sentences),
        *void,
        caption=f"{setup(study)}{scores}",
    )


def setup(study: Study) -> str:
    """The variants, the budget, the data and the machine in one paragraph."""
    names = ", ".join(variant.name for variant in study.settings.variants)
    return (
        f"{names}: {study.settings.budget} each on {study.data} ({count(study.train_tokens)} training tokens), "
        f"{_basis(study.settings, study.seeds)}"
    )


def _basis(settings: StudySettings, seeds: int) -> str:
    clock = "" if settings.equal_clock else " A budget in steps or tokens does not give equal time."
    threads = f"{many(settings.threads, 'thread')} of {settings.machine.device}"
    return f"{many(seeds, 'seed')}, alternating, on {threads}. Loss in nats on the fixed held-out positions.{clock}"


def variants(study: Study) -> str:
    """One row per variant, the lowest loss first; cells without a result count in neither loss nor accuracy."""
    rows = []
    for variant in study.settings.variants:
        if cells := _cells(study, variant.name):
            mean = {
                key: statistics.fmean(getattr(cell, key) for cell in cells)
                for key in ("steps", "tokens", "epochs", "tokens_per_second")
            }
            losses = _losses(cells)
            accuracies = [cell.accuracy for cell in cells if cell.has_result]
            accuracy = percent(statistics.fmean(accuracies)) if accuracies else UNKNOWN
            row = [variant.name, variant.words or UNKNOWN, str(len(cells)), mean_and_spread(losses), accuracy]
            row += [f"{mean['steps']:,.0f}", count(mean["tokens"]), f"{mean['epochs']:.2f}"]
            row += [f"{mean['tokens_per_second']:,.0f}", str(sum(bool(cell.void) for cell in cells))]
            rows.append((statistics.fmean(losses) if losses else math.inf, row))
    head = ("variant", "options", "seeds", "loss", "accuracy", "steps", "tokens", "epochs", "tokens/s", "void")
    return table(head, [row for _, row in sorted(rows, key=lambda entry: entry[0])])


def on_tasks(study: Study) -> str:
    """The fine-tuning protocol, and one row per variant with its loss, its score on each task and their mean."""
    if study.tasks is None:
        return ""
    seeds = "the protocol's seeds" if study.tasks.seeds is None else many(study.tasks.seeds, "seed")
    lead = (
        f"Fine-tuned after pretraining, which is not part of the budget: protocol {study.tasks.protocol}, {seeds} per "
        "model. Scores are times 100, mean and standard deviation over pretraining seeds."
    )
    return _paragraphs([lead, table(*_task_rows(study))])


def _task_rows(study: Study) -> tuple[list[str], list[list[str]]]:
    """One row per variant: seeds, loss, and scores if there are tasks, the highest mean first."""
    names = study.tasks.tasks if study.tasks else []
    metrics = {result.task: result.metric for cell in study.cells for result in cell.tasks}
    head = ["variant", "seeds", "loss"]
    head += [f"{name} ({metric_name(metrics[name])})" if name in metrics else name for name in names]
    head += [f"mean of {len(names)}"] if len(names) > 1 else []
    rows = []
    for variant in study.settings.variants:
        cells = _cells(study, variant.name)
        scores = [{result.task: 100 * result.score for result in cell.tasks} for cell in cells if cell.tasks]
        means = [statistics.fmean(score.values()) for score in scores]
        columns = [[score[name] for score in scores] for name in names] + ([means] if len(names) > 1 else [])
        part = f" ({len(scores)} fine-tuned)" if study.tasks and len(scores) < len(cells) else ""
        row = [variant.name, f"{len(cells)}{part}", mean_and_spread(_losses(cells))]
        row += [mean_and_spread(column, 1) for column in columns]
        rows.append((statistics.fmean(means) if means else -1e9, row))
    return head, [row for _, row in sorted(rows, key=lambda entry: -entry[0])]


def loss_sentence(found: LossComparison) -> str:
    """A comparison of losses as a sentence."""
    sentence = (
        f"{found.b} (B) against {found.a} (A): {found.verdict}. B's loss - A's loss: {signed(found.difference, 3)} nats"
    )
    if found.low is None or found.high is None:
        sentence += ", in one run."
    else:
        sentence += (
            f", 95 % interval [{signed(found.low, 3)}, {signed(found.high, 3)}] (Student's t over the differences of "
            f"{len(found.seeds)} seeds), standard deviation over seeds {found.spread:.3f}. "
            f"{TWO_SEEDS if len(found.seeds) == 2 else ''}"
        )
    reached = next((time.ratio for time in found.times if time.level == "A's final loss"), None)
    if reached is not None:
        sentence += f" B reached A's final loss after {reached:.2f} of A's time."
    return re.sub(r"\s+", " ", sentence).strip()


def score_sentence(found: ScoreComparison) -> str:
    """A comparison on a task as a sentence."""
    metric = f" ({metric_name(found.metric)})" if found.metric else ""
    difference = signed(100 * found.difference, 1)
    sentence = f"{found.task}{metric}, {found.b} (B) against {found.a} (A): {found.verdict}. "
    sentence += f"B's score - A's score: {difference} points"
    if found.low is None or found.high is None:
        return f"{sentence}, in one run."
    return (
        f"{sentence}, 95 % interval [{signed(100 * found.low, 1)}, {signed(100 * found.high, 1)}] ({len(found.seeds)} "
        f"seeds), standard deviation over seeds {100 * found.spread:.1f}."
    )


def times(comparisons: Sequence[LossComparison]) -> str:
    """B's time to a loss as a fraction of A's; empty without such times."""

    def ratio(value: float | None) -> str:
        return UNKNOWN if value is None else f"{value:.2f}"

    rows = [
        [found.a, found.b, time.level, ratio(time.ratio), ", ".join(map(ratio, time.ratios))]
        for found in comparisons
        for time in found.times
    ]
    if not rows:
        return ""
    lead = (
        "B's time to a held-out loss as a fraction of A's, with linear interpolation between validations, all "
        f"on the held-out sequences of the interim ones; {UNKNOWN} if one of them did not reach it."
    )
    return _paragraphs([lead, table(("A", "B", "held-out loss", "fraction", "by seed"), rows)])


def voids(cells: Sequence[StudyCell]) -> str:
    """The cells that are void, with the reason."""
    found = [f"- {line}" for line in _void_lines(cells)]
    return "\n".join(["Void:", "", *found]) if found else ""


def _void_lines(cells: Sequence[StudyCell]) -> list[str]:
    return [f"{cell.variant}, seed {cell.seed}: {cell.void}" for cell in cells if cell.void]


# ---------------------------------------------------------------- daybreak study-data


def data_study_text(study: DataStudy) -> str:
    """The content of OUT/study-data.md."""
    parts = [_title(study.question, study.finished), data_setup(study), sources(study), crossed(study)]
    return _paragraphs([*parts, *(f"- {loss_sentence(found)}" for found in study.comparisons), voids(study.cells)])


def data_setup(study: DataStudy) -> str:
    """The sources, the preprocessings, the budget and the machine in one paragraph."""
    steps = ", ".join(_preprocessings(study))
    ordered = (
        f" Sorted: sequences in the order {study.order}, else shuffled." if "sorted" in study.preprocessings else ""
    )
    heldout = ", ".join(f"{source.heldout_documents:,} documents of {source.name}" for source in study.sources)
    return (
        f"{', '.join(source.name for source in study.sources)} x {steps}: {study.settings.budget} each, one tokenizer "
        f"for all, {_basis(study.settings, study.seeds)} Each preprocessing adds to those before it.{ordered} Held out "
        f"before any preprocessing: {heldout}."
    )


def _preprocessings(study: DataStudy) -> list[str]:
    return [name if place == 0 or name == "raw" else f"+ {name}" for place, name in enumerate(study.preprocessings)]


def data_variant(source: str, preprocessing: str) -> str:
    """The name of a cell of a data study."""
    return f"{source}, {preprocessing}"


def sources(study: DataStudy) -> str:
    """Sources by preprocessings: loss on the source's own held-out text, tokens left, epochs."""
    return table(*_source_rows(study))


def _source_rows(study: DataStudy) -> tuple[list[str], list[list[str]]]:
    texts = {(text.source, text.preprocessing): text for text in study.texts}
    rows = []
    for source in study.sources:
        row = [source.name]
        for preprocessing in study.preprocessings:
            cells = _cells(study, data_variant(source.name, preprocessing))
            text = texts.get((source.name, preprocessing))
            parts = mean_and_spread(_losses(cells))
            parts += "" if text is None else f"; {count(text.tokens)} tokens ({text.kept:.0%})"
            parts += f", {statistics.fmean(cell.epochs for cell in cells):.2f} epochs" if cells else ""
            row.append(parts)
        rows.append(row)
    return ["source", *_preprocessings(study)], rows


def crossed(study: DataStudy) -> str:
    """The loss of each model on the held-out text of each source."""
    return _paragraphs([CROSSED, table(*_crossed_rows(study))]) if study.cells else ""


def _crossed_rows(study: DataStudy) -> tuple[list[str], list[list[str]]]:
    names = [source.name for source in study.sources]
    rows = []
    for source in names:
        for preprocessing in study.preprocessings:
            variant = data_variant(source, preprocessing)
            if cells := [cell for cell in _cells(study, variant) if cell.has_result]:
                losses = [[cell.others[name] for cell in cells if name in cell.others] for name in names]
                rows.append([variant, *map(mean_and_spread, losses)])
    return ["trained on", *(f"evaluated on {name}" for name in names)], rows


def _paragraphs(parts: Sequence[str]) -> str:
    """Paragraphs separated by an empty line; the items of one list are not. Empty parts are left out."""
    text = ""
    for part in filter(None, parts):
        both_items = part.startswith("- ") and text.rpartition("\n")[2].startswith("- ")
        text += ("" if not text else "\n" if both_items else "\n\n") + part
    return text
