"""Command ``recipes``: the list of recipes, or one recipe with its size, cost, deviations and values."""

from __future__ import annotations

import json

from daybreak.core.formatting import count
from daybreak.core.serialization import to_dict
from daybreak.pretraining.flops import flops_per_token, meta_model, vocabulary_of
from daybreak.recipe import Recipe, load_recipe, recipe_names, resolved, shipped_recipe

SCALED = ("optimizer.lr", "phase2.lr", "model.init_std")
"""Fields that --size scales with the hidden size, unless --faithful is given."""


def catalogue() -> str:
    """Two lines for each recipe: its name and summary; its source, and whether it is published, measured or neither."""
    return "\n".join(
        f"{name:16} {shipped_recipe(name).description.splitlines()[0]}\n{'':16} {_source(name)}; {_standing(name)}"
        for name in recipe_names()
    )


def described(source: str, *, size: str = "", faithful: bool = False) -> str:
    """Describe a recipe: what it is, what it costs, where it deviates from the original and why, and every value.

    Raises:
        UserError: there is no such recipe.
    """
    recipe = load_recipe(source, size=size, faithful=faithful)
    parts = []
    if recipe.name in recipe_names():
        parts.append(shipped_recipe(recipe.name).description)
    vocabulary = vocabulary_of(recipe)
    parts.append(
        f"{count(parameters(recipe))} parameters at a vocabulary of {vocabulary:,}; "
        f"{count(flops_per_token(recipe, vocabulary))} floating-point operations a token of training at "
        f"{recipe.length} positions."
    )
    if lines := deviations(recipe, size):
        parts.append("\n".join(["Deviations from the original, with reasons:", *(f"- {line}" for line in lines)]))
    parts.append(json.dumps(resolved(recipe), indent=2))
    return "\n\n".join(parts)


def parameters(recipe: Recipe) -> int:
    """Number of parameters of the recipe's model at its vocabulary; no memory is allocated."""
    return meta_model(recipe, vocabulary_of(recipe)).parameter_count()


def deviations(recipe: Recipe, size: str) -> list[str]:
    """List the deviations from the original with their reasons; a field with both of its values."""
    reasons = shipped_recipe(recipe.name).deviations if recipe.name in recipe_names() else {}
    if not reasons:
        return []
    reasons = {**reasons, **dict.fromkeys(SCALED, "a narrow model needs larger values; --faithful keeps the paper's")}
    ours = to_dict(recipe)
    theirs = to_dict(load_recipe(recipe.name, size=size, faithful=True))
    lines = []
    for what, why in reasons.items():
        mine, other = _value(ours, what), _value(theirs, what)
        if mine is None and other is None:
            lines.append(f"{what}: {why}")
        elif mine != other:
            lines.append(f"{what} = {json.dumps(mine)}, originally {json.dumps(other)}: {why}")
    return lines


def _value(plain: object, dotted: str) -> object:
    for name in dotted.split("."):
        plain = plain.get(name) if isinstance(plain, dict) else None
    return plain


def _source(name: str) -> str:
    """The paper or other source that the description names."""
    for line in shipped_recipe(name).description.splitlines():
        word, _, source = line.partition(": ")
        if word in ("Paper", "Source"):
            return source.split(", and ")[0].split("; ")[0].rstrip(".,:")
    return "Daybreak's own"


def results(name: str) -> str:
    """The last lines of the description: what is published, what was measured and where, or neither."""
    lines = shipped_recipe(name).description.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("Published:", "Measured:", "Not measured")))
    return " ".join(lines[first:])


def _standing(name: str) -> str:
    """published, measured or not measured yet."""
    return results(name).partition(":")[0].lower().rstrip(".")
