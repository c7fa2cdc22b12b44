"""What probing found without fine-tuning: layer by layer, word by word."""

from __future__ import annotations

from collections.abc import Sequence

from daybreak.core.formatting import percent, score
from daybreak.reporting import figures
from daybreak.reporting.layer_figures import (
    DASHES,
    by_frequency,
    by_position,
    calibration,
    layer_scores,
    loss_by_position,
    probed,
    similarity,
    worded,
)
from daybreak.reporting.markup import Markup, figure, join, legend, note, section, table, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.sections import NOTHING, UNKNOWN, run_name


def layers(runs: Sequence[RunRecords]) -> Markup:
    """The section about probes.json; nothing where no run has one."""
    found = probed(runs)
    if not found:
        return NOTHING
    shown = []
    if any(probes.layer_probes for _, probes in found):
        shown.append(
            figure(
                "Read off each layer",
                "A linear model on the frozen, mean-pooled states of one layer (logistic or ridge regression).",
                layer_scores(runs),
                _key(runs, [probe.task for _, probes in found for probe in probes.layer_probes]),
            )
        )
    if any(probes.similarity for _, probes in found):
        shown.append(
            figure(
                "Similar sentences, without training",
                "How well the cosine of two sentences follows the similarity that people gave; dotted: with the mean "
                "of all sentences taken away.",
                similarity(runs),
            )
        )
    if worded(runs):
        shown += _words(runs)
    pairs = tag("div", *shown, class_="pair")
    tables = [_table(runs)] if any(probes.layer_probes or probes.similarity for _, probes in found) else []
    return section(
        "What the layers know",
        pairs,
        *tables,
        *_notes(runs),
        caption="Measured on the model as pretraining left it: nothing was fine-tuned.",
    )


def _words(runs: Sequence[RunRecords]) -> list[Markup]:
    key = _key(runs, [f"rows of {row.length:,}" for _, found in worded(runs) for row in found.lengths])
    return [
        figure(
            "Hidden words by frequency",
            "Share guessed right by how common the token is (rank 1 is most frequent), each range at its upper end, "
            "with 95 % intervals.",
            by_frequency(runs),
        ),
        figure(
            "Hidden words by position",
            "Share guessed right by place in the row, for rows of several lengths; the dashed line is the longest row "
            "of training.",
            by_position(runs),
            key,
        ),
        figure(
            "Loss by position",
            "Mean loss of the hidden tokens by place in the row; the dashed line is the longest row of training.",
            loss_by_position(runs),
            key,
        ),
        figure(
            "Is it as right as it is sure",
            "Tokens by confidence in the best guess; on the dashed line the model is right as often as it is sure.",
            calibration(runs),
        ),
    ]


def _key(runs: Sequence[RunRecords], lines: Sequence[str]) -> Markup:
    """What each kind of line is, in the order in which the figure deals them out."""
    tint = figures.colour(0) if len(runs) == 1 else "var(--ink)"
    look = {"solid": "solid", "dot": "dotted"}
    named = enumerate(dict.fromkeys(lines))
    return legend(*((look.get(DASHES[place % len(DASHES)], "dashed"), tint, words) for place, words in named))


def _table(runs: Sequence[RunRecords]) -> Markup:
    rows: list[list[Markup | str]] = []
    for number, probes in probed(runs):
        run = [run_name(runs, number)] if len(runs) > 1 else []
        for probe in probes.layer_probes:
            told = f"linear probe; {probe.train_rows:,} rows to learn from, {probe.dev_rows:,} to evaluate"
            name = join(tag("b", probe.task), tag("small", told))
            first, last, best = probe.layers[0].score, probe.layers[-1].score, probe.best
            rows.append(
                [
                    name, *run, probe.metric.replace("_", " "), score(probe.constant), score(first), score(last),
                    join(score(best.score), tag("small", f"layer {best.layer}")),
                ]
            )  # fmt: skip
        for pairs in probes.similarity:
            name = join(tag("b", pairs.task), tag("small", f"cosine, no training; {pairs.pairs:,} pairs"))
            top = max(pairs.layers, key=lambda found: found.spearman)
            rows.append(
                [
                    name, *run, "spearman", UNKNOWN, score(pairs.layers[0].spearman), score(pairs.layers[-1].spearman),
                    join(score(top.spearman), tag("small", f"layer {top.layer}")),
                ]
            )  # fmt: skip
    head = [
        "Task",
        *(["Run"] if len(runs) > 1 else []),
        "Metric",
        "Constant answer",
        "Embeddings",
        "Last",
        "Best layer",
    ]
    return table(head, rows, words=len(head) - 4)


def _notes(runs: Sequence[RunRecords]) -> list[Markup]:
    notes = []
    for number, found in worded(runs):
        lengths = ", ".join(
            f"{percent(row.accuracy)} in rows of {row.length:,}"
            + (f" ({row.times_trained} times the trained length)" if row.times_trained > 1 else "")
            for row in found.lengths
        )
        whose = f"{runs[number].label}: " if len(runs) > 1 else ""
        notes.append(
            note(
                f"{whose}Hidden words of {found.text}: {lengths}; always guessing the most frequent token gives "
                f"{percent(found.constant)}. Ranks were counted in {found.ranks_from}. Calibration error "
                f"{percent(found.calibration_error)}.",
                "quiet",
            )
        )
    return notes
