"""Verb ``recipes``: the list of them, and one in full, with its size, its cost and what it does otherwise."""

from __future__ import annotations

import json

from daybreak.core.formatting import count
from daybreak.core.serialization import to_dict
from daybreak.pretraining.flops import flops_per_token, outline, vocabulary_of
from daybreak.recipe import Recipe, load_recipe, promise, recipe_module, recipe_names, resolved

SCALED = ("optimizer.lr", "phase2.lr", "model.init_std")
"""What --size changes with the width, unless --faithful."""


def catalogue() -> str:
    """Two lines for each recipe: its name and what it is; where it comes from, and how sure its promise is."""
    return "\n".join(
        f"{name:16} {promise(name).splitlines()[0]}\n{'':16} {_source(name)}; {_standing(name)}"
        for name in recipe_names()
    )


def described(source: str, *, size: str = "", faithful: bool = False) -> str:
    """A recipe in full: its promise, what it costs, where it deviates and why, and every value.

    Raises:
        UserError: there is no such recipe.
    """
    recipe = load_recipe(source, size=size, faithful=faithful)
    parts = []
    if recipe.name in recipe_names():
        parts.append(promise(recipe.name))
    vocabulary = vocabulary_of(recipe)
    parts.append(
        f"{count(parameters(recipe))} parameters at a vocabulary of {vocabulary:,}; "
        f"{count(flops_per_token(recipe, vocabulary))} floating-point operations a token of training at "
        f"{recipe.length} positions."
    )
    if found := deviations(recipe, size):
        parts.append("\n".join(["Where it deviates from the original, and why:", *(f"- {line}" for line in found)]))
    parts.append(json.dumps(resolved(recipe), indent=2))
    return "\n\n".join(parts)


def parameters(recipe: Recipe) -> int:
    """Trainable numbers of the recipe's model at its vocabulary; nothing is allocated."""
    return outline(recipe, vocabulary_of(recipe)).parameter_count()


def deviations(recipe: Recipe, size: str) -> list[str]:
    """What the recipe does otherwise than its original: values with both of them, and what no value shows."""
    reasons = getattr(recipe_module(recipe.name), "DEVIATIONS", {}) if recipe.name in recipe_names() else {}
    if not reasons:
        return []
    reasons = {**reasons, **dict.fromkeys(SCALED, "a narrower model wants larger ones; --faithful keeps the paper's")}
    ours = to_dict(recipe)
    theirs = to_dict(load_recipe(recipe.name, size=size, faithful=True))
    found = []
    for what, why in reasons.items():
        mine, other = _value(ours, what), _value(theirs, what)
        if mine is None and other is None:
            found.append(f"{what}: {why}")
        elif mine != other:
            found.append(f"{what} = {json.dumps(mine)}, originally {json.dumps(other)}: {why}")
    return found


def _value(plain: object, dotted: str) -> object:
    for name in dotted.split("."):
        plain = plain.get(name) if isinstance(plain, dict) else None
    return plain


def _source(name: str) -> str:
    """The paper or other source, as the docstring names it first; ours where it names none."""
    for line in promise(name).splitlines():
        word, _, source = line.partition(": ")
        if word in ("Paper", "Source"):
            return source.split(", and ")[0].split("; ")[0].rstrip(".,:")
    return "Daybreak's own"


def _standing(name: str) -> str:
    """Measured, published or not yet measured: the first word of the promise."""
    words = promise(name).split("Promise:")[1].split()
    first = words[0].strip(",.;")
    return "not yet measured" if first == "not" else first
