"""What stands at the top of the page: in plain words, what the model is and how good it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from daybreak.core.formatting import count, percent, score, signed, significant
from daybreak.core.task_pairs import TaskPair, baseline_sentence, pair_results
from daybreak.core.terminal import duration
from daybreak.reporting.markup import Markup, join, note, tag
from daybreak.reporting.runs import SILENCE, RunRecords
from daybreak.schemas.run import Manifest, ValidationRecord
from daybreak.schemas.tasks import TaskResult

NAMED = 6
"""Most labels that a sentence lists."""
SPELLED_OUT = 3
"""Most runs of which each has a sentence of its own."""


def headline(runs: Sequence[RunRecords]) -> Markup:
    """The head of the page for one run, or for several that are compared."""
    return _one(runs[0]) if len(runs) == 1 else _several(runs)


def _one(run: RunRecords) -> Markup:
    first = opening(run.results, run.validation)
    loss = loss_sentence(run.validation) if run.validation else ""
    sentences = [first, made_of(run), loss if loss != first else "", task_sentence(pair_results(run.results))]
    return tag(
        "header",
        tag("p", "Daybreak report", class_="brand"),
        tag("h1", title(run), tag("small", run.path.name)),
        tag("p", " ".join(filter(None, sentences)), class_="lead"),
        *warnings([run]),
        _tiles(run),
    )


def opening(results: Sequence[TaskResult], validation: ValidationRecord | None) -> str:
    """The first sentence: whether the encoder beats the baselines of its tasks.

    Without results of the pretrained encoder it compares the held-out loss with the unigram baseline; empty if nothing
    was measured.
    """
    return baseline_sentence(results) or (loss_sentence(validation) if validation else "")


def title(run: RunRecords) -> str:
    """The recipe's name; of a model that was continued, that model's, whose size is not the recipe's."""
    parent = str((run.recipe.get("origin") or {}).get("parent", ""))
    return f"{parent}, continued" if parent else run.name


def made_of(run: RunRecords) -> str:
    """What the model is: size, tokens, time and machine."""
    if not run.pretrained_here:
        return "A text encoder that was not pretrained in this folder: what stands here is how it did on tasks."
    summary, machine = run.summary, run.environment.device if run.environment else "a machine that left no record"
    size = f" with {count(summary.parameters)} parameters" if summary else ""
    passes = f" ({significant(summary.epochs, 2)} passes over its text)" if summary else ""
    how = f"trained for {duration(run.elapsed)} on {machine}" if run.elapsed else "not trained yet"
    begun = f", continued from {summary.parent}" if summary and summary.parent else ""
    read = f", reading {count(run.tokens)} tokens{passes}" if run.tokens else ""
    return f"A text encoder{size}{begun}, {how}{read}."


def loss_sentence(found: ValidationRecord) -> str:
    """The held-out loss and accuracy of the encoder beside the unigram baseline: token frequencies and nothing else."""
    below = found.unigram_loss - found.loss
    right = (
        f"it gets {percent(found.accuracy)} of the hidden tokens right, where always guessing the most frequent token "
        f"gets {percent(found.most_frequent_fraction)}"
    )
    if found.on_plateau:
        return (
            f"This encoder does not beat the unigram baseline: its held-out loss is {found.loss:.2f} nats, and knowing "
            f"only how frequent each token is gives {found.unigram_loss:.2f} (the unigram plateau); {right}."
        )
    return (
        f"This encoder beats the unigram baseline: its held-out loss is {found.loss:.2f} nats, {below:.2f} below the "
        f"{found.unigram_loss:.2f} of knowing only how frequent each token is; {right}."
    )


def task_sentence(pairs: Sequence[TaskPair]) -> str:
    """What pretraining was worth, on the first task or over all of them."""
    gains = [pair for pair in pairs if pair.gain is not None]
    if not gains:
        return ""
    if len(gains) == 1:
        first = gains[0]
        assert first.pretrained and first.untrained and first.gain is not None
        return (
            f"On the task {first.task} it scores {score(first.pretrained.mean)} ({first.pretrained.metric} x 100); the "
            f"same network without pretraining scores {score(first.untrained.mean)}, and always giving the same answer "
            f"{score(first.pretrained.baseline)}."
        )
    better, worse = _moved(gains)
    return (
        f"Of {len(gains)} tasks pretraining helps on {better} and harms on {worse} by more than the seed spread; the "
        "others show no difference."
    )


def _moved(pairs: Sequence[TaskPair]) -> tuple[int, int]:
    """On how many tasks pretraining moved the score by more than the seed spread: up, and down."""
    gains = [pair.gain or 0.0 for pair in pairs if pair.verdict == "more than the seed spread"]
    return sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)


def warnings(runs: Sequence[RunRecords]) -> list[Markup]:
    """What a reader must know before trusting the page: refused exports, unfinished runs, missing records.

    What is true of several runs is said once.
    """
    refused: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    faulty: dict[str, list[str]] = {}
    for run in runs:
        parity = run.summary.parity if run.summary else None
        if parity is not None and not parity.passed:
            refused.setdefault(parity.failure or "the parity gate failed", []).append(run.label)
        for fault in run.faults:
            faulty.setdefault(fault, []).append(run.label)
        if run.missing:
            missing.setdefault(", ".join(run.missing), []).append(run.label)
    young = [run for run in runs if run.going_on]
    apart = [
        run.label
        for run in runs
        if run.summary
        and run.summary.context_use
        and not run.summary.validation.on_plateau
        and not run.summary.context_use.attends_across_segments
    ]
    found = []
    for reason, labels in refused.items():
        whose = f" of {together(labels)}" if len(runs) > 1 else ""
        found.append(note(f"Export{whose} refused: {reason}", "alarm"))
    for fault, labels in faulty.items():
        whose = f"{together(labels)}: " if len(runs) > 1 else ""
        found.append(note(f"{whose}{fault}", "warning"))
    if apart:
        verb = "does" if len(apart) == 1 else "do"
        words = f"{together(apart)} {verb} not compare segments yet: expect results near chance on sentence pairs."
        found.append(note(words, "warning"))
    if young:
        verb = "has" if len(young) == 1 else "have"
        beats = "; ".join(
            f"{run.label} {heartbeat(run)}" if len(young) > 1 else heartbeat(run) for run in young[:NAMED]
        )
        names = together([run.label for run in young])
        found.append(note(f"{names} {verb} not ended: {beats}. Figures below are those so far.", "warning"))
    found += [note(f"Not in the folder of {together(labels)}: {what}.", "quiet") for what, labels in missing.items()]
    return found


def heartbeat(run: RunRecords) -> str:
    """Whether a run that has not ended is alive, as it was when its files were read."""
    ago = duration(run.silent)
    if run.stopped:
        return f"stopped, last heartbeat {ago} before this page was written (the same command resumes it)"
    if run.silent <= SILENCE:
        return f"still running, last heartbeat {ago} before this page was written"
    return f"silent for {ago} when this page was written (stopped, killed or stuck; the same command resumes it)"


def together(labels: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; of many the first ones and a count."""
    if len(labels) > NAMED:
        labels = [*labels[: NAMED - 1], f"{len(labels) - NAMED + 1} others"]
    return " and ".join(filter(None, [", ".join(labels[:-1]), labels[-1]]))


def _tiles(run: RunRecords) -> Markup:
    found, summary = run.validation, run.summary
    tiles: list[tuple[str, str, str]] = []
    if found:
        gap, side = abs(found.unigram_loss - found.loss), "below" if found.loss < found.unigram_loss else "above"
        under = f"{gap:.2f} {side} the plateau at {found.unigram_loss:.2f}"
        tiles.append((f"{found.loss:.2f}", "nats held-out loss", under))
        tiles.append(
            (percent(found.accuracy), "masked accuracy", f"most frequent token {percent(found.most_frequent_fraction)}")
        )
        if found.next_accuracy is not None:
            tiles.append((percent(found.next_accuracy), "next-sentence accuracy", "guessing gives about 50 %"))
    gains = [pair for pair in pair_results(run.results) if pair.gain is not None]
    if len(gains) == 1:
        first = gains[0]
        tiles.append((signed(100 * (first.gain or 0), 1), "points from pretraining", f"{first.task}: {first.verdict}"))
    elif gains:
        better, worse = _moved(gains)
        under = f"{worse} harmed; by more than the spread"
        tiles.append((f"{better} of {len(gains)}", "tasks helped by pretraining", under))
    if run.tokens:
        rate = f"{count(summary.tokens_per_second)} a second" if summary else "so far"
        tiles.append((count(run.tokens), "tokens read", rate))
    if run.pretrained_here:
        tiles.append((duration(run.elapsed), "of training time", f"budget {budget_words(run)}"))
    if summary:
        tiles.append((count(summary.parameters), "parameters", f"{summary.steps:,} steps"))
    written = [
        tag("div", tag("b", big), tag("span", small), tag("em", under), class_="tile") for big, small, under in tiles
    ]
    return tag("div", *written, class_="tiles")


def budget_words(run: RunRecords) -> str:
    if run.summary is not None:
        return run.summary.budget
    return str(run.recipe.get("budget", "unknown"))


def _several(runs: Sequence[RunRecords]) -> Markup:
    judged = [(run.validation.loss, run) for run in runs if run.validation is not None]
    words = "What they have in common stands side by side."
    if any(run.pretrained_here for run in runs):
        words = "Fewer than two of them have been validated, so no losses are compared."
    if len(judged) > 1 and judged_apart(runs):
        words = "Their held-out losses cannot be ranked."
    elif len(judged) > 1:
        judged.sort(key=lambda pair: pair[0])
        (best, first), (second, other) = judged[0], judged[1]
        words = (
            f"{first.label} has the lowest held-out loss: {best:.3f} nats, {second - best:.3f} below {other.label}. "
            "One run a setting shows no seed spread, so small differences may be chance."
        )
    stuck = [
        f"{run.label} ({run.validation.loss:.2f} nats after {run.validation.step:,} steps)"
        for run in runs
        if run.validation is not None and run.validation.on_plateau
    ]
    if stuck:
        words += f" Still on the unigram plateau: {', '.join(stuck)}."
    return tag(
        "header",
        tag("p", "Daybreak report", class_="brand"),
        tag(
            "h1",
            f"{len(runs)} models compared"
            if any(not run.pretrained_here for run in runs)
            else f"{len(runs)} runs compared",
        ),
        tag("p", " ".join([*_beaten(runs), words]), class_="lead"),
        *([note(reason, "warning")] if (reason := incomparable(runs)) else []),
        *warnings(runs),
    )


def _beaten(runs: Sequence[RunRecords]) -> list[str]:
    """For each run with results, whether it beats its baselines; the numbers of many runs stand in the table alone."""
    evaluated = [run for run in runs if any(result.model == "pretrained" for result in run.results)]
    if len(evaluated) <= SPELLED_OUT:
        return [baseline_sentence(run.results, run.label) for run in evaluated]
    found = []
    for run in evaluated:
        mine = [result for result in run.results if result.model == "pretrained"]
        found.append(f"{run.label} on {sum(result.beats_baseline for result in mine)} of {len(mine)}")
    return [f"Tasks on which an encoder beats its baselines: {', '.join(found)}."]


def judged_apart(runs: Sequence[RunRecords]) -> bool:
    """Whether the runs differ in tokenizer or held-out text."""

    def judged_on(manifest: Manifest) -> tuple[str, int, int]:
        return manifest.tokenizer, manifest.heldout.documents, manifest.heldout.tokens

    return len({judged_on(run.manifest) for run in runs if run.manifest}) > 1


def incomparable(runs: Sequence[RunRecords]) -> str:
    """Why the losses of these runs must not be set against each other; empty where they may."""
    if judged_apart(runs):
        return "These runs differ in tokenizer or held-out text, so their losses and accuracies are not comparable."
    positions = {run.validation.positions for run in runs if run.validation and run.validation.final}
    if len(positions) > 1:
        return "These runs were validated on different numbers of positions, so small differences in loss mean little."
    return ""


def load_lines(runs: Sequence[RunRecords]) -> Markup:
    """How to use the models, to be copied."""
    folder, *others = [str(run.path / "model") for run in runs]
    choice = "".join(f"# or {other!r}\n" for other in others)
    own_code = any(any((run.path / "model").glob("*.py")) for run in runs)
    trust = ", trust_remote_code=True" if own_code else ""
    code = (
        "from transformers import pipeline\n\n"
        f"folder = {folder!r}\n{choice}"
        f'fill = pipeline("fill-mask", model=folder{trust})\n'
        'fill(f"The {fill.tokenizer.mask_token} of the function is a list.")'
    )
    run = runs[0].path
    data = shlex.quote(str(run / "data")) if (run / "data").is_dir() else "DATA"
    model, first, again = (shlex.quote(name) for name in (folder, str(run), f"{run}-again"))
    own = " and ".join(map(str, runs[0].recipe.get("own_kinds", ())))
    given, which = (" --recipe FILE.py", f"; FILE.py is yours, with {own}") if own else ("", "")
    shell = (
        f"daybreak evaluate {model} --tasks my_task.toml\ndaybreak status {first}\n"
        f"daybreak pretrain {first}{given} --data {data} --out {again}    "
        f"# the same recipe, seed and budget once more{which}"
    )
    return join(tag("pre", code), tag("pre", shell))
