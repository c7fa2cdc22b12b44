"""Read the properties of a run that the loss law uses, and check whether the law applies to a recipe."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from daybreak.core.files import read_json, read_json_lines
from daybreak.core.recipe_file import read_recipe_file
from daybreak.core.run_folder import RunFolder
from daybreak.forecasting.law import course_means
from daybreak.schemas.forecast import MARKS, LawRun
from daybreak.schemas.run import Manifest, Summary

FIXED = ("rows", "objective", "schedule", "ramp", "phase2", "finish", "average", "origin")
"""Fields of a recipe that must equal the flagship's."""
UNEVEN = 0.12
STEP_TOKENS = (1_024, 4_096)
"""Fewest and most tokens per step of the fitted runs."""


def inner_parameters(parameters: int, vocabulary: int, hidden_size: int) -> int:
    """Return the parameters outside the embedding, which is tied to the decoder."""
    return parameters - vocabulary * hidden_size


def law_run(run: RunFolder, name: str, compression: float) -> LawRun:
    """Return a finished run as input of the fit.

    Args:
        run: a run folder or its record: recipe.json, data.json, summary.json and metrics.jsonl.
        compression: difficulty of the text, as ``compression`` in the run's forecast.json.
    """
    summary, data = read_json(run.summary, Summary), read_json(run.manifest, Manifest)
    steps, recipe = _steps(run), read_recipe_file(run.recipe)
    means = course_means([line["progress"] for line in steps], [line["loss"] for line in steps], MARKS)
    return LawRun(
        name=name,
        inner=inner_parameters(summary.parameters, data.vocabulary, recipe["model"]["hidden_size"]),
        tokens=summary.tokens,
        unique=data.train.tokens,
        unigram_loss=round(summary.validation.unigram_loss, 5),
        compression=round(compression, 5),
        loss=round(summary.validation.loss, 5),
        course=[None if mean is None else round(mean, 5) for mean in means],
    )


def why_not(recipe: Mapping[str, Any], flagship: Mapping[str, Any]) -> str:
    """Return why the law does not apply to a recipe, or "" if it does.

    Args:
        recipe: plain values of the recipe.
        flagship: plain values of a recipe that the law was fitted on.
    """
    for field in FIXED:
        if json.dumps(recipe[field], sort_keys=True) != json.dumps(flagship[field], sort_keys=True):
            return f"its {field} settings differ from those of daybreak-mini"
    for field in ("model", "optimizer"):
        if recipe[field]["kind"] != flagship[field]["kind"]:
            return f"its {field} has another type than that of daybreak-mini"
    if not STEP_TOKENS[0] <= recipe["batch"] * recipe["length"] <= STEP_TOKENS[1]:
        least, most = STEP_TOKENS
        return f"a step reads {recipe['batch'] * recipe['length']:,} tokens, outside {least:,} to {most:,}"
    return ""


def is_even(run: RunFolder) -> bool:
    """Return whether half of the run read about half of its tokens.

    If the machine stalled, the phases of a timed run cover other fractions of the text than the law assumes.
    """
    steps = _steps(run)
    half = next((line["tokens"] for line in steps if line["progress"] >= 0.5), math.inf)
    return bool(steps) and abs(half / steps[-1]["tokens"] - 0.5) <= UNEVEN


def _steps(run: RunFolder) -> list[dict[str, Any]]:
    return [line for line in read_json_lines(run.metrics) if line["type"] == "step"]
