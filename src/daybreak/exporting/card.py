"""The model card: README.md of the exported folder. Counts and scores only; no corpus text, no path of ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from daybreak.core.files import read_json, write_text
from daybreak.core.formatting import count, percent, signed, significant
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import flat
from daybreak.core.terminal import duration
from daybreak.exporting.budget_files import bare, write_budget_files
from daybreak.exporting.card_data import text_block
from daybreak.exporting.card_limits import limits
from daybreak.exporting.card_tasks import averages_block, tasks_block
from daybreak.exporting.card_text import line, table
from daybreak.exporting.card_use import citation, use
from daybreak.exporting.hub import HUB_NAME
from daybreak.schemas.changes import MachineUse
from daybreak.schemas.corpus import CorpusReport
from daybreak.schemas.run import Environment, Manifest, Parity, Summary
from daybreak.schemas.tasks import Average, TaskResult

GIB = 1 << 30
CHANGES_NAMED = 5
KINDS = {"modernbert": "ModernBERT", "bert": "BERT", "daybreak-crammed": "crammed BERT"}
"""What config.json calls the architecture -> what readers call it."""


def write_card(run: RunFolder, results: list[TaskResult], averages: Sequence[Average] = ()) -> None:
    """Write the card of a finished run's model from the run's records and these results, and the files beside it."""
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
        summary: None while pretraining has not ended.
        config: the export's config.json.
        averages: over the results, where a convention is complete.
        corpus: what is known of the text; None where nothing is recorded.
    """
    parity = summary.parity if summary else None
    longest = max(_lengths(recipe), default=int(config.get("max_position_embeddings", 0)))
    parts = [
        _front_matter(config, results, summary),
        f"# {line(str(recipe.get('name', 'encoder')))}",
        _banner(parity),
        _what(recipe, config, summary),
        use(config, longest),
        _quality(summary),
        _worth(summary),
        tasks_block(results),
        averages_block(averages),
        text_block(manifest, corpus),
        _budget(summary, environment, manifest),
        _recipe(recipe),
        _parity(parity),
        limits(summary, results, environment, corpus, longest),
        citation(recipe, config, summary, environment),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(config: dict[str, Any], results: Sequence[TaskResult], summary: Summary | None) -> str:
    """JSON strings are YAML strings, so quoting is JSON's. The licence is not ours to choose, but the text owner's."""
    parent = summary.parent if summary else ""
    kinds = dict.fromkeys([str(config.get("model_type", "")), *(["custom_code"] if "auto_map" in config else [])])
    tags = ["daybreak", "fill-mask", "encoder", *(kind for kind in kinds if kind)]
    lines = ["---", "library_name: transformers", "pipeline_tag: fill-mask", "license: other", "tags:"]
    lines += [f"- {json.dumps(tag)}" for tag in tags]
    if "/" in parent and HUB_NAME.fullmatch(parent):
        lines.append(f"base_model: {json.dumps(parent)}")
    metrics = dict.fromkeys(result.metric for result in results)
    lines += ["metrics:", *(f"- {json.dumps(metric)}" for metric in metrics)] if metrics else []
    return "\n".join([*lines, "---"])


def _banner(parity: Parity | None) -> str:
    if parity is None or parity.passed:
        return ""
    failure = line(parity.failure or "the parity gate failed")
    return (
        f"> **REFUSED.** This folder failed its parity gate: {failure}. In plain transformers the model does not "
        "behave as it did in training; do not use or publish it."
    )


def _what(recipe: dict[str, Any], config: dict[str, Any], summary: Summary | None) -> str:
    size = f" with {count(summary.parameters)} parameters" if summary else ""
    named = KINDS.get(str(config.get("model_type")))
    kind = f" of the {named} architecture" if named else ""
    lengths = " and later ".join(map(str, _lengths(recipe)))
    length = f" It was trained on rows of {lengths} tokens." if lengths else ""
    nexts = summary is not None and summary.validation.next_accuracy is not None
    task = "masked language modelling" + (" and next-sentence prediction" if nexts else "")
    begun = f"continued from {line(summary.parent)}" if summary and summary.parent else "pretrained from random weights"
    return (
        f"A bidirectional text encoder{kind}{size}, {begun} with {task} by Daybreak within a fixed budget.{length} "
        "It is meant to be fine-tuned."
    )


def _lengths(recipe: dict[str, Any]) -> list[int]:
    """Positions of a row in each phase of the recipe."""
    later = recipe.get("phase2", {})
    second = later and (later["start"] < 1 or later["when_flat"])
    return [int(recipe["length"]), *([int(later["length"])] if second else [])] if "length" in recipe else []


def _quality(summary: Summary | None) -> str:
    if summary is None:
        return "## Held-out quality\n\nPretraining has not ended, so nothing is claimed."
    found = summary.validation
    rows = [
        ["Loss (nats per masked token)", f"{found.loss:.3f}", f"{found.unigram_loss:.3f} (unigram distribution)"],
        [
            "Accuracy",
            percent(found.accuracy),
            f"{percent(found.most_frequent_fraction)} (always the most frequent token)",
        ],
        ["Different predictions", f"{found.distinct:,}", "1"],
    ]
    if found.own_loss is not None and found.own_accuracy is not None:
        own = f"{found.own_loss:.3f} nats, {percent(found.own_accuracy)}"
        rows.append(["As trained (the recipe's own rows and masks)", own, "-"])
    if found.next_accuracy is not None:
        rows.append(["Next-sentence accuracy", percent(found.next_accuracy), "about 50 % (guessing)"])
    plateau = (
        "\n\nThe loss is no better than that of the unigram distribution: the model has learned token frequencies and "
        "little else."
        if found.on_plateau
        else ""
    )
    lead = (
        f"Measured on {count(found.positions)} masked positions of text that was never trained on (15 % of the tokens, "
        "each replaced by the mask token), beside what knowing only token frequencies gives."
    )
    return f"## Held-out quality\n\n{lead}\n\n{table(['', 'This model', 'Reference'], rows)}{plateau}"


def _worth(summary: Summary | None) -> str:
    """What continued pretraining won and cost."""
    found = summary.forgetting if summary else None
    if found is None:
        return ""
    head = ["Loss (nats per masked token)", "Before", "After", "Change"]
    rows = [[name, f"{old:.3f}", f"{new:.3f}", signed(new - old, 3)] for name, old, new in found.texts]
    return f"## Was it worth it\n\n{found.verdict}\n\n{table(head, rows)}"


def _budget(summary: Summary | None, environment: Environment, manifest: Manifest) -> str:
    machine = f"{environment.device}, {environment.cores} cores, {environment.memory_gib:.0f} GiB"
    rows = [["Hardware", machine], ["Software", f"Daybreak {environment.daybreak}, torch {environment.torch}"]]
    if summary is not None:
        spent = ", ".join(f"{use} {seconds:.1f} s" for use, seconds in summary.time_by_category.items() if seconds)
        rows = [
            ["Budget asked", summary.budget],
            ["Time charged", f"{summary.elapsed:.1f} s ({duration(summary.elapsed)})"],
            ["Spent on", spent],
            ["Steps", f"{summary.steps:,}"],
            ["Tokens read", f"{count(summary.tokens)} ({significant(summary.epochs, 2)} passes over the text)"],
            ["Resumed", f"{summary.resumes} times"],
            ["Not counted", f"preparing the text {manifest.seconds:.1f} s, parity gate {summary.parity_seconds:.1f} s"],
            *_machine(summary.machine),
            *rows,
        ]
    course = f"\n\n{_course(summary)}" if summary and _course(summary) else ""
    return f"## Budget\n\n{table(['', ''], rows)}{course}"


def _machine(found: MachineUse | None) -> list[list[str]]:
    """Energy, the cost where a price was given, and memory; energy that nobody measured is said to be unknown."""
    energy, cost = (found.kilowatt_hours, found.cost) if found else (None, None)
    measured = None if energy is None else f"{significant(energy)} kWh of the accelerators, measured"
    rows = [["Energy", measured or "not measured: no accelerator told its power"]]
    if cost is not None:
        rows.append(["Cost", f"{cost:,.2f} at the price given for the run"])
    if found is not None:
        of_devices = f", {found.device_memory / GIB:.1f} GiB of an accelerator" if found.device_memory else ""
        rows.append(["Memory, at most", f"{found.memory / GIB:.1f} GiB of the process{of_devices}"])
    return rows


def _course(summary: Summary) -> str:
    """What did not go straight: lost work, steps without an update, decisions in mid-course."""
    found = []
    if lost := summary.time_by_category.get("lost", 0.0):
        found.append(f"{lost:.1f} s of work was lost when training stopped, and done again within the budget.")
    if summary.dropped:
        steps = "1 step" if summary.dropped == 1 else f"{summary.dropped:,} steps"
        found.append(f"{steps} left the weights as they were, because something was not finite or exploded.")
    if summary.changes:
        told = [f"at step {change.step:,}, {line(change.why).rstrip('.')}" for change in summary.changes]
        more = len(told) - CHANGES_NAMED
        named = [*told[:CHANGES_NAMED], *([f"and {more} more"] if more > 0 else [])]
        found.append(f"Decided in mid-course: {'; '.join(named)}.")
    return " ".join(found)


def _recipe(recipe: dict[str, Any]) -> str:
    rows = [[f"`{name}`", str(value)] for name, value in flat(bare(recipe))]
    return f"## Recipe\n\n{table(['Field', 'Value'], rows)}"


def _parity(parity: Parity | None) -> str:
    if parity is None:
        return "## Parity\n\nThe parity gate has not been run on this folder."
    rows = [[name.replace("_", " "), "passed" if passed else "FAILED"] for name, passed in parity.checks.items()]
    verdict = "Passed" if parity.passed else "FAILED"
    return (
        f"## Parity\n\n{verdict}: this folder was loaded in a clean process that knows only transformers "
        f"{parity.transformers}. Largest logit difference {parity.largest_logit_difference:.1e} "
        f"(allowed {parity.tolerance:.1e}), masked accuracy {percent(parity.masked_accuracy)}.\n\n"
        f"{table(['Check', 'Result'], rows)}"
    )
