"""The report on a prepared text: a page of a data folder, and a section in the report of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_text
from daybreak.core.formatting import count, percent, significant
from daybreak.core.terminal import duration
from daybreak.reporting import markup
from daybreak.reporting.background import text_facts
from daybreak.reporting.charts import (
    RUN_COLOURS,
    Figure,
    base_layout,
    scatter,
    stacked_bars,
    straight_line,
    thinned,
    upright_label,
)
from daybreak.reporting.document import document
from daybreak.reporting.markdown import as_markdown
from daybreak.reporting.markup import (
    NOTHING,
    UNKNOWN,
    Markup,
    card,
    facts,
    figure,
    fold,
    grid,
    header,
    join,
    legend,
    many,
    note,
    section,
    small,
    table,
    tag,
    tiles,
)
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.corpus import (
    CORPUS_FILE,
    Contamination,
    CorpusReport,
    Histogram,
    StepReport,
    TokenizerQuality,
    VocabularyAdvice,
)
from daybreak.schemas.run import Manifest

MANIFEST = "manifest.json"
INCOMPRESSIBLE = 0.25
"""Tokens per character from which Cramming (Geiping and Goldstein 2022, arXiv 2212.14034) leaves a document out, in the
settings of all its published runs."""
LABELS = 7
"""Most tick labels of a histogram."""
SEGMENTS = 10
"""Most parts of a bar with a colour of their own."""
REASONS_SHOWN = 6
ROWS_SHOWN = 12
ROWS_FOLDED = 200
"""Further rows of a long table, behind a title; the rows after them are only counted."""
FRACTIONS_SHOWN = 12
EXAMPLES_SHOWN = 20
EXAMPLE_LENGTH = 1000
NAME_LENGTH = 80
SHORT_NAME_LENGTH = 40
"""Most characters of a name in a figure."""
LAST_WORD = re.compile(r"(?<=[a-z0-9])[A-Z][a-z]+$")
DUPLICATE_STEP = re.compile("duplic|dedup|minhash", re.IGNORECASE)
"""Names of the steps that remove repeated text."""
KEPT = "#2a9d78"
OTHERS = "#7a8290"
LEFT_OUT = "#d9822b"


# ---------------------------------------------------------------- pages and sections


def is_data_folder(path: Path) -> bool:
    """Whether the folder was made by ``daybreak prepare``; a run folder, which may contain one, is not."""
    return (path / MANIFEST).is_file()


def write_corpus_page(folder: Path, out: Path, *, form: str = "html", text: bool = True) -> Path:
    """Write the page about a data folder and return its path; ``form`` and ``text`` as for ``report``.

    Raises:
        UserError: the folder has no report on its text or a damaged one, or ``out`` cannot be written.
    """
    if out.is_dir():
        raise UserError(f"'{out}' is a folder.", "Name the file to write, as in `--out corpus.html`.")
    page = corpus_page(folder, text=text)
    make_folder(out.parent)
    write_text(out, as_markdown(page) if form == "md" else page)
    return out


def corpus_page(folder: Path, *, text: bool = True) -> str:
    """Return the page about a data folder.

    Args:
        text: whether examples of what was left out may be on it.

    Raises:
        UserError: the folder is not a data folder, was prepared by an earlier version, or has a damaged file.
    """
    if not is_data_folder(folder):
        reason = f"has no {MANIFEST}" if folder.is_dir() else "does not exist"
        raise UserError(f"'{folder}' is not a data folder: it {reason}.", "Give a folder made by `daybreak prepare`.")
    if not (folder / CORPUS_FILE).is_file():
        raise UserError(f"'{folder}' has no {CORPUS_FILE}: an earlier version prepared it.", "Prepare the text again.")
    report = read_json(folder / CORPUS_FILE, CorpusReport)
    if not text:
        report = replace(report, steps=[replace(step, examples=[]) for step in report.steps])
    manifest = read_json(folder / MANIFEST, Manifest)
    name = folder.resolve().name
    unread = ", ".join(f"{number:,} {reason}" for reason, number in manifest.skipped.items() if number)
    skipped = [note(f"Left out while reading: {unread}.", "quiet")] if unread else []
    body = [
        header(
            "Daybreak corpus report", name, f"prepared with the preset {report.preset}", sentence(report), *skipped,
            tiles(_tiles(report, manifest)),
        ),
        *sections(report),
        section("Prepared data", tag("div", text_facts(manifest), class_="card")),
    ]  # fmt: skip
    return document(f"{name} - Daybreak corpus report", body, "the files of the prepared data")


def _tiles(report: CorpusReport, manifest: Manifest) -> list[tuple[str, str, str]]:
    passes = sum(step.passes for step in report.steps)
    read = report.steps[0].documents_in if report.steps else report.documents
    ratio = significant(report.characters / report.tokens) if report.tokens > 0 else UNKNOWN
    found = [
        (count(report.documents), "documents", f"{manifest.heldout.documents:,} held out"),
        (count(report.characters), "characters", many(report.words, "word")),
        (count(report.tokens), "tokens", f"of {ratio} characters"),
        (fraction(max(0, read - report.documents), read), "of the documents left out", f"of {count(read)} read"),
    ]
    if math.isfinite(report.seconds):
        found.append((duration(report.seconds), "to prepare", f"the text was read {2 + max(0, passes)} times"))
    return found


def sections(report: CorpusReport) -> list[Markup]:
    """All sections about a text."""
    return [steps(report), documents(report), sources(report), contamination(report), tokenizer(report)]


def training_text(runs: Sequence[RunRecords]) -> Markup:
    """The short section in the report of runs; runs with the same text share it. Nothing without a corpus report."""
    reports: list[tuple[CorpusReport, list[str]]] = []
    for run in runs:
        if run.corpus is not None:
            labels = next((labels for report, labels in reports if report == run.corpus), None)
            if labels is None:
                reports.append((run.corpus, [run.label]))
            else:
                labels.append(run.label)
    if not reports:
        return NOTHING
    title = "Training text"
    if len(reports) > 1:  # without plots, which cannot be sized inside a fold
        parts = ((", ".join(labels), report) for report, labels in reports)
        return section(
            title, *(fold(name, sentence(report), *_short(report), _scripts(report)) for name, report in parts)
        )
    report = reports[0][0]
    return section(title, *_short(report), grid(_lengths(report), _scripts(report)), caption=sentence(report))


def _short(report: CorpusReport) -> list[Markup]:
    return [steps_table(report), sources_table(report)]


def sentence(report: CorpusReport) -> str:
    """The size of the text and what was left out."""
    size = (
        f"{many(report.documents, 'document')} with {many(report.characters, 'character')}, "
        f"{many(report.words, 'word')} and {many(report.tokens, 'token')}."
    )
    if not report.steps:
        return f"{size} No filter was applied."
    first, last = report.steps[0], report.steps[-1]
    documents, characters = first.documents_in - last.documents_out, first.characters_in - last.characters_out
    by = sorted((step for step in report.steps if dropped(step)[0]), key=lambda step: -dropped(step)[0])
    if documents <= 0 or not by:
        return f"{size} No document was left out."
    names = [f"{step_name(step.name)} ({fraction(dropped(step)[0], first.documents_in)})" for step in by[:3]]
    names += [many(len(by) - 3, "other")] if len(by) > 3 else []
    filters = f"the filters {', '.join(names[:-1])} and {names[-1]}" if len(by) > 1 else step_name(by[0].name)
    return (
        f"{size} Of {many(first.documents_in, 'document')} read, {fraction(documents, first.documents_in)} were left "
        f"out, with {fraction(max(0, characters), first.characters_in)} of the characters, by {filters}."
    )


def steps(report: CorpusReport) -> Markup:
    """What each step left out and why, with examples if the user asked for them."""
    title = "What was left out"
    if not report.steps:
        return section(title, note("No filter was applied."))
    plot = where_it_went(report)
    bars = figure("Kept and left out", "Each bar is all text read.", plot, _key(plot), numbers=False)
    caption = "Steps in their order: each gets what the step before it kept. Percentages are of the input of the step."
    parts = [bars if plot["data"] else NOTHING, steps_table(report), *map(_examples, report.steps)]
    return section(title, *parts, caption=caption)


def _examples(step: StepReport) -> Markup:
    if not step.examples:
        return NOTHING
    style = "white-space: pre-wrap; overflow-wrap: anywhere"
    shown = [
        join(tag("h3", example.reason), tag("pre", clipped(example.text, EXAMPLE_LENGTH), dir="auto", style=style))
        for example in step.examples[:EXAMPLES_SHOWN]
    ]
    return fold(f"Left out by {step_name(step.name)}: {many(len(step.examples), 'example')}", *shown)


def documents(report: CorpusReport) -> Markup:
    """Lengths, compressibility, scripts, languages and duplicates."""
    cards = [_scripts(report), _bars("Languages, by fraction of the documents", report.languages), _duplicates(report)]
    rows = [grid(_lengths(report), _compressibility(report)), grid(*cards, columns="three" if all(cards) else "pair")]
    caption = "" if report.languages else "Languages were not identified: no language model was given."
    return section("Documents", *rows, caption=caption)


def _lengths(report: CorpusReport) -> Markup:
    plot = lengths(report.lengths)
    middle = median(bins(report.lengths))
    if not plot["data"] or middle is None:
        return NOTHING
    value = count(float(f"{middle[1]:.2g}")) if 1 <= middle[1] < 1e15 else f"{middle[1]:.2g}"
    mean = f" The mean is {count(report.characters / report.documents)}." if report.documents > 0 else ""
    return figure("Lengths", f"The median is about {value} characters.{mean}", plot)


def _compressibility(report: CorpusReport) -> Markup:
    plot = compressibility(report.compressibility)
    above = incompressible(report.compressibility)
    here = f" Here {fraction(above, 1)} of the kept documents are at or above it." if above is not None else ""
    caption = (
        "Tokens per character: high for text unlike the rest, such as tables and codes. The published runs of Cramming "
        f"leave out documents at {INCOMPRESSIBLE} or above.{here}"
    )
    return figure("Compressibility", caption, plot) if plot["data"] else NOTHING


def _scripts(report: CorpusReport) -> Markup:
    return _bars("Scripts, by fraction of the letters", report.scripts)


def _bars(title: str, fractions: Mapping[str, float]) -> Markup:
    """A card with a bar for each name; small fractions together if there are many."""
    found = sorted(((name, part) for name, part in fractions.items() if 0 < part <= 1), key=lambda pair: -pair[1])
    if not found:
        return NOTHING
    shown, rest = found[:FRACTIONS_SHOWN], found[FRACTIONS_SHOWN:]
    if rest:
        shown.append((f"{len(rest)} others", min(1.0, math.fsum(part for _, part in rest))))

    def words(part: float) -> str:
        return f"{100 * part:.0f} %" if part >= 0.0995 else f"{100 * part:.1f} %" if part >= 0.0005 else "< 0.1"

    return card(title, *markup.bars([(clipped(name, NAME_LENGTH), part, words(part), False) for name, part in shown]))


def _duplicates(report: CorpusReport) -> Markup:
    found = {}
    for step in report.steps:
        if DUPLICATE_STEP.search(step.name):
            number, characters = dropped(step)
            found[step_name(step.name)] = (
                f"{many(number, 'document')} ({fraction(number, step.documents_in)}), "
                f"{fraction(characters, step.characters_in)} of the characters"
            )
    return card("Duplicates left out", facts(found) if found else note("No step removed duplicates.", "quiet"))


def _key(plot: Figure) -> Markup:
    """The colours of a bar; the names were escaped for the plot."""
    return legend(*(("dot", trace["marker"]["color"], Markup(trace["name"])) for trace in plot["data"]))


def sources(report: CorpusReport) -> Markup:
    """What each input contributed and lost, and its fraction of the training text."""
    if not report.sources:
        return NOTHING
    several = len(report.sources) > 1
    plot = source_mix(report, short_names([source.path for source in report.sources]))
    caption = "By characters: as read, after all steps, and with the epochs of each source if they differ."
    bars = figure("Characters by source", caption, plot, _key(plot), numbers=False)
    shown = bars if several and plot["data"] else NOTHING
    return section("Sources" if several else "Source", shown, sources_table(report))


def contamination(report: CorpusReport) -> Markup:
    """How much of each evaluation text is in the corpus."""
    title = "Contamination with evaluation text"
    if not report.contamination:
        return section(title, note("No evaluation text was given, so none was searched for."))
    head = ("Evaluation text", "Action", "Items searched", "Found", "Fraction", "Documents with items")
    names = short_names([found.path for found in report.contamination])
    rows = [_contamination_row(name, found) for name, found in zip(names, report.contamination)]
    caption = (
        "An item is a line of an evaluation text with 8 words or more. It is found if the corpus has any 13 of its "
        "words in a row, or all of them if it has 12 or fewer."
    )
    return section(title, table(head, rows, words=2), caption=caption)


def _contamination_row(name: str, found: Contamination) -> list[Markup | str]:
    action = "none needed" if found.items_found == 0 else "documents removed" if found.removed else "only reported"
    kind = "best" if found.removed or found.items_found == 0 else "poor"
    return [
        clipped(name, NAME_LENGTH),
        tag("b", action, class_=kind),
        f"{found.items:,}",
        f"{found.items_found:,}",
        fraction(found.items_found, found.items),
        f"{found.documents:,}",
    ]


def tokenizer(report: CorpusReport) -> Markup:
    """Properties of the tokenizer on held-out text, and of other vocabulary sizes."""
    own, advice = report.tokenizer, report.advice
    rows = [_quality_row("this tokenizer", own)] if own else []
    parts: list[Markup] = []
    if advice is not None:
        for quality in sorted(advice.sizes, key=lambda each: each.vocabulary):
            name = "recommended" if quality.vocabulary == advice.recommended else "another size"
            rows.append(_quality_row(name, quality))
        parts.append(note(f"Recommended: {advice.recommended:,} tokens. {advice.why}"))
        plot = vocabulary_curve(advice, own)
        key = [("marked", "var(--accent)", "trained on this text"), ("dot", KEPT, "recommended")]
        key += [("dot", LEFT_OUT, "the tokenizer of this data")] if own else []
        caption = "Higher: more text in a sequence. Further right: more parameters in the embedding."
        curve = figure("Vocabulary size", caption, plot, legend(*key), numbers=False)
        parts += [curve] if plot["data"] else []
    if own is None and advice is None:
        return NOTHING
    head = ("Tokenizer", "Vocabulary", "Characters per token", "Tokens per word", "Whole words", "Unknown tokens")
    caption = "On held-out text. Words are separated by whitespace; a word is covered if it has no unknown token."
    return section("Tokenizer", *parts, table((*head, "Words covered"), rows) if rows else NOTHING, caption=caption)


def _quality_row(name: str, quality: TokenizerQuality) -> list[Markup | str]:
    rates = quality.characters_per_token, quality.tokens_per_word
    fractions = quality.whole_words, quality.unknown_tokens, quality.covered_words
    return [
        tag("b", name),
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


def dropped(step: StepReport) -> tuple[int, int]:
    """(documents, characters) that a step left out."""
    return max(0, step.documents_in - step.documents_out), max(0, step.characters_in - step.characters_out)


def step_name(name: str) -> str:
    """The class name of a step as words: ``NearDuplicates`` -> ``Near duplicates``; long names are cut."""
    return clipped(LAST_WORD.sub(lambda found: f" {found[0].lower()}", name), SHORT_NAME_LENGTH)


def clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def steps_table(report: CorpusReport) -> Markup:
    """One row per step; nothing without steps."""
    head = ("Step", "Reasons", "Left out", "Fraction", "Of the characters", "Documents kept")
    return table(head, [_step_row(step) for step in report.steps], words=2) if report.steps else NOTHING


def _step_row(step: StepReport) -> list[Markup | str]:
    number, characters = dropped(step)
    passes = ["", "; reads the text once more", f"; reads the text {step.passes} times more"][
        min(2, max(0, step.passes))
    ]
    reasons = sorted(step.reasons.items(), key=lambda pair: -pair[1])
    shown, rest = reasons[:REASONS_SHOWN], reasons[REASONS_SHOWN:]
    lines = [f"{clipped(reason, NAME_LENGTH)}: {documents:,}" for reason, documents in shown]
    lines += [f"{many(len(rest), 'further reason')}: {sum(documents for _, documents in rest):,}"] if rest else []
    return [
        join(step_name(step.name), small(join(step.why.rstrip("."), passes))),
        join(*(tag("div", line) for line in lines)) if lines else UNKNOWN,
        f"{number:,}",
        fraction(number, step.documents_in),
        fraction(characters, step.characters_in),
        f"{step.documents_out:,}",
    ]


def sources_table(report: CorpusReport) -> Markup:
    """One row per input; nothing without inputs. Many rows are folded, very many only counted."""
    found = report.sources
    if not found:
        return NOTHING
    with_epochs = any(source.epochs != 1 for source in found)
    weights = [source.kept_characters * source.epochs if math.isfinite(source.epochs) else 0.0 for source in found]
    whole = math.fsum(weights)
    rows = []
    for name, source, weight in zip(short_names([source.path for source in found]), found, weights):
        row = [clipped(name, NAME_LENGTH), f"{source.documents:,}", _lost(source.documents, source.kept_documents)]
        row += [count(source.characters), _lost(source.characters, source.kept_characters)]
        row += [significant(source.epochs)] if with_epochs else []
        rows.append([*row, fraction(weight, whole)])
    head = ["Source", "Documents read", "Left out", "Characters read", "Left out"]
    head += [*(["Epochs"] if with_epochs else []), "Fraction of the training text"]
    more, uncounted = rows[ROWS_SHOWN : ROWS_SHOWN + ROWS_FOLDED], len(rows) - ROWS_SHOWN - ROWS_FOLDED
    return join(
        table(head, rows[:ROWS_SHOWN]),
        *([fold(f"{len(rows) - ROWS_SHOWN:,} more", table(head, more))] if more else []),
        *([note(f"and {uncounted:,} not shown", "quiet")] if uncounted > 0 else []),
    )


def _lost(read: int, kept: int) -> str:
    return fraction(max(0, read - kept), read)


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that differ, so that a page does not show home folders."""
    paths = ["standard input" if path == "-" else path for path in paths]
    names = paths
    for depth in range(1, 6):
        names = [path if "://" in path else "/".join(path.rstrip("/").split("/")[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


# ---------------------------------------------------------------- figures


@dataclass(frozen=True, kw_only=True)
class Bin:
    """One bar of a histogram; the outermost bars also hold what lies beyond their edge."""

    low: float
    high: float
    count: int
    first: bool
    last: bool

    @property
    def words(self) -> str:
        if self.first and self.last:
            return "any"
        if self.first:
            return f"below {edge(self.high)}"
        return f"{edge(self.low)} or more" if self.last else f"{edge(self.low)} to {edge(self.high)}"


def bins(histogram: Histogram) -> list[Bin]:
    """The bins from the first to the last that is not empty; none if the record is invalid."""
    edges, counts = histogram.edges, histogram.counts
    rising = all(map(math.isfinite, edges)) and all(low < high for low, high in pairwise(edges))
    if not rising or len(edges) != len(counts) + 1 or min(counts, default=0) < 0 or not any(counts):
        return []
    full = [place for place, number in enumerate(counts) if number]
    last = len(counts) - 1
    return [
        Bin(low=edges[place], high=edges[place + 1], count=counts[place], first=place == 0, last=place == last)
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
    layout = _histogram_layout("characters", found)
    edges = [*(each.low for each in found), *(each.high for each in found[-1:])]
    places = range(0, len(edges), -(-len(edges) // LABELS) or 1)
    ticks = {"tickvals": list(places), "ticktext": [edge(edges[place]) for place in places], "tickangle": 0}
    layout["xaxis"] |= ticks | {"range": [-0.1, len(found) + 0.1]}
    middle = median(found)
    if middle is not None:
        straight_line(layout, "var(--ink)", x=middle[0])
        upright_label(layout, "median", middle[0])
    centres = [place + 0.5 for place in range(len(found))]
    return _histogram(layout, found, centres, 1.0, "characters", "var(--accent)")


def compressibility(histogram: Histogram) -> Figure:
    """Percentage of the documents by tokens per character, with Cramming's limit."""
    found = bins(histogram)
    layout = _histogram_layout("tokens per character", found)
    low = min([INCOMPRESSIBLE, *(each.low for each in found[:1])])
    high = max([INCOMPRESSIBLE, *(each.high for each in found[-1:])])
    layout["xaxis"]["range"] = [low, high + (high - low) / 20]
    straight_line(layout, "var(--ink)", x=INCOMPRESSIBLE)
    upright_label(layout, f"{INCOMPRESSIBLE}", INCOMPRESSIBLE)
    tints = [LEFT_OUT if each.low >= INCOMPRESSIBLE else "var(--accent)" for each in found]
    centres = [each.low + (each.high - each.low) / 2 for each in found]
    widths = [each.high - each.low for each in found]
    return _histogram(layout, found, centres, widths, "tokens per character", tints)


def incompressible(histogram: Histogram) -> float | None:
    """Fraction of the documents that Cramming would leave out; None if the limit is not an edge of the histogram."""
    found = bins(histogram)
    below = [each for each in found if each.high <= INCOMPRESSIBLE]
    above = [each for each in found if each.low >= INCOMPRESSIBLE]
    if not found or len(below) + len(above) < len(found):
        return None
    return sum(each.count for each in above) / sum(each.count for each in found)


def _histogram_layout(title: str, found: Sequence[Bin]) -> Figure:
    """The layout of a histogram, with room above the highest bar for the label of a line."""
    layout = base_layout(title, "% of the documents", bargap=0.04, hovermode="closest")
    whole = sum(each.count for each in found)
    layout["yaxis"]["range"] = [0, 115 * max(each.count for each in found) / whole] if whole else [0, 1]
    return layout


def _histogram(
    layout: Figure, found: Sequence[Bin], x: list[float], width: float | list[float], unit: str, tint: str | list[str]
) -> Figure:
    whole = sum(each.count for each in found)
    percentages = [100 * each.count / whole for each in found]
    words = [f"{each.words} {unit}: {each.count:,} documents, {y:.2g} %" for each, y in zip(found, percentages)]
    bar = {"type": "bar", "x": x, "y": percentages, "width": width, "name": unit, "marker": {"color": tint}}
    return {"data": [bar | {"hovertext": words, "hoverinfo": "text"}] if whole else [], "layout": layout}


def where_it_went(report: CorpusReport) -> Figure:
    """A bar of the documents and a bar of the characters read: what was kept, and what each step left out."""
    parts = {"kept": (float(max(0, report.documents)), float(max(0, report.characters)))}
    for place, step in enumerate(report.steps, start=1):
        number, characters = dropped(step)
        parts[f"{place}. {step_name(step.name)}"] = float(number), float(characters)
    return _stacked(("documents", "characters"), parts, first=KEPT)


def source_mix(report: CorpusReport, names: Sequence[str]) -> Figure:
    """Bars of the characters by source: as read, as kept, and with epochs if they differ."""
    epochs = [source.epochs if math.isfinite(source.epochs) else 0.0 for source in report.sources]
    rows = ("read", "kept", "with epochs") if any(each != 1 for each in epochs) else ("read", "kept")
    parts = {
        f"{place}. {name}": (
            float(max(0, source.characters)),
            float(max(0, source.kept_characters)),
            max(0.0, source.kept_characters * times),
        )[: len(rows)]
        for place, (name, source, times) in enumerate(zip(names, report.sources, epochs), start=1)
    }
    return _stacked(rows, parts)


def _stacked(rows: Sequence[str], parts: Mapping[str, Sequence[float]], first: str | None = None) -> Figure:
    """Stacked bars without empty parts; the smallest parts together if there are many.

    Args:
        first: the colour of the first part, if it differs in kind from the others.
    """
    names = {name: clipped(name, SHORT_NAME_LENGTH) for name, values in parts.items() if any(values)}
    largest = sorted(names, key=lambda name: -max(parts[name]))[:SEGMENTS]
    shown = {names[name]: parts[name] for name in names if name in largest}
    tints = dict(zip(shown, (tint for tint in RUN_COLOURS if tint != first)))
    if first and next(iter(parts)) in largest:
        tints = {next(iter(shown)): first} | dict(zip(list(shown)[1:], (each for each in RUN_COLOURS if each != first)))
    if rest := [parts[name] for name in names if name not in largest]:
        shown["others"] = [math.fsum(values) for values in zip(*rest)]
        tints["others"] = OTHERS
    return stacked_bars(rows, shown, tints)


def vocabulary_curve(advice: VocabularyAdvice, own: TokenizerQuality | None) -> Figure:
    """Characters per token by vocabulary size; the recommended size and the tokenizer of the data are marked."""
    sizes = sorted((each for each in advice.sizes if _drawable(each)), key=lambda each: each.vocabulary)
    layout = base_layout("tokens in the vocabulary", "characters per token", hovermode="closest")
    ticks = [each.vocabulary for each in thinned(sizes, LABELS)]
    layout["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [f"{size:,}" for size in ticks]}
    best = [each for each in sizes if each.vocabulary == advice.recommended][:1]
    mine = [own] if own is not None and _drawable(own) else []
    ring = {"size": 14, "symbol": "circle-open", "color": KEPT, "line": {"width": 3}}
    text = {"text": ["recommended"], "textposition": "bottom right", "marker": ring}
    traces: list[tuple[str, list[TokenizerQuality], str, dict[str, Any]]] = [
        ("trained on this text", sizes, "var(--accent)", {}),
        ("recommended", best, KEPT, {"mode": "markers+text", **text}),
        ("the tokenizer of this data", mine, LEFT_OUT, {"mode": "markers", "size": 10, "symbol": "diamond"}),
    ]
    data = [
        scatter(
            name, [each.vocabulary for each in found], [each.characters_per_token for each in found], tint,
            hover="%{x:,} tokens, %{y:.3~g} characters:", **look,
        )
        for name, found, tint, look in traces
        if found
    ]  # fmt: skip
    return {"data": data, "layout": layout}


def _drawable(quality: TokenizerQuality) -> bool:
    return quality.vocabulary > 0 and math.isfinite(quality.characters_per_token)
