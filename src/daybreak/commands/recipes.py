"""Command ``recipes``: list the recipes, or show one in full with its size, cost and deviations from the original."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from daybreak.commands.options import SizeOptions, parse
from daybreak.core.errors import UserError
from daybreak.core.formatting import count
from daybreak.core.serialization import to_dict
from daybreak.core.terminal import hanging

if TYPE_CHECKING:
    from daybreak.recipe import Recipe

SCALED = ("optimizer.lr", "phase2.lr", "model.init_std", "model.truncated_start")
"""Fields that --size sets by the hidden size, unless --faithful is given."""
LEARNING = (
    "optimizer.beta2",
    "optimizer.weight_decay",
    "schedule.warmup",
    "model.dropout",
    "model.attention_dropout",
    "model.sinusoidal_start",
    "model.position_scale",
    "objective.next_sentence_weight",
    "model.query_key_correlation",
    "model.value_output_correlation",
    "word_vectors.weight",
)
"""Fields that let an encoder below base leave the unigram plateau, unless --faithful is given."""


@dataclass(frozen=True, kw_only=True)
class RecipesOptions(SizeOptions):
    name: Annotated[Positional[str], arg(metavar="[RECIPE]")] = ""
    """Recipe to show in full. Without it, all recipes are listed."""


def main(arguments: Sequence[str]) -> None:
    options = parse(RecipesOptions, "recipes", arguments)
    if not options.name and (options.size or options.faithful):
        raise UserError(
            "--size and --faithful choose the variant of a recipe, and no recipe is named.",
            "Write daybreak recipes NAME --size mini; daybreak recipes lists the names.",
        )
    print(described(options.name, size=options.size, faithful=options.faithful) if options.name else catalogue())


def catalogue() -> str:
    """Return two lines for each recipe: name and summary; source and status."""
    from daybreak.recipe import recipe_names, shipped_recipe

    return "\n".join(
        hanging(f"{name:16} ", shipped_recipe(name).description.splitlines()[0])
        + "\n"
        + hanging(f"{'':16} ", f"{_source(name)}; {_status(name)}")
        for name in recipe_names()
    )


def described(source: str, *, size: str = "", faithful: bool = False) -> str:
    """Return a recipe in full: summary, cost, deviations from the original with reasons, and every value."""
    from daybreak.pretraining.flops import flops_per_token, vocabulary_of
    from daybreak.recipe import load_recipe, recipe_names, resolved, shipped_recipe

    recipe = load_recipe(source, size=size, faithful=faithful)
    parts = []
    if recipe.name in recipe_names():
        parts.append(shipped_recipe(recipe.name).description)
    vocabulary = vocabulary_of(recipe)
    parts.append(
        f"{count(parameters(recipe))} parameters at a vocabulary of {vocabulary:,}; "
        f"{count(flops_per_token(recipe, vocabulary))} training FLOPs per token at {recipe.length} positions."
    )
    if found := deviations(recipe, size):
        parts.append("\n".join(["Deviations from the original, with reasons:", *(f"- {line}" for line in found)]))
    parts.append(json.dumps(resolved(recipe), indent=2))
    return "\n\n".join(parts)


def parameters(recipe: Recipe) -> int:
    """Return the number of trainable parameters of the recipe's model; no memory is allocated for them."""
    from daybreak.pretraining.flops import meta_model, vocabulary_of

    return meta_model(recipe, vocabulary_of(recipe)).parameter_count()


def deviations(recipe: Recipe, size: str) -> list[str]:
    """Return how the recipe differs from its original: a line for each field, or for a difference without a field."""
    from daybreak.recipe import load_recipe, recipe_names, shipped_recipe

    reasons = shipped_recipe(recipe.name).deviations if recipe.name in recipe_names() else {}
    if not reasons:
        return []
    reasons = {
        **reasons,
        **dict.fromkeys(SCALED, "chosen for a narrow model; --faithful keeps the paper's"),
        **dict.fromkeys(LEARNING, "else a narrow model stays on the unigram plateau; --faithful keeps the paper's"),
    }
    values = to_dict(recipe)
    originals = to_dict(load_recipe(recipe.name, size=size, faithful=True))
    found = []
    for name, reason in reasons.items():
        value, original = _value(values, name), _value(originals, name)
        if value is None and original is None:
            if name in (*SCALED, *LEARNING):  # another trunk's
                continue
            found.append(f"{name}: {reason}")
        elif value != original:
            found.append(f"{name} = {json.dumps(value)}, originally {json.dumps(original)}: {reason}")
    return found


def _value(values: object, dotted: str) -> object:
    for name in dotted.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _source(name: str) -> str:
    """Return the paper or other source that the recipe's docstring names first, else Daybreak."""
    from daybreak.recipe import shipped_recipe

    for line in shipped_recipe(name).description.splitlines():
        word, _, source = line.partition(": ")
        if word in ("Paper", "Source"):
            return source.split(", and ")[0].split("; ")[0].rstrip(".,:")
    return "Daybreak's own"


def results(name: str) -> str:
    """Return the last lines of the description: published and measured results, or that there are none."""
    from daybreak.recipe import shipped_recipe

    lines = shipped_recipe(name).description.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("Published:", "Measured:", "Not measured")))
    return " ".join(lines[first:])


def _status(name: str) -> str:
    """Return published, measured or not measured yet."""
    return results(name).partition(":")[0].lower().rstrip(".")
