"""Results without fine-tuning: layer probes, masked tokens, use of context, search, and fill-mask examples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from daybreak.core.formatting import metric_name, percent, score
from daybreak.reporting.blocks import (
    UNKNOWN,
    Block,
    Inline,
    Legend,
    bars,
    bold,
    card,
    example,
    figure,
    fold,
    grid,
    join,
    note,
    records_table,
    run_name,
    section,
    small,
    table,
)
from daybreak.reporting.charts import (
    DASHES,
    LEGEND_STYLES,
    SYMBOLS,
    Figure,
    base_layout,
    color,
    error_bars,
    key_color,
    run_line,
    straight_line,
)
from daybreak.reporting.runs import RunRecords
from daybreak.schemas.probes import BucketScore, LayerProbe, MaskedWords, Probes, SimilarityProbe
from daybreak.schemas.run import ContextUse, FillMask, RetrievalExample

EXAMPLES_SHOWN = 8
RANKERS = {"bm25": "BM25", "dense": "dense", "hybrid": "hybrid"}


def probed(runs: Sequence[RunRecords]) -> list[tuple[int, Probes]]:
    return [(number, run.probes) for number, run in enumerate(runs) if run.probes is not None]


def with_masked_words(runs: Sequence[RunRecords]) -> list[tuple[int, MaskedWords]]:
    return [(number, probes.masked_words) for number, probes in probed(runs) if probes.masked_words is not None]


# ---------------------------------------------------------------- figures of probes


def layer_scores(runs: Sequence[RunRecords]) -> Figure:
    """One line per task: the score of a linear model on each layer."""
    tasks = list(dict.fromkeys(probe.task for _, probes in probed(runs) for probe in probes.layer_probes))
    data = []
    for number, probes in probed(runs):
        for probe in probes.layer_probes:
            kind = tasks.index(probe.task) % len(DASHES)
            y = [100 * layer.score for layer in probe.layers]
            look = {"dash": DASHES[kind], "symbol": SYMBOLS[kind]}
            data.append(run_line(runs, number, f"{probe.task}, {probe.metric}", _layers(probe), y, **look))
    return {"data": data, "layout": _layers_layout("score x 100")}


def similarity(runs: Sequence[RunRecords]) -> Figure:
    """The correlation of cosines of mean-pooled sentences with human ratings by layer; dotted with centring."""
    data = []
    for number, probes in probed(runs):
        for probe in probes.similarity:
            plain, centred = ([100 * getattr(each, key) for each in probe.layers] for key in ("spearman", "centred"))
            data.append(run_line(runs, number, probe.task, _layers(probe), plain))
            data.append(run_line(runs, number, f"{probe.task}, centred", _layers(probe), centred, dash="dot"))
    return {"data": data, "layout": _layers_layout("Spearman x 100")}


def _layers(probe: LayerProbe | SimilarityProbe) -> list[int]:
    return [layer.layer for layer in probe.layers]


def _layers_layout(title: str) -> Figure:
    layout = base_layout("layer (0: embeddings)", title, hovermode="closest")
    layout["xaxis"]["dtick"] = 1
    return layout


def by_frequency(runs: Sequence[RunRecords]) -> Figure:
    """Accuracy by the frequency rank of the masked token."""
    parts = [(number, "accuracy", found.frequency) for number, found in with_masked_words(runs)]
    return _by_range(runs, parts, "frequency rank of the token")


def by_position(runs: Sequence[RunRecords]) -> Figure:
    """Accuracy by position, a line for each sequence length, with the trained length as a dashed line."""
    found = with_masked_words(runs)
    parts = [(number, f"{row.length} tokens", row.positions) for number, words in found for row in words.lengths]
    chart = _by_range(runs, parts, "position in the sequence")
    for length in {words.trained_length for _, words in found}:
        straight_line(chart["layout"], x=length)
    return chart


def calibration(runs: Sequence[RunRecords]) -> Figure:
    """Accuracy by confidence; on the diagonal they are equal."""
    hover = "confidence %{x:.0f} %, accuracy %{y:.0f} %, %{customdata:,} tokens"
    data = []
    for number, words in with_masked_words(runs):
        x, y = ([100 * getattr(each, key) for each in words.calibration] for key in ("confidence", "accuracy"))
        counts = [each.count for each in words.calibration]
        data.append(run_line(runs, number, "calibration", x, y, hover=hover, customdata=counts))
    layout = base_layout("confidence, %", "accuracy, %", hovermode="closest")
    line = {"color": "var(--quiet)", "width": 1.5, "dash": "dash"}
    layout["shapes"].append({"type": "line", "x0": 0, "y0": 0, "x1": 100, "y1": 100, "line": line})
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = [0, 101]
    return {"data": data, "layout": layout}


def _by_range(runs: Sequence[RunRecords], parts: Sequence[tuple[int, str, list[BucketScore]]], title: str) -> Figure:
    """Accuracy by ranges on a logarithmic axis, each at its upper end; an open range is at twice its start."""
    kinds = list(dict.fromkeys(text for _, text, _ in parts))
    data = []
    for number, text, ranges in parts:
        ends = [float(each.last or 2 * each.first) for each in ranges]
        low, middle, high = ([100 * getattr(each, key) for each in ranges] for key in ("low", "accuracy", "high"))
        names = [f"{each.first:,} to {each.last:,}" if each.last else f"from {each.first:,}" for each in ranges]
        look: dict[str, Any] = {"dash": DASHES[kinds.index(text) % len(DASHES)], "hover": "%{customdata}: %{y:.1f} %"}
        look |= {"customdata": names, "error_y": error_bars(low, middle, high, color(number))}
        data.append(run_line(runs, number, text, ends, middle, **look))
    layout = base_layout(title, "accuracy, %", hovermode="closest")
    layout["xaxis"]["type"] = "log"
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": data, "layout": layout}


# ---------------------------------------------------------------- probes


def layers(runs: Sequence[RunRecords]) -> Block | None:
    """The section about probes.json; nothing if no run has one."""
    found = probed(runs)
    if not found:
        return None
    plots = []
    if any(probes.layer_probes for _, probes in found):
        caption = "A linear model on the frozen, mean-pooled states of one layer (logistic or ridge regression)."
        key = _legend(runs, [probe.task for _, probes in found for probe in probes.layer_probes])
        plots.append(figure("Linear probes by layer", caption, layer_scores(runs), key))
    if any(probes.similarity for _, probes in found):
        caption = (
            "Spearman correlation of the cosine of two sentences with human ratings; dotted: after subtracting the "
            "mean of all sentences."
        )
        plots.append(figure("Sentence similarity without training", caption, similarity(runs)))
    plots += _masked_words_figures(runs) if with_masked_words(runs) else []
    scored = any(probes.layer_probes or probes.similarity for _, probes in found)
    return section(
        "Probes",
        grid(*plots),
        *([_table(runs)] if scored else []),
        *(note(_masked_words_note(runs, number, words), "quiet") for number, words in with_masked_words(runs)),
        caption="Measured on the pretrained model without fine-tuning.",
    )


def _masked_words_figures(runs: Sequence[RunRecords]) -> list[Block]:
    key = _legend(runs, [f"{row.length:,} tokens" for _, words in with_masked_words(runs) for row in words.lengths])
    ranks = (
        "Accuracy by frequency rank of the token (rank 1 is the most frequent). Each range is plotted at its upper "
        "end, with a 95 % interval."
    )
    positions = (
        "Accuracy by position for sequences of several lengths; the dashed line is the longest sequence of training."
    )
    confidence = "Accuracy by confidence in the first prediction; on the dashed line both are equal."
    return [
        figure("Masked tokens by frequency", ranks, by_frequency(runs)),
        figure("Masked tokens by position", positions, by_position(runs), key),
        figure("Calibration", confidence, calibration(runs)),
    ]


def _legend(runs: Sequence[RunRecords], lines: Sequence[str]) -> Legend:
    """The line style of each kind of line, in the order of the figure."""
    tint = key_color(runs)
    styles = itertools.cycle(LEGEND_STYLES.get(dash, "dashed") for dash in DASHES)
    return [(style, tint, name) for name, style in zip(dict.fromkeys(lines), styles)]


def _table(runs: Sequence[RunRecords]) -> Block:
    rows = []
    for number, probes in probed(runs):
        for probe in probes.layer_probes:
            size = f"linear probe; {probe.train_rows:,} training rows, {probe.dev_rows:,} evaluation rows"
            scores = {each.layer: each.score for each in probe.layers}
            metric, constant = metric_name(probe.metric), score(probe.constant)
            rows.append(_table_row(runs, number, probe.task, size, metric, constant, scores))
        for pairs in probes.similarity:
            size = f"cosine without training; {pairs.pairs:,} pairs"
            scores = {each.layer: each.spearman for each in pairs.layers}
            rows.append(_table_row(runs, number, pairs.task, size, "spearman", None, scores))
    return records_table(rows, words=3)


def _table_row(
    runs: Sequence[RunRecords], number: int, task: str, size: str, metric: str, constant: str | None,
    scores: dict[int, float],
) -> dict[str, Inline | None]:  # fmt: skip
    best = max(scores, key=lambda layer: scores[layer])
    return {
        "Task": join(bold(task), small(size)),
        "Run": run_name(runs, number) if len(runs) > 1 else None,
        "Metric": metric,
        "Constant answer": constant,
        "Embeddings": score(scores[min(scores)]),
        "Last layer": score(scores[max(scores)]),
        "Best layer": join(score(scores[best]), small(f"layer {best}")),
    }


def _masked_words_note(runs: Sequence[RunRecords], number: int, words: MaskedWords) -> str:
    lengths = ", ".join(
        f"{percent(row.accuracy)} in sequences of {row.length:,} tokens"
        + (f" ({row.times_trained} times the trained length)" if row.times_trained > 1 else "")
        for row in words.lengths
    )
    run = f"{runs[number].label}: " if len(runs) > 1 else ""
    return (
        f"{run}Accuracy on masked tokens of {words.text}: {lengths}; always predicting the most frequent token gives "
        f"{percent(words.constant)}. Ranks were counted in {words.ranks_from}. Calibration error "
        f"{percent(words.calibration_error)}."
    )


# ---------------------------------------------------------------- use of context, search, fill-mask


def context_use(runs: Sequence[RunRecords]) -> Block | None:
    """Whether the models compare segments, and how much text around a masked token they use."""
    measured = [
        (run_name(runs, number), run.summary.context_use)
        for number, run in enumerate(runs)
        if run.summary and run.summary.context_use
    ]
    if not measured:
        return None
    rows = []
    for name, use in measured:
        values = [(use.alone, use.alone_accuracy), (use.copy, use.copy_accuracy)]
        values.append((use.noisy_copy, use.noisy_copy_accuracy))
        cells = [join(f"{loss:.2f}", small(f"accuracy {100 * accuracy:.0f} %")) for loss, accuracy in values]
        rows.append([name, *cells, "yes" if use.attends_across_segments else "no"])
    return section(
        "Use of context",
        table(("Run", "Alone", "Beside a copy", "Beside a noisy copy", "Compares segments"), rows),
        *_visible_context(measured),
        caption="Loss on masked tokens of held-out text, in nats. A model that compares segments finds a masked token "
        "in a copy of its text; a noisy copy lacks a fifth of the other tokens. A model that does not compare segments "
        "is near chance on similarity, paraphrase and entailment with a stock head.",
    )


def _visible_context(measured: Sequence[tuple[Inline, ContextUse]]) -> list[Block]:
    """The loss by the number of visible tokens, the whole span last."""
    *few, whole = sorted({each.tokens for _, use in measured for each in use.visible}) or [0]
    if not whole:
        return []
    rows = []
    for name, use in measured:
        losses = {each.tokens: f"{each.loss:.2f}" for each in use.visible}
        rows.append([name, *(losses.get(tokens, UNKNOWN) for tokens in (*few, whole))])
    return [
        note(
            "Loss on one masked token if only its nearest tokens are visible, half of them on each side: the further "
            "it falls to the right, the more the model uses distant words.",
            "quiet",
        ),
        table(("Run", *(f"{tokens} visible" for tokens in few), f"all {whole} visible"), rows),
    ]


def search(runs: Sequence[RunRecords], *, text: bool) -> Block | None:
    """Retrieval of passages of held-out documents, beside BM25: at the end of a run, and from ``daybreak probe``.

    Args:
        text: whether examples may be on the page.
    """
    measured = [(number, run.retrieval) for number, run in enumerate(runs) if run.retrieval]
    measured += [(number, found) for number, probes in probed(runs) for found in probes.search]
    if not measured:
        return None
    rows = []
    for number, found in measured:
        for ranker in found.rankers:
            better = UNKNOWN if ranker.ranker == "bm25" else "yes" if ranker.beats_bm25("recall_10") else "no"
            cells = [
                join(score(ranker.scores[metric]), small(f"{score(low)} to {score(high)}"))
                for metric, (low, high) in ranker.intervals.items()
            ]
            name = join(run_name(runs, number), f" {RANKERS[ranker.ranker]}")
            name = join(name, small(found.text)) if found.text else name
            rows.append([name, str(found.passages), *cells, better])
    first = measured[0][1]
    return section(
        "Search",
        table(("Ranker", "Passages", "MRR", "Recall at 1", "Recall at 10", "Above BM25"), rows),
        *([fold("Examples", *map(_search_example, first.examples))] if text and first.examples else []),
        caption="A query is 20 words of a held-out document, 5 words after the passage to find; there are as many "
        "queries as passages. Scores times 100 with 95 % intervals over queries. BM25 needs no network. Dense: "
        "cosine of embeddings. Hybrid: both, with the weight that is best for other queries. Above BM25: whether the "
        "interval of the difference in recall at 10 is above zero.",
    )


def _search_example(example: RetrievalExample) -> Block:
    parts = [("Query", example.query), (f"Its passage, rank {example.rank}", example.passage)]
    parts += [] if example.rank == 1 else [("Ranked first", example.first)]
    return card("", *(note(join(bold(f"{name}:"), " ", text), "") for name, text in parts))


def examples(runs: Sequence[RunRecords]) -> Block | None:
    """Predictions for a masked word of held-out sentences."""
    blocks: list[Block] = []
    for number, run in enumerate(runs):
        if not run.examples:
            continue
        title = f"{sum(_correct(each, 0) for each in run.examples)} of {len(run.examples)} first predictions correct"
        name = join(run_name(runs, number), f": {title}") if len(runs) > 1 else ""
        shown, more = [*map(_example, run.examples)], run.examples[EXAMPLES_SHOWN:]
        rest = [fold(f"{len(more)} more", *shown[EXAMPLES_SHOWN:])] if more else []
        found = card(name, *shown[:EXAMPLES_SHOWN], *rest)
        blocks.append(fold(f"{run.label}: {title}", found) if blocks else found)
    caption = "One word of each held-out sentence is masked; the model's predictions are listed with their probability."
    return section("Fill-mask examples", *blocks, caption=caption) if blocks else None


def _example(one: FillMask) -> Block:
    before, mask, after = one.text.partition("[MASK]")
    text = join(before, Markup("<mark>[MASK]</mark>") if mask else "", after)
    predictions = [
        (word, probability, f"{100 * probability:.0f} %", _correct(one, place))
        for place, (word, probability) in enumerate(zip(one.guesses, one.probabilities))
    ]
    return example(text, join("masked word: ", bold(one.answer)), bars(predictions))


def _correct(one: FillMask, place: int) -> bool:
    return place < len(one.guesses) and one.guesses[place].strip().lower() == one.answer.strip().lower()
