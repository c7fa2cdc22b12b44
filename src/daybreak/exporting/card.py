"""The model card: README.md of the exported folder. Counts and scores only; no training text, no local path."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import jinja2

from daybreak.core.files import read_json, write_text
from daybreak.core.formatting import count, percent, score, signed, significant
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import flat
from daybreak.core.task_pairs import TaskPair, baseline_sentence, pair_results, several_models
from daybreak.core.terminal import duration
from daybreak.exporting.budget_files import bare, write_budget_files
from daybreak.exporting.hub import HUB_NAME
from daybreak.schemas.changes import MachineUse
from daybreak.schemas.corpus import CorpusReport
from daybreak.schemas.run import Environment, Manifest, Summary
from daybreak.schemas.tasks import CLAIM_SEEDS, Average, TaskResult, spread
from daybreak.training.calibration import MANY_EPOCHS

GIB = 1 << 30
CHANGES_LISTED = 5
SOURCES_LISTED = 10
FRACTIONS_LISTED = 5
ARCHITECTURES = {
    "modernbert": ("ModernBERT", "ModernBERT (arXiv:2412.13663)"),
    "bert": ("BERT", "BERT (Devlin et al. 2018, arXiv:1810.04805)"),
    "daybreak-crammed": ("crammed BERT", "Cramming (Geiping and Goldstein 2022, arXiv:2212.14034)"),
}
"""``model_type`` of config.json -> name of the architecture and its publication."""
WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
NOT_IN_BIBTEX = re.compile(r"[^A-Za-z0-9 .,:;()/+-]+")


def write_card(run: RunFolder, results: list[TaskResult], averages: Sequence[Average] = ()) -> None:
    """Write the model card of a finished run and the budget files beside it.

    Args:
        results: task scores for the card.
        averages: averages over these scores.
    """
    write_budget_files(run)
    card = render_card(
        read_recipe_file(run.recipe),
        read_json(run.summary, Summary),
        results,
        read_json(run.environment, Environment),
        read_json(run.manifest, Manifest),
        read_json(run.model / "config.json"),
        averages,
        read_json(run.corpus, CorpusReport) if run.corpus.exists() else None,
    )
    write_text(run.model / "README.md", card)


def render_card(
    recipe: dict[str, Any],
    summary: Summary | None,
    results: list[TaskResult],
    environment: Environment,
    manifest: Manifest,
    config: dict[str, Any],
    averages: Sequence[Average] = (),
    corpus: CorpusReport | None = None,
) -> str:
    """Return the text of README.md, with the front matter that the Hugging Face hub reads.

    Args:
        recipe: the resolved recipe as plain JSON.
        summary: None if pretraining has not ended.
        config: the export's config.json.
        averages: over the results, for the conventions that are complete.
        corpus: the report on the text; None if the text was prepared by an earlier version.
    """
    parity = summary.parity if summary else None
    longest = max(_lengths(recipe), default=int(config.get("max_position_embeddings", 0)))
    own_code = "auto_map" in config
    loader = jinja2.PackageLoader("daybreak.exporting")
    jinja = jinja2.Environment(loader=loader, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    jinja.filters["line"] = line
    jinja.globals |= {"table": table, "count": count, "percent": percent}
    return jinja.get_template("card.md").render(
        front_matter=_front_matter(config, results, summary),
        name=str(recipe.get("name", "encoder")),
        refused=(parity.failure or "the parity check failed") if parity and not parity.passed else "",
        description=_description(recipe, config, summary),
        own_code=own_code,
        trust=", trust_remote_code=True" if own_code else "",
        longest=longest,
        summary=summary,
        quality=_quality(summary) if summary else [],
        forgetting=[
            [name, f"{old:.3f}", f"{new:.3f}", signed(new - old, 3)]
            for name, old, new in (summary.forgetting.texts if summary and summary.forgetting else ())
        ],
        baseline=baseline_sentence(results),
        protocols=_protocols(pair_results(results)),
        averages=_averages(averages),
        **_text(manifest, corpus),
        budget=_budget(summary, environment, manifest),
        course=_course(summary) if summary else "",
        recipe=[[f"`{name}`", str(value)] for name, value in flat(bare(recipe))],
        parity=parity,
        checks=[[name.replace("_", " "), "passed" if good else "FAILED"] for name, good in parity.checks.items()]
        if parity
        else [],
        limitations=_limitations(summary, pair_results(results), environment, corpus, longest),
        paper=ARCHITECTURES.get(str(config.get("model_type")), ("", ""))[1],
        citation=_citation(recipe, summary, environment),
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of any texts."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line(cell) for cell in cells) + " |" for cells in lines)


def line(text: str) -> str:
    """One line that is safe in a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _front_matter(config: dict[str, Any], results: Sequence[TaskResult], summary: Summary | None) -> str:
    """The metadata of the hub. The licence is ``other``: the owner of the text has to choose it."""
    from huggingface_hub import ModelCardData

    parent = summary.parent if summary else ""
    tags = ["daybreak", "fill-mask", "encoder", str(config.get("model_type", ""))]
    tags += ["custom_code"] if "auto_map" in config else []
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="fill-mask",
        license="other",
        tags=[tag for tag in dict.fromkeys(tags) if tag],
        base_model=parent if "/" in parent and HUB_NAME.fullmatch(parent) else None,
        metrics=list(dict.fromkeys(result.metric for result in results)) or None,
    ).to_yaml()


def _description(recipe: dict[str, Any], config: dict[str, Any], summary: Summary | None) -> str:
    size = f" with {count(summary.parameters)} parameters" if summary else ""
    name = ARCHITECTURES.get(str(config.get("model_type")), ("", ""))[0]
    architecture = f" of the {name} architecture" if name else ""
    lengths = " and later ".join(map(str, _lengths(recipe)))
    length = f" It was trained on sequences of {lengths} tokens." if lengths else ""
    next_sentence = summary is not None and summary.validation.next_accuracy is not None
    objective = "masked language modeling" + (" and next-sentence prediction" if next_sentence else "")
    parent = summary.parent if summary else ""
    start = f"continued from {line(parent)}" if parent else "pretrained from random weights"
    return (
        f"A bidirectional text encoder{architecture}{size}, {start} with {objective} by Daybreak within a fixed budget."
        f"{length} It is meant to be fine-tuned."
    )


def _lengths(recipe: dict[str, Any]) -> list[int]:
    """Tokens of a sequence in each phase of the recipe."""
    phase2 = recipe.get("phase2", {})
    second = phase2 and (phase2["start"] < 1 or phase2["when_flat"])
    return [int(recipe["length"]), *([int(phase2["length"])] if second else [])] if "length" in recipe else []


def _quality(summary: Summary) -> list[list[str]]:
    record = summary.validation
    most_frequent = f"{percent(record.most_frequent_fraction)} (always the most frequent token)"
    rows = [
        ["Loss (nats per masked token)", f"{record.loss:.3f}", f"{record.unigram_loss:.3f} (unigram baseline)"],
        ["Accuracy", percent(record.accuracy), most_frequent],
        ["Different predictions", f"{record.distinct:,}", "1"],
    ]
    if record.own_loss is not None and record.own_accuracy is not None:
        own = f"{record.own_loss:.3f} nats, {percent(record.own_accuracy)}"
        rows.append(["As trained (the recipe's own sequences and masks)", own, "-"])
    if record.next_accuracy is not None:
        rows.append(["Next-sentence accuracy", percent(record.next_accuracy), "about 50 % (chance)"])
    return rows


# ---------------------------------------------------------------- tasks


def _protocols(pairs: Sequence[TaskPair]) -> list[dict[str, Any]]:
    """For each protocol its name, its details and the rows of its table."""
    named = several_models(pairs)
    return [
        {
            "name": protocol,
            "details": _details([pair for pair in pairs if pair.protocol == protocol]),
            "rows": [task_row(pair, named) for pair in pairs if pair.protocol == protocol],
        }
        for protocol in dict.fromkeys(pair.protocol for pair in pairs)
    ]


def task_row(pair: TaskPair, named: bool) -> list[str]:
    """The cells of a task; ``named`` adds the name of the model."""
    result = pair.either
    bag_of_words = "-"
    for side in reversed(_sides(pair)):
        if side.bag_of_words:
            part = f" ({side.bag_of_words_part})" if side.bag_of_words_part else ""
            bag_of_words = score(side.bag_of_words[side.metric]) + part
    return [
        f"{pair.task}, {pair.model_name}" if named else pair.task,
        f"{result.metric.replace('_', ' ')}, {result.reported_rows:,} {result.reported} examples",
        score(result.baseline),
        bag_of_words,
        _score(pair.untrained),
        _score(pair.pretrained),
        _combined(pair.pretrained),
        "-" if pair.gain is None else f"{signed(100 * pair.gain, 1)} ({pair.verdict})",
    ]


def _combined(result: TaskResult | None) -> str:
    values = result.combined if result else []
    if not values:
        return "-"
    return score(statistics.fmean(values)) + (f" +- {score(spread(values))}" if len(values) > 1 else "")


def _score(result: TaskResult | None) -> str:
    if result is None:
        return "-"
    values = result.scores[result.metric]
    seeds = ", ".join(f"{seed}: {score(value)}" for seed, value in zip(result.seeds, values))
    spread = f" +- {score(result.spread)}, median {score(result.median)}" if len(result.seeds) > 1 else ""
    other = result.scores.get(f"mismatched_{result.metric}", [])
    mismatched = f"; mismatched {score(sum(other) / len(other))}" if other else ""
    return f"{score(result.mean)}{spread} (seed {seeds}){mismatched}"


def _details(pairs: Sequence[TaskPair]) -> str:
    """Selection, settings and hardware."""

    def settings(result: TaskResult) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in result.settings.items())

    details = [
        _shared("Selection", pairs, lambda result: result.selection),
        _shared("Settings", pairs, settings),
        _shared("Hardware", pairs, lambda result: result.hardware),
    ]
    return " ".join(filter(None, details))


def _shared(name: str, pairs: Sequence[TaskPair], value: Callable[[TaskResult], str]) -> str:
    """A property of the results, once for all tasks that share it; empty if it is unknown."""
    tasks: dict[str, dict[str, None]] = {}
    for pair in pairs:
        for result in _sides(pair):
            if words := value(result):
                tasks.setdefault(words, {})[pair.task] = None
    if len(tasks) == 1:
        return f"{name}: {line(next(iter(tasks)))}."
    return " ".join(f"{name} on {line(', '.join(names))}: {line(words)}." for words, names in tasks.items())


def _sides(pair: TaskPair) -> list[TaskResult]:
    return [side for side in (pair.pretrained, pair.untrained) if side is not None]


def _averages(averages: Sequence[Average]) -> list[list[str]]:
    """One row per convention."""
    several = len({average.model_name for average in averages}) > 1
    return [
        [
            average.convention,
            average.protocol,
            f"{average.model_name}, {average.model}" if several else average.model,
            score(average.value),
            f"{average.what}; {average.seeds} seed{'s' if average.seeds > 1 else ''} or more a task",
        ]
        for average in averages
    ]


# ---------------------------------------------------------------- text and budget


def _text(manifest: Manifest, corpus: CorpusReport | None) -> dict[str, Any]:
    """Sources, counts, filters and contamination of the training text."""
    skipped = ", ".join(f"{number:,} {why}" for why, number in manifest.skipped.items() if number)
    rows = [
        ["Training documents", count(manifest.train.documents)],
        ["Training tokens", count(manifest.train.tokens)],
        ["Held-out documents", count(manifest.heldout.documents)],
        ["Characters", count(manifest.characters)],
        ["Exact duplicates removed", f"{manifest.duplicates:,}"],
        ["Left out", skipped or "nothing"],
        ["Tokenizer", f"{manifest.tokenizer_kind}, {manifest.vocabulary:,} tokens"],
    ]
    if corpus is not None:
        languages = _fractions(corpus.languages) if corpus.languages else "not identified"
        rows += [["Scripts, by letters", _fractions(corpus.scripts)], ["Languages, by documents", languages]]
    names = [f"`{line(PurePath(source.path).name)}`" for source in manifest.sources[:SOURCES_LISTED]]
    more = len(manifest.sources) - len(names)
    return {
        "sources": ", ".join(names) + (f" and {more} more" if more else ""),
        "text": rows,
        "preset": corpus.preset if corpus else "",
        "filters": [
            [
                WORD_BOUNDARY.sub(" ", step.name),
                f"{step.documents_in - step.documents_out:,}",
                percent((step.documents_in - step.documents_out) / step.documents_in),
            ]
            for step in (corpus.steps if corpus else ())
            if step.documents_in > step.documents_out
        ],
        "contamination": [
            [
                f"`{PurePath(found.path).name}`",
                f"{found.items_found:,} of {found.items:,}",
                "none needed" if not found.items_found else "documents removed" if found.removed else "only counted",
            ]
            for found in (corpus.contamination if corpus else ())
        ],
        "searched_for_nothing": corpus is not None and not corpus.contamination,
    }


def _fractions(found: Mapping[str, float]) -> str:
    """The largest fractions; invalid ones, as in a damaged record, are left out."""
    pairs = sorted(((part, name) for name, part in found.items() if 0 < part <= 1), reverse=True)
    return ", ".join(f"{name} {percent(part)}" for part, name in pairs[:FRACTIONS_LISTED]) or "unknown"


def _budget(summary: Summary | None, environment: Environment, manifest: Manifest) -> list[list[str]]:
    machine = f"{environment.device}, {environment.cores} cores, {environment.memory_gib:.0f} GiB"
    rows = [["Hardware", machine], ["Software", f"Daybreak {environment.daybreak}, torch {environment.torch}"]]
    if summary is None:
        return rows
    by_category = ", ".join(f"{use} {seconds:.1f} s" for use, seconds in summary.time_by_category.items() if seconds)
    not_charged = f"preparing the text {manifest.seconds:.1f} s, parity check {summary.parity_seconds:.1f} s"
    return [
        ["Budget", summary.budget],
        ["Time charged", f"{summary.elapsed:.1f} s ({duration(summary.elapsed)})"],
        ["Time by category", by_category],
        ["Steps", f"{summary.steps:,}"],
        ["Tokens read", f"{count(summary.tokens)} ({significant(summary.epochs, 2)} epochs)"],
        ["Resumed", f"{summary.resumes} times"],
        ["Not charged", not_charged],
        *_machine(summary.machine, environment),
        *rows,
    ]


def _machine(use: MachineUse | None, environment: Environment) -> list[list[str]]:
    """Energy, cost if a price was given, and memory."""
    energy, cost = (use.kilowatt_hours, use.cost) if use else (None, None)
    measured = None if energy is None else f"{significant(energy)} kWh of the accelerators, measured"
    rows = [["Energy", measured or "not measured: no accelerator reported its power"]]
    if cost is not None:
        rows.append(["Cost", f"{cost:,.2f} at the given price"])
    if use is not None:
        of_devices = f", {use.device_memory / GIB:.1f} GiB of an accelerator" if use.device_memory else ""
        fraction = f" ({100 * use.memory / GIB / environment.memory_gib:.0f} %)" if environment.memory_gib > 0 else ""
        rows.append(["Peak memory", f"{use.memory / GIB:.1f} GiB{fraction} of the process{of_devices}"])
    return rows


def _course(summary: Summary) -> str:
    """Lost work, steps without an update, and changes of settings."""
    found = []
    if lost := summary.time_by_category.get("lost", 0.0):
        found.append(f"{lost:.1f} s of work was lost when training stopped, and repeated within the budget.")
    if summary.dropped:
        steps = "1 step" if summary.dropped == 1 else f"{summary.dropped:,} steps"
        found.append(f"{steps} had non-finite or exploding values and did not update the weights.")
    if summary.changes:
        changes = [f"at step {change.step:,}, {line(change.why).rstrip('.')}" for change in summary.changes]
        more = len(changes) - CHANGES_LISTED
        listed = [*changes[:CHANGES_LISTED], *([f"and {more} more"] if more > 0 else [])]
        found.append(f"Changes of settings during training: {'; '.join(listed)}.")
    return " ".join(found)


# ---------------------------------------------------------------- limitations and citation


def _limitations(
    summary: Summary | None,
    pairs: Sequence[TaskPair],
    environment: Environment,
    corpus: CorpusReport | None,
    longest: int,
) -> list[str]:
    """Sentences that follow from the records.

    Args:
        longest: tokens of the longest sequence of training.
    """
    found = [
        *(_training_limitations(summary, environment) if summary else []),
        *_task_limitations(pairs),
        "It was trained on the text listed above only, and may repeat its errors and biases.",
    ]
    if corpus is not None and not corpus.contamination:
        found.append("The training text was not searched for evaluation text.")
    elif corpus is not None and any(each.items_found and not each.removed for each in corpus.contamination):
        found.append("The training text contains evaluation text (see above): scores on it may be too high.")
    return [
        *found,
        f"It was not trained on sequences of more than {longest:,} tokens.",
        "Daybreak does not choose a licence: the owner of the training text and of this folder must set it.",
    ]


def _training_limitations(summary: Summary, environment: Environment) -> list[str]:
    found = [
        f"It read {count(summary.tokens)} tokens in {duration(summary.elapsed)} on {line(environment.device)}. "
        "This is one run with one seed; other seeds may give other results."
    ]
    if summary.validation.on_plateau:
        found.append("It has learned token frequencies and little else.")
    elif summary.context_use and not summary.context_use.attends_across_segments:
        found.append("It does not compare two segments of text: expect results near chance on sentence pairs.")
    if summary.parity is not None and not summary.parity.passed:
        found.append("It failed its parity check: do not use it.")
    if summary.epochs >= MANY_EPOCHS:
        epochs = significant(summary.epochs, 2)
        found.append(f"It read its text for {epochs} epochs and may have memorized parts of it, also private ones.")
    if summary.parent:
        found.append(f"It was continued from {line(summary.parent)} and keeps the limitations of that model.")
    return found


def _task_limitations(pairs: Sequence[TaskPair]) -> list[str]:
    if not pairs:
        return ["It has not been fine-tuned on any task, so its quality on tasks is unknown."]
    moved = [pair for pair in pairs if pair.verdict == "more than the seed spread"]
    cases = [
        ([pair for pair in moved if (pair.gain or 0.0) < 0], "it is worse than the same network without pretraining"),
        (
            [pair for pair in pairs if pair.verdict == "within the seed spread"],
            "pretraining made no difference beyond the seed spread",
        ),
        (
            [pair for pair in pairs if pair.pretrained is not None and pair.untrained is None],
            "there is no result of the same network without pretraining",
        ),
        (
            [pair for pair in pairs if any(len(side.seeds) < CLAIM_SEEDS for side in _sides(pair))],
            f"a side has fewer than {CLAIM_SEEDS} seeds, too few for a claim",
        ),
    ]
    return [f"On {_names(found)} {words}." for found, words in cases if found]


def _names(pairs: Sequence[TaskPair]) -> str:
    names = list(dict.fromkeys(line(f"{pair.task} ({pair.protocol})") for pair in pairs))
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _citation(recipe: dict[str, Any], summary: Summary | None, environment: Environment) -> dict[str, str]:
    """The fields of a BibTeX entry."""
    name = _bibtex(str(recipe.get("name", "encoder")))
    year = str(datetime.fromtimestamp(environment.started, UTC).year)
    size = f" with {count(summary.parameters)} parameters" if summary else ""
    seed = f", seed {recipe['seed']}" if "seed" in recipe else ""
    fingerprint = f", fingerprint {_bibtex(str(recipe['fingerprint']))}" if "fingerprint" in recipe else ""
    key = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "encoder"
    return {
        "key": f"{key}-{year}",
        "title": f"{name}: a text encoder{size}",
        "year": year,
        "note": f"Pretrained by Daybreak {_bibtex(environment.daybreak)}, recipe {name}{seed}{fingerprint}",
    }


def _bibtex(text: str) -> str:
    """Without characters that are special in BibTeX or in a code block."""
    return " ".join(NOT_IN_BIBTEX.sub(" ", text).split())
