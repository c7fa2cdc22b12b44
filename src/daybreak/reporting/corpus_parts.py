"""What ``daybreak prepare`` found out about a text, as parts of a page: of a data folder's own, or of a run's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from daybreak.core.formatting import count
from daybreak.reporting import corpus_figures
from daybreak.reporting.corpus_figures import KEPT, LEFT_OUT, clipped, dropped, spoken
from daybreak.reporting.corpus_tables import (
    NAME_LENGTH,
    contamination_table,
    many,
    share,
    short_names,
    sources_table,
    steps_table,
    tokenizer_table,
)
from daybreak.reporting.markup import Markup, facts, figure, fold, join, legend, note, section, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.sections import NOTHING
from daybreak.schemas.corpus import CorpusReport, StepReport

SHARES_SHOWN = 12
EXAMPLES_SHOWN = 20
EXAMPLE_LENGTH = 1000
IN_A_ROW = "margin-top: 0"
"""Of a card beside others, whose row keeps the distance."""
SAME_TEXT = re.compile("duplic|dedup|minhash", re.IGNORECASE)
"""Names of the steps that look for text that stands in the corpus more than once."""


def the_text(runs: Sequence[RunRecords]) -> Markup:
    """The section of a run's report, in short; runs on the same text share it, and runs that know of none have none."""
    told: list[tuple[CorpusReport, list[str]]] = []
    for run in runs:
        if run.corpus is None:
            continue
        whose = next((labels for report, labels in told if report == run.corpus), None)
        if whose is None:
            told.append((run.corpus, [run.label]))
        else:
            whose.append(run.label)
    if not told:
        return NOTHING
    if len(told) > 1:  # a plot behind a title would be drawn for a page without width
        return section(
            "The text", *(fold(", ".join(labels), sentence(report), *_short(report)) for report, labels in told)
        )
    report = told[0][0]
    plot = _lengths(report)
    scripts = _scripts(report)
    pair = tag("div", *filter(None, (plot, scripts)), class_="pair") if plot or scripts else NOTHING
    return section("The text", *_short(report, scripts=False), pair, caption=sentence(report))


def _short(report: CorpusReport, scripts: bool = True) -> list[Markup]:
    return [steps_table(report), sources_table(report), _scripts(report) if scripts else NOTHING]


def sentence(report: CorpusReport) -> str:
    """How much text there is and what was left out, in plain words."""
    size = (
        f"{many(report.documents, 'document')} with {many(report.characters, 'character')}, "
        f"{many(report.words, 'word')} and {many(report.tokens, 'token')}."
    )
    if not report.steps:
        return f"{size} Nothing was looked for that could have been left out."
    first, last = report.steps[0], report.steps[-1]
    gone, characters = first.documents_in - last.documents_out, first.characters_in - last.characters_out
    by = sorted((step for step in report.steps if dropped(step)[0]), key=lambda step: -dropped(step)[0])
    if gone <= 0 or not by:
        return f"{size} No document was left out."
    named = [f"{spoken(step.name)} ({share(dropped(step)[0], first.documents_in)})" for step in by[:3]]
    named += [many(len(by) - 3, "other")] if len(by) > 3 else []
    whose = f"by the steps {', '.join(named[:-1])} and {named[-1]}" if len(by) > 1 else f"all by {spoken(by[0].name)}"
    return (
        f"{size} Of {many(first.documents_in, 'document')} read, {share(gone, first.documents_in)} were left out, and "
        f"with them {share(max(0, characters), first.characters_in)} of the characters, {whose}."
    )


def steps(report: CorpusReport) -> Markup:
    """What each step left out and why, with examples where the user asked for them."""
    if not report.steps:
        return section("What was left out", note("No step looked for anything to leave out."))
    plot = corpus_figures.where_it_went(report)
    bars = (
        figure("Where the text went", "Each bar is all that was read.", plot, _key(plot), numbers=False)
        if plot["data"]
        else NOTHING
    )
    caption = "Steps in their order: each evaluates what the one before it left. Shares are of what came to the step."
    return section("What was left out", bars, steps_table(report), *map(_examples, report.steps), caption=caption)


def _examples(step: StepReport) -> Markup:
    if not step.examples:
        return NOTHING
    look = "white-space: pre-wrap; overflow-wrap: anywhere"
    shown = [
        join(tag("h3", one.reason), tag("pre", clipped(one.text, EXAMPLE_LENGTH), dir="auto", style=look))
        for one in step.examples[:EXAMPLES_SHOWN]
    ]
    return fold(f"Left out by {spoken(step.name)}: {many(len(step.examples), 'example')}", *shown)


def documents(report: CorpusReport) -> Markup:
    """Lengths, compressibility, scripts, languages and duplicates."""
    plots = list(filter(None, (_lengths(report), _compressibility(report))))
    cards = list(filter(None, (_scripts(report), _languages(report), _duplicates(report))))
    rows = [tag("div", *plots, class_="pair")] if plots else []
    rows.append(tag("div", *cards, class_="three" if len(cards) > 2 else "pair"))
    caption = "" if report.languages else "Languages were not judged: no model for it was given."
    return section("The documents", *rows, caption=caption)


def _lengths(report: CorpusReport) -> Markup:
    plot = corpus_figures.lengths(report.lengths)
    middle = corpus_figures.median(corpus_figures.bins(report.lengths))
    if not plot["data"] or middle is None:
        return NOTHING
    mean = f" The mean is {count(report.characters / report.documents)}." if report.documents > 0 else ""
    caption = f"Half of the documents are shorter than about {_about(middle[1])} characters.{mean}"
    return figure("Lengths", caption, plot)


def _about(value: float) -> str:
    """Two significant digits: more would say more than a histogram knows."""
    return count(float(f"{value:.2g}")) if 1 <= value < 1e15 else f"{value:.2g}"


def _compressibility(report: CorpusReport) -> Markup:
    plot = corpus_figures.compressibility(report.compressibility)
    beyond = corpus_figures.incompressible(report.compressibility)
    if not plot["data"]:
        return NOTHING
    here = f" Of the documents kept here, {share(beyond, 1)} are there." if beyond is not None else ""
    caption = (
        "Tokens per character: many where a text is unlike the rest, as tables and codes are. The published runs of "
        f"Cramming leave out documents at {corpus_figures.INCOMPRESSIBLE} or above.{here}"
    )
    return figure("Compressibility", caption, plot)


def _scripts(report: CorpusReport) -> Markup:
    return _bars("Scripts, by share of the letters", report.scripts)


def _languages(report: CorpusReport) -> Markup:
    return _bars("Languages, by share of the documents", report.languages)


def _bars(title: str, shares: Mapping[str, float]) -> Markup:
    """A card with a bar for each name; small ones together where there are many."""
    told = sorted(((name, part) for name, part in shares.items() if 0 < part <= 1), key=lambda pair: -pair[1])
    if not told:
        return NOTHING
    rest = told[SHARES_SHOWN:]
    shown = told[:SHARES_SHOWN]
    if rest:
        shown += [(f"{len(rest)} others", min(1.0, math.fsum(part for _, part in rest)))]
    bars = [
        tag(
            "div",
            tag("span", clipped(name, NAME_LENGTH)),
            tag("u", style=f"--p:{100 * part:.1f}%"),
            tag(
                "em", f"{100 * part:.0f} %" if part >= 0.0995 else f"{100 * part:.1f} %" if part >= 0.0005 else "< 0.1"
            ),
            class_="guess",
        )
        for name, part in shown
    ]
    return tag("div", tag("h3", title), *bars, class_="card", style=IN_A_ROW)


def _duplicates(report: CorpusReport) -> Markup:
    found = {}
    for step in report.steps:
        if SAME_TEXT.search(step.name):
            number, characters = dropped(step)
            found[spoken(step.name)] = (
                f"{many(number, 'document')} ({share(number, step.documents_in)}), "
                f"{share(characters, step.characters_in)} of the characters"
            )
    body = facts(found) if found else note("No step looked for them.", "quiet")
    return tag("div", tag("h3", "Duplicates left out"), body, class_="card", style=IN_A_ROW)


def _key(plot: corpus_figures.Figure) -> Markup:
    """What the colours of a bar mean; the names were escaped for the plot."""
    return legend(*(("dot", trace["marker"]["color"], Markup(trace["name"])) for trace in plot["data"]))


def sources(report: CorpusReport) -> Markup:
    """What each input gave, what it lost, and what share of the training text it is."""
    if not report.sources:
        return NOTHING
    plot = corpus_figures.source_mix(report, short_names([source.path for source in report.sources]))
    several = len(report.sources) > 1 and bool(plot["data"])
    caption = (
        "Shares of the characters: as read, after all steps, and with the epochs of each source where they differ."
    )
    bars = figure("Characters by source", caption, plot, _key(plot), numbers=False) if several else NOTHING
    return section("Sources" if len(report.sources) > 1 else "Source", bars, sources_table(report))


def contamination(report: CorpusReport) -> Markup:
    """How much of each evaluation text stands in the corpus."""
    if not report.contamination:
        return section("Evaluation text in it", note("No evaluation text was handed in, so none was looked for."))
    caption = (
        "An item is a line of an evaluation text with 8 words or more; it is found where the corpus holds any 13 of "
        "its words in a row, or all of them where it has no more than 12."
    )
    return section("Evaluation text in it", contamination_table(report.contamination), caption=caption)


def tokenizer(report: CorpusReport) -> Markup:
    """How the tokenizer treats held-out text, and what other sizes of the vocabulary would give."""
    own, advice = report.tokenizer, report.advice
    if own is None and advice is None:
        return NOTHING
    parts: list[Markup] = []
    if advice is not None:
        parts.append(note(f"Recommended: {advice.recommended:,} pieces. {advice.why}"))
        plot = corpus_figures.vocabulary_curve(advice, own)
        entries = [("marked", "var(--accent)", "made from this text"), ("dot", KEPT, "recommended")]
        key = legend(*entries, *([("dot", LEFT_OUT, "the tokenizer of this data")] if own else []))
        caption = "The higher, the more text a row of tokens holds; the larger, the more of the model is embeddings."
        parts += [figure("Size of the vocabulary", caption, plot, key, numbers=False)] if plot["data"] else []
    caption = "On held-out text. A word is what whitespace parts; it is covered when it holds no unknown token."
    return section("The tokenizer", *parts, tokenizer_table(report), caption=caption)
