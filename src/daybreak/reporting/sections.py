"""The plots and what was learned: training, time, tasks, examples. Each section says or leaves out what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from daybreak.core.formatting import significant
from daybreak.reporting import figures
from daybreak.reporting.events import events
from daybreak.reporting.flops import trained
from daybreak.reporting.markup import Markup, figure, fold, join, legend, note, section, table, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.time_figure import OTHER_USE, USE_COLOURS, USE_WORDS, spent
from daybreak.schemas.run import FillMask, RetrievalExample

EXAMPLES_SHOWN = 8
NOTHING = Markup("")
UNKNOWN = "-"


def run_name(runs: Sequence[RunRecords], number: int) -> Markup:
    """A run's label with the colour that it has in all plots."""
    return tag("span", tag("i", style=f"--c:{figures.colour(number)}"), runs[number].label)


def training(runs: Sequence[RunRecords]) -> Markup:
    """Losses, accuracy, learning rate and throughput."""
    if not any(run.pretrained_here for run in runs):
        return NOTHING
    if not any(run.steps or run.validations for run in runs):
        return section("Training", note("No step has been recorded yet."))
    tint = figures.colour(0) if len(runs) == 1 else "var(--ink)"
    entries = [("dotted", tint, "next-token loss (causal stage)")] if _has_causal(runs) else []
    entries += [("thin", tint, "masked loss, training")]
    entries += [("marked", tint, "masked loss, held out")]
    kinds = {event.kind for run in runs for event in events(run)} if len(runs) <= figures.CROWD else set()
    marks = [("bar", tint, kind) for kind, tint in figures.EVENT_COLOURS.items() if kind in kinds]
    key = legend(*entries, ("dashed", "var(--quiet)", "unigram plateau"), *marks)
    causal = (
        " The dotted part is the loss of predicting the next token, another quantity than the masked loss: it shows "
        "that the first stage learned, not how well."
        if _has_causal(runs)
        else ""
    )
    plateau = (
        "The dashed line is what knowing only token frequencies would give; below it, context is being used. The "
        "held-out curve is measured on the same rows throughout; the loss in the headline is of all held-out rows."
    )
    return section(
        "Training",
        figure("Loss against time", plateau + causal, figures.losses(runs, "time"), key),
        tag(
            "div",
            figure("Loss against tokens", "The same losses by tokens read.", figures.losses(runs, "tokens"), key),
            *_by_arithmetic(runs, key),
            figure(
                "Masked accuracy",
                "Share of hidden held-out tokens guessed right; dashed: always guessing the most frequent.",
                figures.accuracy(runs),
                legend(("marked", tint, "held out"), ("dashed", "var(--quiet)", "most frequent token")),
            ),
            figure("Learning rate", "The step size that the schedule gave.", figures.learning_rate(runs)),
            figure("Throughput", "Tokens read each second of training.", figures.throughput(runs)),
            class_="pair",
        ),
    )


def _by_arithmetic(runs: Sequence[RunRecords], key: Markup) -> list[Markup]:
    """Losses by operations, where they can be counted."""
    counted = [trained(run) is not None for run in runs]
    if not any(counted):
        return []
    caption = (
        "By floating-point operations, on a logarithmic axis: matrix products and attention of the steps that are part "
        "of the run, the backward pass twice the forward."
    )
    if not all(counted):
        caption += " Runs of an architecture that is not Daybreak's own cannot be counted."
    return [figure("Loss against FLOPs", caption, figures.losses(runs, "arithmetic"), key)]


def _has_causal(runs: Sequence[RunRecords]) -> bool:
    return any(step.stage == "causal" for run in runs for step in run.steps)


def time_spent(runs: Sequence[RunRecords]) -> Markup:
    """Where the seconds of the budget went."""
    told = [(number, run.summary) for number, run in enumerate(runs) if run.summary is not None]
    if not told:
        return NOTHING
    uses = list(
        dict.fromkeys(use for _, summary in told for use, seconds in summary.time_by_category.items() if seconds)
    )
    rows = []
    for number, summary in told:
        asked = join(f"{summary.elapsed:.1f} s", tag("small", f"asked: {summary.budget}"))
        whole = sum(summary.time_by_category.values())
        cells = [_seconds(summary.time_by_category.get(use, 0.0), whole) for use in uses]
        rows.append([run_name(runs, number), asked, *cells, f"{summary.parity_seconds:.1f} s"])
    key = legend(*(("dot", USE_COLOURS.get(use, OTHER_USE), USE_WORDS.get(use, use)) for use in uses))
    head = [USE_WORDS.get(use, use) for use in uses]
    return section(
        "Where the time went",
        figure(
            "The budget by use",
            "Everything from the start of the process counts.",
            spent(runs),
            key,
            numbers=False,
        ),
        table(("Run", "Charged", *head, "Parity gate (apart)"), rows),
    )


def context_use(runs: Sequence[RunRecords]) -> Markup:
    """Whether the models compare segments: the loss on masked tokens alone, beside copies, and by visible context."""
    measured = [
        (number, run.summary.context_use) for number, run in enumerate(runs) if run.summary and run.summary.context_use
    ]
    if not measured:
        return NOTHING
    widths = [each.tokens for each in measured[0][1].visible]
    beside = [
        [
            run_name(runs, number),
            *(
                join(f"{loss:.2f}", tag("small", f"{100 * accuracy:.0f} % right"))
                for loss, accuracy in (
                    (use.alone, use.alone_accuracy),
                    (use.copy, use.copy_accuracy),
                    (use.noisy_copy, use.noisy_copy_accuracy),
                )
            ),
            "yes" if use.attends_across_segments else "no",
        ]
        for number, use in measured
    ]
    visible = [[run_name(runs, number), *(f"{each.loss:.2f}" for each in use.visible)] for number, use in measured]
    return section(
        "Use of context",
        table(("Run", "Alone", "Beside a copy", "Beside a noisy copy", "Compares segments"), beside),
        table(("Run", *(f"{width} tokens visible" for width in widths)), visible),
        caption=(
            "Loss on masked tokens of held-out text, in nats. A model that compares segments finds a masked token in a "
            "copy of its text; a noisy copy lacks a fifth of the other tokens. A model that does not compare segments "
            "cannot learn similarity, paraphrase or entailment. The second table shows one masked token with only its "
            "nearest tokens visible."
        ),
    )


def search(runs: Sequence[RunRecords], *, text: bool) -> Markup:
    """How well passages of held-out documents are found, beside BM25.

    Args:
        text: whether examples may stand on the page.
    """
    measured = [(number, run.retrieval) for number, run in enumerate(runs) if run.retrieval]
    if not measured:
        return NOTHING
    rows = []
    for number, found in measured:
        for ranker in found.rankers:
            beats = ranker.beats_bm25("recall_10")
            verdict = UNKNOWN if ranker.ranker == "bm25" else "yes" if beats else "no"
            cells = [
                join(f"{100 * ranker.scores[metric]:.1f}", tag("small", f"{100 * low:.1f} to {100 * high:.1f}"))
                for metric, (low, high) in ranker.intervals.items()
            ]
            rows.append([join(run_name(runs, number), f" {RANKERS[ranker.ranker]}"), *cells, verdict])
    shown = [fold("Examples", *map(_found, found.examples)) for _, found in measured[:1] if text and found.examples]
    return section(
        "Search",
        table(("Ranker", "MRR", "Recall at 1", "Recall at 10", "Above BM25"), rows),
        *shown,
        caption=(
            f"Each of {measured[0][1].passages} queries is 20 words of a held-out document that stand 5 words after "
            "the passage to be found. Scores times 100 with 95 % intervals over queries. BM25 needs no network. Dense: "
            "cosine of embeddings. Hybrid: both. Above BM25: whether the interval of the difference in recall at 10 "
            "lies above zero."
        ),
    )


RANKERS = {"bm25": "BM25", "dense": "dense", "hybrid": "hybrid"}


def _found(example: RetrievalExample) -> Markup:
    where = "first" if example.rank == 1 else f"at rank {example.rank}"
    first = [] if example.rank == 1 else [tag("p", tag("b", "Ranked first: "), example.first)]
    own = tag("p", tag("b", f"Its passage, {where}: "), example.passage)
    return tag("div", tag("p", tag("b", "Query: "), example.query), own, *first, class_="card")


def _seconds(part: float, whole: float) -> Markup:
    """A use and its share, of which small ones matter: what watches a run should cost less than 1 % of it."""
    return join(f"{part:.1f} s", tag("small", f"{100 * part / whole:.2f} %" if whole else UNKNOWN))


def examples(runs: Sequence[RunRecords]) -> Markup:
    """What the model writes into the gap, on sentences it has never read."""
    told = [(number, run) for number, run in enumerate(runs) if run.examples]
    if not told:
        return NOTHING
    blocks: list[Markup] = []
    for number, run in told:
        shown, more = run.examples[:EXAMPLES_SHOWN], run.examples[EXAMPLES_SHOWN:]
        right = sum(_same(example, 0) for example in run.examples)
        title = f"{right} of {len(run.examples)} first guesses right"
        first = [tag("h3", run_name(runs, number), f": {title}")] if len(runs) > 1 else []
        rest = [fold(f"{len(more)} more", *map(_example, more))] if more else []
        card = tag("div", *first, *map(_example, shown), *rest, class_="card")
        blocks.append(card if len(runs) == 1 or not blocks else fold(f"{run.label}: {title}", card))
    caption = (
        "One word of each held-out sentence was hidden; the model's guesses stand beside it with their probability."
    )
    return section("Fill-mask examples", *blocks, caption=caption)


def _example(example: FillMask) -> Markup:
    before, gap, after = example.text.partition("[MASK]")
    text = tag("p", before, *([tag("mark", gap)] if gap else []), after)
    guesses = [
        tag(
            "div",
            tag("span", guess),
            tag("u", style=f"--p:{100 * min(max(probability, 0.0), 1.0):.0f}%"),
            tag("em", f"{100 * probability:.0f} %"),
            class_="guess right" if _same(example, place) else "guess",
        )
        for place, (guess, probability) in enumerate(zip(example.guesses, example.probabilities))
    ]
    hidden = tag("p", "hidden word: ", tag("b", example.answer), class_="answer")
    return tag("div", tag("div", text, hidden), tag("div", *guesses), class_="example")


def _same(example: FillMask, place: int) -> bool:
    return place < len(example.guesses) and example.guesses[place].strip().lower() == example.answer.strip().lower()


def distinct(run: RunRecords) -> str | None:
    """How varied the predictions are, in words."""
    found = run.validation
    return f"{found.distinct:,} different tokens on {found.positions:,} positions" if found else None


def learning_rate_peak(run: RunRecords) -> str | None:
    return significant(max(step.learning_rate for step in run.steps)) if run.steps else None
