"""The model card: README.md of the exported folder. Counts and scores only; no corpus text, no path of ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from daybreak.base.amounts import count, percent, signed, significant
from daybreak.base.course_records import MachineUse
from daybreak.base.files import read_json, write_text
from daybreak.base.records import Environment, Manifest, Parity, Summary
from daybreak.base.run_folder import RunFolder
from daybreak.base.task_records import Average, TaskResult
from daybreak.base.terminal import duration
from daybreak.packaging.budget_files import bare, write_budget_files
from daybreak.packaging.card_tasks import averages_block, tasks_block
from daybreak.packaging.card_text import line, table

SOURCES_NAMED = 10
CHANGES_NAMED = 5
KINDS = {"modernbert": "ModernBERT", "bert": "BERT", "daybreak-crammed": "crammed BERT"}
"""What config.json calls the architecture -> what readers call it."""


def write_card(run: RunFolder, results: list[TaskResult], averages: Sequence[Average] = ()) -> None:
    """Write the card of a finished run's model from the run's records and these results, and the files beside it."""
    write_budget_files(run)
    card = render_card(
        read_json(run.recipe),
        read_json(run.summary, Summary),
        results,
        read_json(run.environment, Environment),
        read_json(run.manifest, Manifest),
        read_json(run.model / "config.json"),
        averages,
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
) -> str:
    """Return the text of README.md, with the front matter that the Hugging Face hub reads.

    Args:
        recipe: the resolved recipe as plain JSON.
        summary: None while pretraining has not ended.
        config: the export's config.json.
        averages: over the results, where a convention is complete.
    """
    parity = summary.parity if summary else None
    parts = [
        _front_matter(config, results),
        f"# {line(str(recipe.get('name', 'encoder')))}",
        _banner(parity),
        _what(recipe, config, summary),
        _use("auto_map" in config),
        _quality(summary),
        _worth(summary),
        tasks_block(results),
        averages_block(averages),
        _text(manifest),
        _budget(summary, environment),
        _recipe(recipe),
        _parity(parity),
        _limits(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(config: dict[str, Any], results: Sequence[TaskResult]) -> str:
    """JSON strings are YAML strings, so quoting is JSON's. The licence is not ours to choose, but the text owner's."""
    kinds = dict.fromkeys([str(config.get("model_type", "")), *(["custom_code"] if "auto_map" in config else [])])
    tags = ["daybreak", "fill-mask", "encoder", *(kind for kind in kinds if kind)]
    lines = ["---", "library_name: transformers", "pipeline_tag: fill-mask", "license: other", "tags:"]
    lines += [f"- {json.dumps(tag)}" for tag in tags]
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
    length = f" It was trained on rows of {_lengths(recipe)} tokens." if "length" in recipe else ""
    nexts = summary is not None and summary.validation.next_accuracy is not None
    task = "masked language modelling" + (" and next-sentence prediction" if nexts else "")
    begun = f"continued from {line(summary.parent)}" if summary and summary.parent else "pretrained from random weights"
    return (
        f"A bidirectional text encoder{kind}{size}, {begun} with {task} by Daybreak within a fixed budget.{length} "
        "It is meant to be fine-tuned."
    )


def _lengths(recipe: dict[str, Any]) -> str:
    """``128``, or ``128 and later 512`` where the recipe has a second phase."""
    later = recipe.get("later", {})
    second = later and (later["start"] < 1 or later["when_flat"])
    return f"{recipe['length']} and later {later['length']}" if second else str(recipe["length"])


def _use(own_code: bool) -> str:
    trust = ", trust_remote_code=True" if own_code else ""
    why = (
        "The architecture is none that transformers knows, so its code travels in this folder: read it, then allow it "
        "with `trust_remote_code=True`.\n\n"
        if own_code
        else ""
    )
    return f"""## Use

{why}```python
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

folder = "."  # this folder, or its name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForMaskedLM.from_pretrained(folder{trust}).eval()

batch = tokenizer(f"The {{tokenizer.mask_token}} of the function is a list.", return_tensors="pt")
with torch.no_grad():
    logits = model(**batch).logits
place = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
print(tokenizer.convert_ids_to_tokens(logits[0, place].topk(5).indices.tolist()))
```

For a task, load it with `AutoModelForSequenceClassification.from_pretrained(folder, num_labels=...{trust})` and \
fine-tune."""


def _quality(summary: Summary | None) -> str:
    if summary is None:
        return "## Held-out quality\n\nPretraining has not ended, so nothing is claimed."
    found = summary.validation
    rows = [
        ["Loss (nats per masked token)", f"{found.loss:.3f}", f"{found.unigram_loss:.3f} (unigram distribution)"],
        ["Accuracy", percent(found.accuracy), f"{percent(found.commonest_share)} (always the commonest token)"],
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


def _text(manifest: Manifest) -> str:
    rows = [
        ["Training documents", count(manifest.train.documents)],
        ["Training tokens", count(manifest.train.tokens)],
        ["Held-out documents", count(manifest.heldout.documents)],
        ["Characters", count(manifest.characters)],
        ["Exact duplicates removed", f"{manifest.duplicates:,}"],
        ["Left out", ", ".join(f"{number:,} {why}" for why, number in manifest.skipped.items() if number) or "nothing"],
        ["Tokenizer", f"{manifest.tokenizer_kind}, {manifest.vocabulary:,} tokens"],
    ]
    names = [f"`{line(PurePath(source.path).name)}`" for source in manifest.sources[:SOURCES_NAMED]]
    more = len(manifest.sources) - len(names)
    named = ", ".join(names) + (f" and {more} more" if more else "")
    return f"## Training text\n\nSources: {named}.\n\n{table(['', ''], rows)}"


def _budget(summary: Summary | None, environment: Environment) -> str:
    machine = f"{environment.device}, {environment.cores} cores, {environment.memory_gib:.0f} GiB"
    rows = [["Hardware", machine], ["Software", f"Daybreak {environment.daybreak}, torch {environment.torch}"]]
    if summary is not None:
        spent = ", ".join(f"{use} {seconds:.1f} s" for use, seconds in summary.spent.items() if seconds)
        rows = [
            ["Budget asked", summary.budget],
            ["Time charged", f"{summary.elapsed:.1f} s ({duration(summary.elapsed)})"],
            ["Spent on", spent],
            ["Steps", f"{summary.steps:,}"],
            ["Tokens read", f"{count(summary.tokens)} ({significant(summary.epochs, 2)} passes over the text)"],
            ["Resumed", f"{summary.resumes} times"],
            *_energy(summary.machine),
            *rows,
        ]
    course = f"\n\n{_course(summary)}" if summary and _course(summary) else ""
    return f"## Budget\n\n{table(['', ''], rows)}{course}"


def _energy(machine: MachineUse | None) -> list[list[str]]:
    """A row with the energy that was measured, and the cost where a price was given; none where neither was."""
    energy, cost = (machine.kilowatt_hours, machine.cost) if machine else (None, None)
    price = "" if cost is None else f"{cost:,.2f} at the price given for the run"
    if energy is None:
        return [["Cost", price]] if price else []
    return [["Energy", f"{significant(energy)} kWh of the accelerators{f', cost {price}' if price else ''}"]]


def _course(summary: Summary) -> str:
    """What did not go straight: lost work, steps without an update, decisions in mid-course."""
    found = []
    if lost := summary.spent.get("lost", 0.0):
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
    rows = [[f"`{name}`", str(value)] for name, value in _flat(bare(recipe))]
    return f"## Recipe\n\n{table(['Field', 'Value'], rows)}"


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(name, value)]
    return [pair for key, item in value.items() for pair in _flat(item, f"{name}.{key}" if name else str(key))]


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


def _limits() -> str:
    return (
        "## Limits\n\n"
        "- A small model from a short budget: expect much less than from public encoders trained for days.\n"
        "- It knows only the kind of text listed above and may reproduce its errors and biases.\n"
        "- It fills gaps and makes features; it does not generate text, and its guesses are not facts.\n"
        "- The licence is not decided by the program: the owner of the training text and of this folder must set it."
    )
