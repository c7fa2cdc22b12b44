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
from daybreak.core.formatting import count, listed, metric_name, percent, score, signed, significant
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import flat
from daybreak.core.task_pairs import (
    BEYOND_SPREAD,
    WITHIN_SPREAD,
    TaskPair,
    baseline_sentence,
    pair_results,
    several_models,
)
from daybreak.core.terminal import duration
from daybreak.exporting.budget_files import bare, write_budget_files
from daybreak.exporting.hub import HUB_NAME
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
    tokenizer = run.model / "tokenizer_config.json"
    card = render_card(
        read_recipe_file(run.recipe),
        read_json(run.summary, Summary),
        results,
        read_json(run.environment, Environment),
        read_json(run.manifest, Manifest),
        read_json(run.model / "config.json"),
        averages,
        read_json(run.corpus, CorpusReport) if run.corpus.exists() else None,
        read_json(tokenizer).get("model_max_length") if tokenizer.exists() else None,
    )
    write_text(run.model / "README.md", card)


def render_card(
    recipe: dict[str, Any],
    summary: Summary,
    results: list[TaskResult],
    environment: Environment,
    manifest: Manifest,
    config: dict[str, Any],
    averages: Sequence[Average] = (),
    corpus: CorpusReport | None = None,
    longest: int | None = None,
) -> str:
    """Return the text of README.md, with the front matter that the Hugging Face hub reads.

    Args:
        recipe: the resolved recipe as plain JSON.
        config: the export's config.json.
        averages: over the results, for the conventions that are complete.
        corpus: the report on the text; None if the text was prepared by an earlier version.
        longest: tokens of the longest sequences that the export names; a second phase of longer ones never started.
    """
    lengths, finish = _lengths(recipe, longest), recipe.get("finish", {})
    finish_length = int(finish["length"]) if finish.get("start", 1) < 1 else 0
    own_code = "auto_map" in config
    architecture, paper = ARCHITECTURES.get(str(config.get("model_type")), ("", ""))
    pairs = pair_results(results)
    name = str(recipe.get("name", "encoder"))
    loader = jinja2.PackageLoader("daybreak.exporting")
    jinja = jinja2.Environment(
        loader=loader,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"line": line, "bibtex": _bibtex}
    words = (count, percent, score, signed, significant, duration)
    jinja.globals |= {each.__name__: each for each in words}
    jinja.globals |= {"GIB": GIB, "CHANGES_LISTED": CHANGES_LISTED, "MANY_EPOCHS": MANY_EPOCHS}
    return jinja.get_template("card.md").render(
        front_matter=_front_matter(config, results, summary.parent),
        name=name,
        architecture=architecture,
        paper=paper,
        size=f" with {count(summary.parameters)} parameters",
        parent=summary.parent,
        own_code=own_code,
        trust=", trust_remote_code=True" if own_code else "",
        lengths=lengths,
        finish=bool(finish_length),
        longest=max(*lengths, finish_length) if lengths else int(config.get("max_position_embeddings", 0)),
        summary=summary,
        validation=summary.validation,
        parity=summary.parity,
        use=summary.machine,
        environment=environment,
        manifest=manifest,
        corpus=corpus,
        baseline=baseline_sentence(results),
        protocols=_protocols(pairs),
        task_limitations=_task_limitations(pairs),
        averages=averages,
        several_models=len({average.model_name for average in averages}) > 1,
        sources=[PurePath(source.path).name for source in manifest.sources[:SOURCES_LISTED]],
        more_sources=len(manifest.sources) - SOURCES_LISTED,
        fractions=_fractions,
        filters=[step for step in (corpus.steps if corpus else ()) if step.documents_in > step.documents_out],
        spaced=lambda name: WORD_BOUNDARY.sub(" ", name),
        contaminated=corpus and any(each.items_found and not each.removed for each in corpus.contamination),
        bare=bare,
        recipe=[(field, str(value)) for field, value in flat(bare(recipe))],
        key=re.sub(r"[^A-Za-z0-9]+", "-", _bibtex(name)).strip("-") or "encoder",
        year=datetime.fromtimestamp(environment.started, UTC).year,
        seed=recipe.get("seed"),
        fingerprint=str(recipe.get("fingerprint", "")),
    )


def line(text: str) -> str:
    """One line that is safe in a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _front_matter(config: dict[str, Any], results: Sequence[TaskResult], parent: str) -> str:
    """The metadata of the hub. The license is ``other``: the owner of the text has to choose it."""
    from huggingface_hub import ModelCardData

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


def _lengths(recipe: dict[str, Any], longest: int | None) -> list[int]:
    """Tokens of a sequence in each phase of the run."""
    phase2 = recipe.get("phase2", {})
    second = phase2 and (phase2["start"] < 1 or phase2["when_flat"])
    second = second and (longest is None or phase2["length"] <= longest)
    return [int(recipe["length"]), *([int(phase2["length"])] if second else [])] if "length" in recipe else []


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
        f"{metric_name(result.metric)}, {result.training_size} training rows, "
        f"{result.reported_rows:,} {result.reported} rows",
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


def _fractions(found: Mapping[str, float]) -> str:
    """The largest fractions; invalid ones, as in a damaged record, are left out."""
    pairs = sorted(((part, name) for name, part in found.items() if 0 < part <= 1), reverse=True)
    return ", ".join(f"{name} {percent(part)}" for part, name in pairs[:FRACTIONS_LISTED]) or "unknown"


def _task_limitations(pairs: Sequence[TaskPair]) -> list[tuple[str, str]]:
    """(tasks, what is true of them) of each limitation that some tasks have."""

    def has_few_seeds(pair: TaskPair) -> bool:
        return any(len(side.seeds) < CLAIM_SEEDS for side in _sides(pair))

    cases: dict[str, Callable[[TaskPair], bool]] = {
        "it is worse than the same network without pretraining": lambda p: (
            p.verdict == BEYOND_SPREAD and (p.gain or 0.0) < 0
        ),
        "pretraining made no difference beyond the standard deviation over seeds": lambda p: p.verdict == WITHIN_SPREAD,
        "there is no result of the same network without pretraining": lambda p: bool(p.pretrained and not p.untrained),
        f"it or the network without pretraining has fewer than {CLAIM_SEEDS} seeds, too few for a claim": has_few_seeds,
    }
    found = [(_names([pair for pair in pairs if case(pair)]), words) for words, case in cases.items()]
    return [(tasks, words) for tasks, words in found if tasks]


def _names(pairs: Sequence[TaskPair]) -> str:
    return listed(list(dict.fromkeys(line(f"{pair.task} ({pair.protocol})") for pair in pairs)))


def _bibtex(text: str) -> str:
    """Without characters that are special in BibTeX or in a code block."""
    return " ".join(NOT_IN_BIBTEX.sub(" ", text).split())
