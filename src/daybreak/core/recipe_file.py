"""recipe.json as plain values, for code that does not need the recipe's classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.serialization import fingerprint
from daybreak.schemas.old_names import current_recipe

EXTRAS = ("fingerprint", "own_kinds")
"""Keys of recipe.json that are not fields of the recipe."""


def without_extras(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the recipe alone."""
    return {name: value for name, value in recipe.items() if name not in EXTRAS}


def is_edited(recipe: dict[str, Any]) -> bool:
    """Whether the file was edited by hand: its fingerprint does not match its fields."""
    return "fingerprint" in recipe and recipe["fingerprint"] != fingerprint(without_extras(recipe))


def read_recipe_file(path: Path) -> dict[str, Any]:
    """Read a recipe.json with the field names of this version.

    The fingerprint of a file with older names is computed again, unless the file was edited.
    """
    recipe = read_json(path)
    if not isinstance(recipe, dict):
        raise UserError(f"'{path}' holds no recipe.", "Restore the file, or name a recipe.json that Daybreak wrote.")
    current = current_recipe(recipe)
    if current != recipe and "fingerprint" in recipe and not is_edited(recipe):
        current["fingerprint"] = fingerprint(without_extras(current))
    return current
