"""The report on a prepared text: a page of a data folder, and a section in the report of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.formatting import count, listed, percent, significant
from daybreak.core.terminal import duration
from daybreak.reporting.background import text_facts
from daybreak.reporting.blocks import (
    UNKNOWN,
    Block,
    Inline,
    bars,
    bold,
    card,
    code,
    document,
    figure,
    fold,
    grid,
    header,
    heading,
    join,
    many,
    note,
    section,
    small,
    styled,
    table,
    tiles,
)
from daybreak.reporting.charts import Figure, base_layout, straight_line, upright_label
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.corpus import CORPUS_FILE, CorpusReport, Histogram, StepReport, TokenizerQuality
from daybreak.schemas.run import Manifest

MANIFEST = "manifest.json"
INCOMPRESSIBLE = 0.25
"""Tokens per character from which Cramming (Geiping and Goldstein 2022, arXiv 2212.14034) removes a document, in the
settings of all its published runs."""
LABELS = 7
"""Most tick labels of a histogram."""
REASONS_SHOWN = 6
SOURCES_SHOWN = 200
FRACTIONS_SHOWN = 12
EXAMPLES_SHOWN = 20
EXAMPLE_LENGTH = 1000
NAME_LENGTH = 80
LAST_WORD = re.compile(r"(?<=[a-z0-9])[A-Z][a-z]+$")


# ---------------------------------------------------------------- pages and sections


def is_data_folder(path: Path) -> bool:
    """Whether the folder was made by ``daybreak prepare``; a run folder, which may contain one, is not."""
    return (path / MANIFEST).is_file()


def corpus_page(folder: Path, *, form: str = "html", text: bool = True) -> str:
    """Return the page about a data folder.

    Args:
        form: html or md.
        text: whether examples of what was removed may be on it.
    """
    if not (folder / CORPUS_FILE).is_file():
        raise UserError(f"'{folder}' has no {CORPUS_FILE}: an earlier version prepared it.", "Prepare the text again.")
    report = read_json(folder / CORPUS_FILE, CorpusReport)
    if not text:
        report = replace(report, steps=[replace(step, examples=[]) for step in report.steps])
    manifest = read_json(folder / MANIFEST, Manifest)
    name = folder.resolve().name
    skipped = [note(f"Skipped while reading: {manifest.left_out}.", "quiet")] if manifest.left_out else []
    body = [
        header(
            "Daybreak corpus report", name, f"prepared with the preset {report.preset}", sentence(report), *skipped,
            tiles(_tiles(report, manifest)),
        ),
        *sections(report),
        section("Prepared data", card("", text_facts(manifest))),
    ]  # fmt: skip
    return document(f"{name} - Daybreak corpus report", body, "the files of the prepared data", form=form)


def _tiles(report: CorpusReport, manifest: Manifest) -> list[tuple[str, str, str]]:
    passes = sum(step.passes for step in report.steps)
    read = report.steps[0].documents_in if report.steps else report.documents
    ratio = significant(report.characters / report.tokens) if report.tokens > 0 else UNKNOWN
    found = [
        (count(report.documents), "documents", f"{manifest.heldout.documents:,} held out"),
        (count(report.characters), "characters", many(report.words, "word")),
        (count(report.tokens), "tokens", f"of {ratio} characters"),
        (_lost(read, report.documents), "of the documents removed", f"of {count(read)} read"),
    ]
    if math.isfinite(report.seconds):
        found.append((duration(report.seconds), "to prepare", f"in {2 + max(0, passes)} passes over the text"))
    return found


def sections(report: CorpusReport) -> list[Block | None]:
    """All sections about a text."""
    return [steps(report), documents(report), sources(report), contamination(report), tokenizer(report)]


def training_text(runs: Sequence[RunRecords]) -> Block | None:
    """The short section in the report of runs; runs with the same text share it. Nothing without a corpus report."""
    reports: list[CorpusReport] = []
    for run in runs:
        if run.corpus is not None and run.corpus not in reports:
            reports.append(run.corpus)
    if len(reports) == 1:
        (one,) = reports
        parts = [steps_table(one), *sources_table(one), grid(_lengths(one), _scripts(one))]
        return section("Training text", *parts, caption=sentence(one))
    folds = [  # without plots, which cannot be sized inside a fold
        fold(
            ", ".join(run.label for run in runs if run.corpus == report),
            note(sentence(report), ""), steps_table(report), *sources_table(report), _scripts(report),
        )
        for report in reports
    ]  # fmt: skip
    return section("Training text", *folds) if folds else None


def sentence(report: CorpusReport) -> str:
    """The size of the text and what was removed."""
    size = (
        f"{many(report.documents, 'document')} with {many(report.characters, 'character')}, "
        f"{many(report.words, 'word')} and {many(report.tokens, 'token')}."
    )
    if not report.steps:
        return f"{size} No filter was applied."
    first, last = report.steps[0], report.steps[-1]
    by = sorted((step for step in report.steps if dropped(step)), key=lambda step: -dropped(step))
    if first.documents_in <= last.documents_out or not by:
        return f"{size} No document was removed."
    names = [f"{step_name(step.name)} ({fraction(dropped(step), first.documents_in)})" for step in by[:3]]
    names += [many(len(by) - 3, "other")] if len(by) > 3 else []
    filters = f"the filters {listed(names)}" if len(by) > 1 else step_name(by[0].name)
    return (
        f"{size} Of {many(first.documents_in, 'document')} read, {_lost(first.documents_in, last.documents_out)} were "
        f"removed, with {_lost(first.characters_in, last.characters_out)} of the characters, by {filters}."
    )


def steps(report: CorpusReport) -> Block:
    """What each step removed and why, with examples if the user asked for them."""
    if not report.steps:
        return section("What was removed", note("No filter was applied."))
    caption = "Steps in their order: each gets what the step before it kept. Percentages are of the input of the step."
    return section("What was removed", steps_table(report), *map(_examples, report.steps), caption=caption)


def _examples(step: StepReport) -> Block | None:
    if not step.examples:
        return None
    shown: list[Block] = []
    for example in step.examples[:EXAMPLES_SHOWN]:
        shown += [heading(example.reason), code(clipped(example.text, EXAMPLE_LENGTH), wrap=True)]
    return fold(f"Removed by {step_name(step.name)}: {many(len(step.examples), 'example')}", *shown)


def documents(report: CorpusReport) -> Block:
    """Lengths, compressibility, scripts and languages."""
    languages = _fractions("Languages, by fraction of the documents", report.languages)
    rows = [grid(_lengths(report), _compressibility(report)), grid(_scripts(report), languages)]
    caption = "" if report.languages else "Languages were not identified: no language model was given."
    return section("Documents", *rows, caption=caption)


def _lengths(report: CorpusReport) -> Block | None:
    middle = median(bins(report.lengths))
    if middle is None:
        return None
    value = count(float(f"{middle[1]:.2g}")) if 1 <= middle[1] < 1e15 else f"{middle[1]:.2g}"
    mean = f" The mean is {count(report.characters / report.documents)}." if report.documents > 0 else ""
    return figure("Lengths", f"The median is about {value} characters.{mean}", lengths(report.lengths))


def _compressibility(report: CorpusReport) -> Block | None:
    if not bins(report.compressibility):
        return None
    above = incompressible(report.compressibility)
    here = f" Here {fraction(above, 1)} of the kept documents are at or above it." if above is not None else ""
    caption = (
        "Tokens per character, which is high for text unlike the rest, such as tables and codes. The published runs of "
        f"Cramming remove documents at {INCOMPRESSIBLE} or above.{here}"
    )
    return figure("Compressibility", caption, compressibility(report.compressibility))


def _scripts(report: CorpusReport) -> Block | None:
    return _fractions("Scripts, by fraction of the letters", report.scripts)


def _fractions(title: str, fractions: Mapping[str, float]) -> Block | None:
    """A card with a bar for each name; small fractions together if there are many."""
    found = sorted(((name, part) for name, part in fractions.items() if 0 < part <= 1), key=lambda pair: -pair[1])
    if not found:
        return None
    shown, rest = found[:FRACTIONS_SHOWN], found[FRACTIONS_SHOWN:]
    if rest:
        shown.append((f"{len(rest)} others", min(1.0, math.fsum(part for _, part in rest))))

    def words(part: float) -> str:
        return f"{100 * part:.0f} %" if part >= 0.0995 else f"{100 * part:.1f} %" if part >= 0.0005 else "< 0.1"

    return card(title, bars([(clipped(name, NAME_LENGTH), part, words(part), False) for name, part in shown]))


def sources(report: CorpusReport) -> Block | None:
    """What each input contributed and lost, and its fraction of the training text."""
    title = "Sources" if len(report.sources) > 1 else "Source"
    return section(title, *sources_table(report)) if report.sources else None


def contamination(report: CorpusReport) -> Block:
    """How much of each evaluation text is in the corpus."""
    title = "Contamination with evaluation text"
    if not report.contamination:
        return section(title, note("No evaluation text was given, so none was searched for."))
    rows = []
    for name, found in zip(short_names([found.path for found in report.contamination]), report.contamination):
        action = "none needed" if found.items_found == 0 else "documents removed" if found.removed else "only reported"
        kind = "best" if found.removed or found.items_found == 0 else "poor"
        numbers = [f"{found.items:,}", f"{found.items_found:,}", fraction(found.items_found, found.items)]
        rows.append([clipped(name, NAME_LENGTH), styled(action, kind), *numbers, f"{found.documents:,}"])
    head = ("Evaluation text", "Action", "Items searched", "Found", "Fraction", "Documents with items")
    caption = (
        "An item is a line, table cell or JSON string of an evaluation file with 8 words or more. It is found if the "
        "corpus has any 13 of its words in a row, or all of them if it has 12 or fewer."
    )
    return section(title, table(head, rows, words=2), caption=caption)


def tokenizer(report: CorpusReport) -> Block | None:
    """Properties of the tokenizer on held-out text, and of other vocabulary sizes."""
    own, advice = report.tokenizer, report.advice
    rows = [_quality_row("this tokenizer", own)] if own else []
    parts: list[Block] = []
    if advice is not None:
        for quality in sorted(advice.sizes, key=lambda each: each.vocabulary):
            name = "recommended" if quality.vocabulary == advice.recommended else "another size"
            rows.append(_quality_row(name, quality))
        parts.append(note(f"Recommended: {advice.recommended:,} tokens. {advice.why}"))
    if own is None and advice is None:
        return None
    head = ("Tokenizer", "Vocabulary", "Characters per token", "Tokens per word", "Whole words", "Unknown tokens")
    caption = "On held-out text. Words are separated by whitespace; a word is covered if it has no unknown token."
    return section("Tokenizer", *parts, table((*head, "Words covered"), rows) if rows else None, caption=caption)


def _quality_row(name: str, quality: TokenizerQuality) -> list[Inline]:
    rates = quality.characters_per_token, quality.tokens_per_word
    fractions = quality.whole_words, quality.unknown_tokens, quality.covered_words
    return [
        bold(name),
        f"{quality.vocabulary:,}",
        *(significant(value) if math.isfinite(value) else UNKNOWN for value in rates),
        *(fraction(value, 1) for value in fractions),
    ]


# ---------------------------------------------------------------- tables of steps and sources


def fraction(part: float, whole: float) -> str:
    """A percentage; ``< 0.1 %`` for small ones, a dash if the whole is empty."""
    if whole <= 0 or not math.isfinite(part / whole):
        return UNKNOWN
    return percent(part / whole) if part == 0 or abs(part) >= 0.0005 * whole else "< 0.1 %"


def dropped(step: StepReport) -> int:
    """The number of documents that a step removed."""
    return max(0, step.documents_in - step.documents_out)


def _lost(read: int, kept: int) -> str:
    return fraction(max(0, read - kept), read)


def step_name(name: str) -> str:
    """The class name of a step as words: ``NearDuplicates`` -> ``Near duplicates``; long names are cut."""
    return clipped(LAST_WORD.sub(lambda found: f" {found[0].lower()}", name), NAME_LENGTH)


def clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def steps_table(report: CorpusReport) -> Block | None:
    """One row per step; nothing without steps."""
    head = ("Step", "Reasons", "Removed", "Fraction", "Of the characters", "Documents kept")
    return table(head, [_step_row(step) for step in report.steps], words=2) if report.steps else None


def _step_row(step: StepReport) -> list[Inline]:
    passes = f"; further passes over the text: {step.passes}" if step.passes > 0 else ""
    reasons = sorted(step.reasons.items(), key=lambda pair: -pair[1])
    shown, rest = reasons[:REASONS_SHOWN], reasons[REASONS_SHOWN:]
    lines = [f"{clipped(reason, NAME_LENGTH)}: {documents:,}" for reason, documents in shown]
    lines += [f"{many(len(rest), 'further reason')}: {sum(documents for _, documents in rest):,}"] if rest else []
    return [
        join(step_name(step.name), small(step.why.rstrip(".") + passes)),
        join(*lines, by="<br>") if lines else UNKNOWN,
        f"{dropped(step):,}",
        _lost(step.documents_in, step.documents_out),
        _lost(step.characters_in, step.characters_out),
        f"{step.documents_out:,}",
    ]


def sources_table(report: CorpusReport) -> list[Block]:
    """One row per input; nothing without inputs. After SOURCES_SHOWN rows the others are only counted."""
    found = report.sources
    if not found:
        return []
    with_epochs = any(source.epochs != 1 for source in found)
    weights = [source.kept_characters * source.epochs if math.isfinite(source.epochs) else 0.0 for source in found]
    whole = math.fsum(weights)
    rows = []
    for name, source, weight in zip(short_names([source.path for source in found]), found, weights):
        row = [clipped(name, NAME_LENGTH), f"{source.documents:,}", _lost(source.documents, source.kept_documents)]
        row += [count(source.characters), _lost(source.characters, source.kept_characters)]
        row += [significant(source.epochs)] if with_epochs else []
        rows.append([*row, fraction(weight, whole)])
    head = ["Source", "Documents read", "Removed", "Characters read", "Removed"]
    head += [*(["Epochs"] if with_epochs else []), "Fraction of the training text"]
    more = len(rows) - SOURCES_SHOWN
    return [table(head, rows[:SOURCES_SHOWN]), *([note(f"and {more:,} not shown", "quiet")] if more > 0 else [])]


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that differ, so that a page does not show home folders."""
    paths = ["standard input" if path == "-" else path for path in paths]
    names = paths
    for depth in range(1, 6):
        names = [path if "://" in path else "/".join(path.rstrip("/").split("/")[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


# ---------------------------------------------------------------- histograms


@dataclass(frozen=True, kw_only=True)
class Bin:
    """One bar of a histogram; the outermost bars also hold what lies beyond their edge."""

    low: float
    high: float
    count: int
    words: str


def bins(histogram: Histogram) -> list[Bin]:
    """The bins from the first to the last that is not empty; none if the record is invalid."""
    edges, counts = histogram.edges, histogram.counts
    rising = all(map(math.isfinite, edges)) and all(low < high for low, high in pairwise(edges))
    if not rising or len(edges) != len(counts) + 1 or min(counts, default=0) < 0 or not any(counts):
        return []
    words = [f"{edge(low)} to {edge(high)}" for low, high in pairwise(edges)]
    words[0], words[-1] = f"below {edge(edges[1])}", f"{edge(edges[-2])} or more"
    full = [place for place, number in enumerate(counts) if number]
    return [
        Bin(low=edges[place], high=edges[place + 1], count=counts[place], words=words[place])
        for place in range(full[0], full[-1] + 1)
    ]


def edge(value: float) -> str:
    """``1048576.0`` -> ``1,048,576``; ``0.25`` -> ``0.25``."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:.3g}"


def median(found: Sequence[Bin]) -> tuple[float, float] | None:
    """(place on an axis of equally wide bins, value) of the median; None without bins.

    Inside its bin the value is interpolated on a logarithmic scale.
    """
    whole, before = sum(each.count for each in found), 0
    for place, each in enumerate(found):
        if 2 * (before + each.count) >= whole:
            part = (whole / 2 - before) / each.count
            if each.low > 0:
                return place + part, math.exp((1 - part) * math.log(each.low) + part * math.log(each.high))
            return place + part, each.low + part * (each.high - each.low)
        before += each.count
    return None


def lengths(histogram: Histogram) -> Figure:
    """Percentage of the documents by characters; the edges are powers of two, so the bars have equal width."""
    found = bins(histogram)
    plot = _histogram(found, "characters", [place + 0.5 for place in range(len(found))], [1.0] * len(found))
    edges = [*(each.low for each in found), *(each.high for each in found[-1:])]
    places = range(0, len(edges), -(-len(edges) // LABELS) or 1)
    ticks = {"tickvals": list(places), "ticktext": [edge(edges[place]) for place in places], "tickangle": 0}
    plot["layout"]["xaxis"] |= ticks | {"range": [-0.1, len(found) + 0.1]}
    if middle := median(found):
        _mark(plot, "median", middle[0])
    return plot


def compressibility(histogram: Histogram) -> Figure:
    """Percentage of the documents by tokens per character, with Cramming's limit."""
    found = bins(histogram)
    widths = [each.high - each.low for each in found]
    plot = _histogram(
        found, "tokens per character", [each.low + each.high / 2 - each.low / 2 for each in found], widths
    )
    low = min([INCOMPRESSIBLE, *(each.low for each in found[:1])])
    high = max([INCOMPRESSIBLE, *(each.high for each in found[-1:])])
    plot["layout"]["xaxis"]["range"] = [low, high + (high - low) / 20]
    _mark(plot, f"{INCOMPRESSIBLE}", INCOMPRESSIBLE)
    return plot


def incompressible(histogram: Histogram) -> float | None:
    """Fraction of the documents that Cramming would remove; None if the limit is not an edge of the histogram."""
    found = bins(histogram)
    if not found or any(each.low < INCOMPRESSIBLE < each.high for each in found):
        return None
    return sum(each.count for each in found if each.low >= INCOMPRESSIBLE) / sum(each.count for each in found)


def _mark(plot: Figure, words: str, x: float) -> None:
    straight_line(plot["layout"], "var(--ink)", x=x)
    upright_label(plot["layout"], words, x)


def _histogram(found: Sequence[Bin], unit: str, x: list[float], widths: list[float]) -> Figure:
    """Bars with room above the highest one for the label of a line."""
    whole = sum(each.count for each in found)
    percentages = [100 * each.count / whole for each in found]
    words = [f"{each.words} {unit}: {each.count:,} documents, {y:.2g} %" for each, y in zip(found, percentages)]
    layout = base_layout(unit, "% of the documents", bargap=0.04, hovermode="closest")
    layout["yaxis"]["range"] = [0, 1.15 * max(percentages, default=1.0)]
    bar = {"type": "bar", "x": x, "y": percentages, "width": widths, "name": unit, "marker": {"color": "var(--accent)"}}
    return {"data": [bar | {"hovertext": words, "hoverinfo": "text"}] if found else [], "layout": layout}
