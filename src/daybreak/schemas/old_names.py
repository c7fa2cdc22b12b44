"""Former names of fields and flags, so that files and commands of earlier versions still work."""

from __future__ import annotations

import copy
from typing import Any

RECIPE = {
    "later": "phase2",
    "clip": "max_grad_norm",
    "recompute": "gradient_checkpointing",
    "model.width": "model.hidden_size",
    "model.inner": "model.intermediate_size",
    "objective.causal_share": "objective.causal_fraction",
    "rows.short_share": "rows.short_fraction",
    "rows.random_share": "rows.random_fraction",
    "rows.later": "rows.later_fraction",
    "average.share": "average.fraction",
    "ramp.share": "ramp.fraction",
    "ramp.quantum": "ramp.batch_multiple",
}
"""Fields of a recipe by dotted name: before and now."""

FIELDS = {
    "CorpusReport": {"case": "preset"},
    "ForecastLog": {"pairs": "", "compression": ""},
    "FinetuningRun": {
        "judged": "scored_rows",
        "hidden": "predictions",
        "hidden_rows": "unlabeled_digest",
        "unlabelled_digest": "unlabeled_digest",
    },
    "DataStudy": {"treatments": "preprocessings"},
    "PreprocessedText": {"treatment": "preprocessing"},
    "Progress": {"spent": "time_by_category"},
    "Record": {"contender": "variant"},
    "StudyCell": {"contender": "variant", "turns": "loads"},
    "StudySettings": {"contenders": "variants"},
    "Summary": {"spent": "time_by_category"},
    "ValidationRecord": {"commonest_share": "most_frequent_fraction"},
}
"""Fields of the other types that reach disk, by class: before and now, "" for one that is no longer read."""

FLAGS = {
    "--by": "--deadline",
    "--case": "--preset",
    "--clip": "--max-grad-norm",
    "--fresh": "--overwrite",
    "--no-fresh": "--no-overwrite",
    "--recompute": "--gradient-checkpointing",
    "--no-recompute": "--no-gradient-checkpointing",
    "--treatments": "--preprocessings",
    "--later.start": "--phase2.start",
    "--later.length": "--phase2.length",
    "--later.batch": "--phase2.batch",
    "--later.lr": "--phase2.lr",
    "--later.when-flat": "--phase2.when-flat",
    "--later.no-when-flat": "--phase2.no-when-flat",
} | {f"--{old}".replace("_", "-"): f"--{new}".replace("_", "-") for old, new in RECIPE.items() if "." in old}
"""Flags: before and now. ``prepare --steps`` is separate, because other commands keep a flag of that name."""
PREPARE_FLAGS = {"--steps": "--filters"}


def current_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe with the current names of its fields.

    A finish of an earlier version had pairs of spans only, so the fractions of other sequences are 0.
    """
    current = copy.deepcopy(recipe)
    if isinstance(finish := current.get("finish"), dict):
        current["finish"] = {**finish, **{name: finish.get(name, 0.0) for name in ("views", "ordinary")}}
    for old, new in RECIPE.items():
        *path, name = old.split(".")
        holder: Any = current
        for key in path:
            holder = holder.get(key) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and name in holder:
            renamed = new.rpartition(".")[2]
            # At its old place: pages list the fields in this order.
            items = [(renamed if key == name else key, value) for key, value in holder.items()]
            holder.clear()
            holder.update(items)
    return current
