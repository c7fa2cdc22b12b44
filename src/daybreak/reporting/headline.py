"""The top of the page: what the model is, how good it is, and the comparison of several runs."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from daybreak.core.formatting import count, listed, percent, score, signed, significant
from daybreak.core.run_folder import as_argument
from daybreak.core.task_pairs import (
    BEYOND_SPREAD,
    TaskPair,
    baseline_sentence,
    baseline_sentences,
    pair_results,
)
from daybreak.core.terminal import duration
from daybreak.reporting.blocks import (
    UNKNOWN,
    Block,
    Inline,
    code,
    header,
    join,
    many,
    note,
    records_table,
    run_name,
    section,
    small,
    styled,
    tiles,
)
from daybreak.reporting.runs import SILENCE, RunRecords
from daybreak.schemas.run import ValidationRecord
from daybreak.schemas.tasks import CLAIM_SEEDS, Comparison, TaskResult

NAMES_LISTED = 6
"""Most labels that a sentence lists."""
SAME_UNIGRAM_LOSS = 1e-5
"""Nats by which the unigram losses of the same positions may differ, because devices round differently."""
STYLES = ("alarm", "warning", "quiet")
"""Styles of notices, the most urgent first."""
BRAND = "Daybreak report"


def headline(runs: Sequence[RunRecords], comparisons: Sequence[Comparison] = ()) -> Block:
    """The head of the page for one run, or for several.

    Args:
        comparisons: of one run with the network without pretraining; they decide what the head says of its effect.
    """
    return _one(runs[0], comparisons) if len(runs) == 1 else _several(runs)


def _one(run: RunRecords, comparisons: Sequence[Comparison]) -> Block:
    pairs = [pair for pair in pair_results(run.results) if pair.gain is not None]
    effect = _effect(pairs, comparisons) if len(pairs) > 1 else None
    first = opening(run.results, run.validation)
    loss = loss_sentence(run.validation) if run.validation else ""
    sentences = [first, _description(run), loss if loss != first else "", _task_sentence(pairs, effect)]
    lead = " ".join(filter(None, sentences))
    return header(BRAND, title_of(run), run.path.name, lead, *_warnings([run]), tiles(_tiles(run, pairs, effect)))


def opening(results: Sequence[TaskResult], validation: ValidationRecord | None) -> str:
    """The first sentence: whether the encoder beats the baselines of its tasks.

    Without results of the pretrained encoder it compares the held-out loss with the unigram baseline; empty if nothing
    was measured.
    """
    return baseline_sentence(results) or (loss_sentence(validation) if validation else "")


def title_of(run: RunRecords) -> str:
    """The recipe's name; for a continued model the name of that model, because the recipe does not state its size."""
    parent = str((run.recipe.get("origin") or {}).get("parent", ""))
    return f"{parent}, continued" if parent else run.name


def _description(run: RunRecords) -> str:
    if not run.pretrained_here:
        return "A text encoder that was not pretrained in this folder: this page shows its results on tasks."
    summary, machine = run.summary, run.environment.device if run.environment else "an unknown machine"
    size = f" with {count(summary.parameters)} parameters" if summary else ""
    epochs = f" ({significant(summary.epochs, 2)} epochs)" if summary else ""
    how = f"trained for {duration(run.elapsed)} on {machine}" if run.elapsed else "not trained yet"
    parent = f", continued from {summary.parent}" if summary and summary.parent else ""
    read = f", reading {count(run.tokens)} tokens{epochs}" if run.tokens else ""
    return f"A text encoder{size}{parent}, {how}{read}."


def loss_sentence(record: ValidationRecord) -> str:
    """The held-out loss and accuracy of the encoder beside the unigram baseline."""
    accuracy = (
        f"its accuracy on masked tokens is {percent(record.accuracy)}, against "
        f"{percent(record.most_frequent_fraction)} for always predicting the most frequent token"
    )
    if record.on_plateau:
        return (
            f"This encoder does not clearly beat the unigram baseline: its held-out loss is {record.loss:.2f} nats, "
            f"and predicting each token by its frequency gives {record.unigram_loss:.2f}; {accuracy}."
        )
    return (
        f"This encoder beats the unigram baseline: its held-out loss is {record.loss:.2f} nats, "
        f"{record.unigram_loss - record.loss:.2f} below the {record.unigram_loss:.2f} of predicting each token by its "
        f"frequency; {accuracy}."
    )


@dataclass(frozen=True)
class _Effect:
    """On how many of several tasks pretraining helps and harms."""

    better: int
    worse: int
    things: str
    """What is counted, with its number: ``5 tasks``, or ``6 results`` if a task is there twice."""
    tested: bool
    """Whether a paired comparison decides; otherwise the standard deviation over seeds does, which claims less."""


def _effect(pairs: Sequence[TaskPair], comparisons: Sequence[Comparison]) -> _Effect | None:
    """Count the comparisons, or without any the pairs, with enough seeds for a claim; None if there are none."""
    if comparisons:
        enough = [found for found in comparisons if len(found.seeds) >= CLAIM_SEEDS]
        verdicts = [found.verdict for found in enough]
        names = [found.task for found in enough]
        better, worse = verdicts.count("B is better"), verdicts.count("A is better")
    else:
        known = [pair for pair in pairs if min(map(len, pair.seeds)) >= CLAIM_SEEDS]
        gains = [pair.gain or 0.0 for pair in known if pair.verdict == BEYOND_SPREAD]
        names = [pair.task for pair in known]
        better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    thing = "task" if len(set(names)) == len(names) else "result"
    return _Effect(better, worse, many(len(names), thing), bool(comparisons)) if names else None


def _task_sentence(compared: Sequence[TaskPair], effect: _Effect | None) -> str:
    """The effect of pretraining on the only task, or over all tasks that have enough seeds."""
    if not compared:
        return ""
    if len(compared) > 1 and effect is None:
        return f"With fewer than {CLAIM_SEEDS} seeds per task, the effect of pretraining is not shown."
    if effect is not None:
        if effect.tested:
            return (
                f"Paired comparisons on {effect.things}: pretraining helps on {effect.better} and harms on "
                f"{effect.worse}."
            )
        return (
            f"Of {effect.things} with at least {CLAIM_SEEDS} seeds, pretraining raises the score on {effect.better} "
            f"and lowers it on {effect.worse} by more than the standard deviation over seeds."
        )
    only = compared[0]
    assert only.pretrained and only.untrained
    bag = only.pretrained.bag_of_words
    words = f", the bag of words {score(bag[only.pretrained.metric])}" if bag else ""
    return (
        f"On the task {only.task} it scores {score(only.pretrained.mean)} ({only.pretrained.metric} x 100); the same "
        f"network without pretraining scores {score(only.untrained.mean)}{words}, and the constant answer "
        f"{score(only.pretrained.baseline)}."
    )


def _warnings(runs: Sequence[RunRecords]) -> list[Block]:
    """Refused exports, damaged files, weak models, unfinished runs and missing records; each once for all its runs."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for run in runs:
        for notice in _notices(run):
            found.setdefault(notice, []).append(run.label)
    return [
        note(f"{before}{listed(labels, NAMES_LISTED)}{after}", style)
        for (style, before, after), labels in sorted(found.items(), key=lambda item: STYLES.index(item[0][0]))
    ]


def _notices(run: RunRecords) -> Iterator[tuple[str, str, str]]:
    """The style of each notice about a run, and its words before and after the names of the runs."""
    parity = run.summary.parity if run.summary else None
    if parity is not None and not parity.passed:
        yield "alarm", f"Export refused: {parity.failure or 'the parity check failed'} (", ")"
    for fault in run.faults:
        yield "warning", "", f": {fault}"
    if _ignores_other_segments(run):
        words = "the model does not compare segments yet; expect results near chance on sentence pairs."
        yield "warning", "", f": {words}"
    if run.going_on:
        yield "warning", "Pretraining of ", f" has not ended: {_state(run)}. The numbers below are preliminary."
    if run.missing:
        yield "quiet", "Not in the folder of ", f": {', '.join(run.missing)}."


def _ignores_other_segments(run: RunRecords) -> bool:
    summary = run.summary
    if summary is None or summary.context_use is None or summary.validation.on_plateau:
        return False
    return not summary.context_use.attends_across_segments


def _state(run: RunRecords) -> str:
    """Whether a run that has not ended was running when its files were read."""
    ago = duration(run.silent)
    if run.stopped:
        return f"stopped, last heartbeat {ago} before this page was written (the same command resumes it)"
    if run.silent <= SILENCE:
        return f"still running, last heartbeat {ago} before this page was written"
    return f"silent for {ago} when this page was written (stopped, killed or stuck; the same command resumes it)"


def _tiles(run: RunRecords, pairs: Sequence[TaskPair], effect: _Effect | None) -> list[tuple[str, str, str]]:
    record, summary = run.validation, run.summary
    found: list[tuple[str, str, str]] = []
    if record:
        gap, side = abs(record.unigram_loss - record.loss), "below" if record.loss < record.unigram_loss else "above"
        baseline = f"{gap:.2f} {side} the unigram baseline of {record.unigram_loss:.2f}"
        most_frequent = f"most frequent token {percent(record.most_frequent_fraction)}"
        found.append((f"{record.loss:.2f}", "nats held-out loss", baseline))
        found.append((percent(record.accuracy), "masked accuracy", most_frequent))
        if record.next_accuracy is not None:
            found.append((percent(record.next_accuracy), "next-sentence accuracy", "chance is about 50 %"))
    if len(pairs) == 1:
        gain = signed(100 * (pairs[0].gain or 0), 1)
        found.append((gain, "points from pretraining", f"{pairs[0].task}: {pairs[0].verdict}"))
    elif effect is not None:
        by = "paired comparison" if effect.tested else "more than the standard deviation over seeds"
        harmed = f"{effect.worse} lower; by {by}"
        found.append((f"{effect.better} of {effect.things}", "higher with pretraining", harmed))
    if run.tokens:
        rate = f"{count(summary.tokens_per_second)} per second" if summary else "so far"
        found.append((count(run.tokens), "tokens read", rate))
    if run.pretrained_here:
        found.append((duration(run.elapsed), "of wall-clock time", f"budget {_budget(run)}"))
    if summary:
        found.append((count(summary.parameters), "parameters", f"{summary.steps:,} steps"))
    return found


def _budget(run: RunRecords) -> str:
    return run.summary.budget if run.summary is not None else str(run.recipe.get("budget", "unknown"))


# ---------------------------------------------------------------- several runs


def _several(runs: Sequence[RunRecords]) -> Block:
    validated = [(run.ranked.loss, run) for run in runs if run.ranked is not None]
    words = "The tables below compare what they have in common."
    if any(run.pretrained_here for run in runs):
        words = "Fewer than two of them have been validated, so no losses are compared."
    reason = _incomparable(runs)
    if len(validated) > 1 and reason:
        words = "Their held-out losses cannot be ranked."
    elif len(validated) > 1:
        (best, first), (second, other) = sorted(validated, key=lambda pair: pair[0])[:2]
        words = f"{first.label} has the lowest held-out loss: {best:.3f} nats, {second - best:.3f} below {other.label}."
        if best == second:
            words = f"{first.label} and {other.label} have the same held-out loss: {best:.3f} nats."
        settings = Counter(_without_seed(run) for _, run in validated)
        if min(settings.values()) == 1:
            words += (
                " With one run per setting the standard deviation over seeds is unknown, so small differences may be "
                "due to chance."
            )
    stuck = [
        f"{run.label} ({run.validation.loss:.2f} nats after {run.validation.step:,} steps)"
        for run in runs
        if run.validation is not None and run.validation.on_plateau
    ]
    words += f" No better than the unigram baseline: {', '.join(stuck)}." if stuck else ""
    things = "runs" if all(run.pretrained_here for run in runs) else "models"
    notes = [*([note(reason, "warning")] if reason else []), *_warnings(runs)]
    beaten = baseline_sentences({run.label: run.results for run in runs})
    return header(BRAND, f"{len(runs)} {things} compared", "", f"{beaten} {words}".strip(), *notes)


def _without_seed(run: RunRecords) -> str:
    """The recipe without its seed: runs that share it are one setting."""
    recipe = {name: value for name, value in run.recipe.items() if name not in ("seed", "fingerprint")}
    return json.dumps(recipe, sort_keys=True)


def _different_data(runs: Sequence[RunRecords]) -> bool:
    """Whether the runs differ in tokenizer or held-out text."""
    manifests = [run.manifest for run in runs if run.manifest]
    return len({(each.tokenizer, each.heldout.documents, each.heldout.tokens) for each in manifests}) > 1


def _same_positions(runs: Sequence[RunRecords]) -> bool:
    """Whether all were measured on the same held-out positions.

    These are as many, and equally hard for the unigram baseline. It is counted on the training text, so runs on
    different training texts are compared by the place of their held-out sequences instead.
    """
    unigram: dict[tuple[int, int] | None, list[float]] = {}
    for run in runs:
        if run.validation is not None:
            text = (run.manifest.train.documents, run.manifest.train.tokens) if run.manifest else None
            unigram.setdefault(text, []).append(run.validation.unigram_loss)
    alike = all(max(each) - min(each) < SAME_UNIGRAM_LOSS for each in unigram.values())
    places = {run.decisions.first_heldout for run in runs if run.validation and run.decisions}
    positions = {run.validation.positions for run in runs if run.validation}
    return len(positions) <= 1 and alike and (len(unigram) <= 1 or len(places) <= 1)


def _incomparable(runs: Sequence[RunRecords]) -> str:
    """Why the losses of these runs are not comparable; empty if they are."""
    validated = [run.validation for run in runs if run.validation]
    if _different_data(runs):
        why = "differ in tokenizer or held-out text"
    elif _same_positions(runs):
        return ""
    elif not all(record.final for record in validated):
        why = "have not all ended, and an unfinished run is measured on a part of the held-out sequences"
    elif len({run.decisions.first_heldout for run in runs if run.validation and run.decisions}) > 1:
        why = "were measured on different held-out sequences, older runs on the first, newer runs on evenly spread ones"
    else:
        why = "were measured on held-out sequences of different lengths"
    return f"These runs {why}, so their losses and accuracies are not comparable."


def comparison(runs: Sequence[RunRecords]) -> Block:
    """A table with one row per run; the best loss and accuracy are marked."""
    ranked = [] if _incomparable(runs) else [run.ranked for run in runs if run.ranked is not None]
    best_loss = min((record.loss for record in ranked), default=None)
    best_accuracy = max((record.accuracy for record in ranked), default=None)
    rows = []
    for number, run in enumerate(runs):
        if not run.pretrained_here:
            continue
        summary = run.summary
        steps = summary.steps if summary else max((step.step for step in run.steps[-1:]), default=0)
        recipe = [small(run.name)] if run.name != run.label else []
        rate = [small(f"{count(summary.tokens_per_second)} per second")] if summary else []
        rows.append(
            {
                "Run": join(run_name(runs, number), *recipe),
                "Parameters": count(summary.parameters) if summary else UNKNOWN,
                "Steps": f"{steps:,}" if steps else UNKNOWN,
                "Tokens": join(count(run.tokens), *rate) if run.tokens else UNKNOWN,
                **_validation_cells(run, best_loss, best_accuracy),
                "Time": join(duration(run.elapsed), small(f"of {_budget(run)}{'' if summary else ', not ended'}")),
            }
        )
    marked = "the lowest loss and the highest accuracy are marked" if ranked else "they are not comparable here"
    caption = (
        f"Losses in nats per token on held-out masked positions; {marked}. At the baseline: no better than predicting "
        "each token by its frequency."
    )
    return section("Comparison of runs", records_table(rows), caption=caption)


def _validation_cells(
    run: RunRecords, best_loss: float | None, best_accuracy: float | None
) -> dict[str, Inline | None]:
    record = run.validation
    if record is None:
        unknown = ("Held-out loss", "from unigram baseline", "At the baseline", "Accuracy")
        return {**dict.fromkeys(unknown, UNKNOWN), "Next sentence": None}

    def marked(text: str, is_best: bool) -> Inline:
        return styled(text, "best" if run.ranked and is_best else "plain")

    return {
        "Held-out loss": marked(f"{record.loss:.3f}", record.loss == best_loss),
        "from unigram baseline": signed(record.loss - record.unigram_loss, 3),
        "At the baseline": styled("yes", "poor") if record.on_plateau else "no",
        "Accuracy": marked(percent(record.accuracy), record.accuracy == best_accuracy),
        "Next sentence": None if record.next_accuracy is None else percent(record.next_accuracy),
    }


def forgetting(runs: Sequence[RunRecords]) -> Block | None:
    """The held-out loss before and after continued pretraining, on the run's own text and on general text."""
    rows = []
    for number, run in enumerate(runs):
        if run.summary is None or run.summary.forgetting is None:
            continue
        changes = {
            text: join(f"{before:.3f} -> {after:.3f}", small(signed(after - before, 3)))
            for text, before, after in run.summary.forgetting.texts
        }
        names = {"Run": run_name(runs, number), "Continued from": run.summary.parent or UNKNOWN}
        rows.append(names | {"Own text": None, "General text": None} | changes)
    if not rows:
        return None
    caption = (
        "Held-out loss before and after continuing, in nats per masked token. A higher loss on general text afterwards "
        "is forgetting."
    )
    return section("Effect of continued pretraining", records_table(rows, words=2), caption=caption)


def use(runs: Sequence[RunRecords]) -> Block | None:
    """Code and commands that use the models; None if no run has exported one that passed the parity check."""
    runs = [run for run in runs if (run.path / "model").is_dir() and not (run.summary and run.summary.is_refused)]
    if not runs:
        return None
    folder, *others = [str(run.path / "model") for run in runs]
    choice = "".join(f"# or {other!r}\n" for other in others)
    own_code = any(any((run.path / "model").glob("*.py")) for run in runs)
    trust = ", trust_remote_code=True" if own_code else ""
    python = (
        "from transformers import pipeline\n\n"
        f"folder = {folder!r}\n{choice}"
        f'fill = pipeline("fill-mask", model=folder{trust})\n'
        'fill(f"The {fill.tokenizer.mask_token} of the function is a list.")'
    )
    run = runs[0].path
    copy = run.with_name(f"{run.name}-again") if run.name else f"{run.resolve()}-again"
    data = shlex.quote(str(run / "data")) if (run / "data").is_dir() else "DATA"
    model, first, again = (shlex.quote(name) for name in (folder, as_argument(run), str(copy)))
    own = " and ".join(map(str, runs[0].recipe.get("own_kinds", ())))
    option, remark = (" --recipe FILE.py", f"; FILE.py is your recipe file with {own}") if own else ("", "")
    shell = (
        f"daybreak evaluate {model} --tasks my_task.toml\n"
        f"daybreak pretrain {first}{option} --data {data} --out {again}    "
        f"# the same recipe, seed and budget again{remark}"
    )
    caption = "The folder is a Hugging Face model; it does not need Daybreak."
    return section("Use the model", code(python), code(shell), caption=caption)
