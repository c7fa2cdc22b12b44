"""The plots and what was learned: training, time, tasks, examples. Each section says or leaves out what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from daybreak.base.amounts import percent, score, signed, significant
from daybreak.base.records import FillMask
from daybreak.base.task_pairs import TaskPair, pair_results, several_models
from daybreak.base.task_records import TaskResult
from daybreak.reporting import figures
from daybreak.reporting.markup import Markup, escape, figure, fold, join, legend, note, section, table, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.task_figure import task_scores

EXAMPLES_SHOWN = 8
NOTHING = Markup("")
UNKNOWN = "-"


def run_name(runs: Sequence[RunRecords], number: int) -> Markup:
    """A run's label with the colour that it has in all plots."""
    return tag("span", tag("i", style=f"--c:{figures.colour(number)}"), runs[number].label)


def training(runs: Sequence[RunRecords]) -> Markup:
    """Losses, accuracy, learning rate and throughput."""
    if not any(run.steps or run.validations for run in runs):
        return section("Training", note("No step has been recorded yet."))
    tint = figures.colour(0) if len(runs) == 1 else "var(--ink)"
    entries = [("dotted", tint, "next-token loss (causal stage)")] if _has_causal(runs) else []
    entries += [("thin", tint, "masked loss, training")]
    entries += [("marked", tint, "masked loss, held out")]
    key = legend(*entries, ("dashed", "var(--quiet)", "unigram plateau"))
    causal = (
        " The dotted part is the loss of predicting the next token, another quantity than the masked loss: it shows "
        "that the first stage learned, not how well."
        if _has_causal(runs)
        else ""
    )
    plateau = (
        "The dashed line is what knowing only token frequencies would give; below it, context is being used. The final "
        "validation judges all held-out rows, earlier ones a part of them."
    )
    return section(
        "Training",
        figure("Loss against time", plateau + causal, figures.losses(runs, "time"), key),
        tag(
            "div",
            figure("Loss against tokens", "The same losses by tokens read.", figures.losses(runs, "tokens"), key),
            figure(
                "Masked accuracy",
                "Share of hidden held-out tokens guessed right; dashed: always guessing the commonest.",
                figures.accuracy(runs),
                legend(("marked", tint, "held out"), ("dashed", "var(--quiet)", "commonest token")),
            ),
            figure("Learning rate", "The step size that the schedule gave.", figures.learning_rate(runs)),
            figure("Throughput", "Tokens read each second of training.", figures.throughput(runs)),
            class_="pair",
        ),
    )


def _has_causal(runs: Sequence[RunRecords]) -> bool:
    return any(step.stage == "causal" for run in runs for step in run.steps)


def time_spent(runs: Sequence[RunRecords]) -> Markup:
    """Where the seconds of the budget went."""
    told = [(number, run.summary) for number, run in enumerate(runs) if run.summary is not None]
    if not told:
        return NOTHING
    uses = list(dict.fromkeys(use for _, summary in told for use, seconds in summary.spent.items() if seconds))
    rows = []
    for number, summary in told:
        cells = [f"{summary.spent.get(use, 0.0):.1f} s" for use in uses]
        asked = join(f"{summary.elapsed:.1f} s", tag("small", f"asked: {summary.budget}"))
        whole = sum(summary.spent.values())
        share = percent(summary.spent.get("train", 0.0) / whole) if whole else UNKNOWN
        rows.append([run_name(runs, number), asked, share, *cells, f"{summary.parity_seconds:.1f} s"])
    key = legend(*(("dot", figures.USE_COLOURS.get(use, "#888888"), use) for use in uses))
    return section(
        "Where the time went",
        figure("The budget by use", "Everything from the start of the process counts.", figures.spent(runs), key),
        table(("Run", "Charged", "Training share", *uses, "Parity gate (apart)"), rows),
    )


def tasks(runs: Sequence[RunRecords]) -> Markup:
    """Scores after fine-tuning, with and without pretraining."""
    if not any(run.results for run in runs):
        return section("Tasks", note("No task has been evaluated: run `daybreak evaluate` on this folder."))
    found = [(number, pair) for number, run in enumerate(runs) for pair in pair_results(run.results)]
    order = list(dict.fromkeys((pair.protocol, pair.task) for _, pair in found))
    found.sort(key=lambda entry: (order.index((entry[1].protocol, entry[1].task)), entry[0]))
    named = {number: several_models(pair for at, pair in found if at == number) for number in range(len(runs))}
    rows = [_task_row(runs, number, pair, named[number]) for number, pair in found]
    head = (
        "Task",
        *(["Run"] if len(runs) > 1 else []),
        "Metric",
        "Constant answer",
        "Without pretraining",
        "With pretraining",
        "Gain",
    )
    tint = figures.colour(0) if len(runs) == 1 else "var(--ink)"
    key = legend(
        ("dot", tint, "with pretraining"),
        ("dot", "var(--quiet)", "without"),
        ("bar", tint, "mean"),
        ("dotbar", "var(--ink)", "constant answer"),
    )
    return section(
        "Tasks",
        figure(
            "Scores after fine-tuning",
            "One dot a seed; the bar is their mean, the whisker their standard deviation.",
            task_scores(runs),
            key,
        ),
        table(head, rows, words=len(head) - 4),
        caption="The network was fine-tuned on each task twice: from its pretrained weights, and from random ones.",
    )


def _task_row(runs: Sequence[RunRecords], number: int, pair: TaskPair, named: bool) -> list[Markup | str]:
    result, gain = pair.either, pair.gain
    model = f"{pair.model_name}; " if named else ""
    rows = f"{model}{pair.protocol}; {result.train_rows:,} to learn from, {result.judged_rows:,} to judge"
    name = join(tag("b", pair.task), tag("small", rows))
    gained = join(signed(100 * gain, 1), tag("small", pair.verdict)) if gain is not None else UNKNOWN
    run = [run_name(runs, number)] if len(runs) > 1 else []
    return [name, *run, result.metric, score(result.baseline), _score(pair.untrained), _score(pair.pretrained), gained]


def _score(result: TaskResult | None) -> Markup:
    if result is None:
        return escape(UNKNOWN)
    values = ", ".join(score(value) for value in result.scores.get(result.metric, []))
    spread = Markup(f" &plusmn; {score(result.spread)}") if len(result.seeds) > 1 else NOTHING
    seeds = ", ".join(str(seed) for seed in result.seeds)
    return join(score(result.mean), spread, tag("small", values, title=f"seeds {seeds}"))


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
        first = [tag("h3", run_name(runs, number), f": {title}" if len(runs) > 1 else "")] if len(runs) > 1 else []
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
