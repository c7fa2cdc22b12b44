"""Three JSON files beside the card, named after the budget: architecture, data and training.

They follow ``arch_budget_hours_24.json``, ``data_...`` and ``train_...`` of Cramming (``push_to_huggingface_hub``) and
hold the resolved recipe, counts and measured numbers, without text, file hashes or paths.
"""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from daybreak.core.budget import Budget
from daybreak.core.files import read_json, write_json
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.schemas.run import Decisions, Environment, Manifest, Split, Summary

TEXT = ("tokenizer", "texts", "rows")
"""Fields of the recipe that describe the data; all others but the model describe the training."""
IN_CARD = ("forgetting", "parity", "parent", "parity_seconds")
"""Fields of the summary that only the card shows."""


def write_budget_files(run: RunFolder) -> None:
    """Write ``arch_``, ``data_`` and ``train_budget_*.json`` into the finished run's model folder."""
    recipe = bare(read_recipe_file(run.recipe))
    summary = read_json(run.summary, Summary)
    config = read_json(run.model / "config.json")
    manifest = read_json(run.manifest, Manifest)
    parts = {
        "arch": {
            "model": recipe.get("model"),
            "architectures": config["architectures"],
            "vocabulary": manifest.vocabulary,
            "parameters": summary.parameters,
        },
        "data": {**{name: recipe[name] for name in TEXT if name in recipe}, **_counts(manifest)},
        "train": {
            **_training(run, recipe),
            "summary": {name: value for name, value in to_dict(summary).items() if name not in IN_CARD},
        },
    }
    for name, value in parts.items():
        write_json(run.model / f"{name}_{budget_name(summary.budget)}.json", value)


def write_training_file(run: RunFolder, folder: Path) -> None:
    """Write ``train_budget_*.json`` without a summary into the export of a checkpoint, so that a run which continues it
    knows that Daybreak trained it."""
    recipe = bare(read_recipe_file(run.recipe))
    write_json(folder / f"train_{budget_name(recipe['budget'])}.json", _training(run, recipe))


def _training(run: RunFolder, recipe: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: value for name, value in recipe.items() if name not in ("model", *TEXT)},
        "decisions": to_dict(read_json(run.decisions, Decisions)),
        "environment": to_dict(read_json(run.environment, Environment)),
    }


def trained_from_scratch(folder: Path) -> bool:
    """Return whether the model in ``folder`` was exported by a run that began with random weights."""
    told = [read_json(file) for file in folder.glob("train_budget_*.json")]
    origins = [each.get("origin", {}) for each in told if isinstance(each, dict)]
    return any(not origin.get("init") and not origin.get("parent") for origin in origins)


def budget_name(budget: str) -> str:
    """``24h`` -> ``budget_hours_24``, ``8m`` -> ``budget_hours_0.133``; ``10000steps`` -> ``budget_10000steps``."""
    parsed = Budget.parse(budget)
    if parsed.unit != "seconds":
        return f"budget_{parsed.text}"
    hours = parsed.amount / 3600
    return f"budget_hours_{hours:.3g}" if hours < 1 else f"budget_hours_{round(hours, 3):.10g}"


def bare(value: Any) -> Any:
    """The value with every path replaced by its last part."""
    if isinstance(value, dict):
        return {name: bare(item) for name, item in value.items()}
    if isinstance(value, list):
        return [bare(item) for item in value]
    return PurePath(value).name if isinstance(value, str) and "/" in value else value


def _counts(manifest: Manifest) -> dict[str, Any]:
    def of(split: Split) -> dict[str, int]:
        return {"documents": split.documents, "tokens": split.tokens}

    return {
        "tokenizer_kind": manifest.tokenizer_kind,
        "vocabulary": manifest.vocabulary,
        "special": to_dict(manifest.special),
        "document_rule": manifest.document_rule,
        "train": of(manifest.train),
        "heldout": of(manifest.heldout),
        "characters": manifest.characters,
        "duplicates": manifest.duplicates,
        "skipped": manifest.skipped,
        "sources": [bare(to_dict(source)) for source in manifest.sources],
    }
