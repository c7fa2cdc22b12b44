"""A recipe: one of everything, by instance. Recipes are Python files; a resolved one is JSON in its run folder."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from daybreak.base.encoder import EncoderConfig
from daybreak.base.errors import UserError
from daybreak.base.files import read_json
from daybreak.base.plain import fingerprint, from_plain, nearest, to_plain
from daybreak.data.tokenizer import TokenizerConfig
from daybreak.models import modern as _modern  # noqa: F401  its kinds must be known before JSON is read
from daybreak.training import calibration
from daybreak.training.clock import Budget
from daybreak.training.objectives import Objective
from daybreak.training.optimizers import OptimizerConfig
from daybreak.training.schedule import Schedule

FAMILY = "daybreak-"
"""Prefix that a user may leave out: 'tiny' is 'daybreak-tiny'."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what is trained, how, and for how long."""

    name: str
    tokenizer: TokenizerConfig
    model: EncoderConfig
    objective: Objective
    optimizer: OptimizerConfig
    schedule: Schedule
    length: int = 128
    """Positions of a row, [CLS] included."""
    batch: int = 16
    """Rows of an optimizer step, over all devices."""
    microbatch: int = 0
    """Rows that one device handles at a time; 0 for all of its share."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    precision: str = "auto"
    """Of training: float32, bfloat16, or auto for the one whose step this machine does faster."""
    seed: int = 0
    budget: str = "24h"
    """Time (90s 30m 24h 2d), tokens (2e9tok) or optimizer steps (10000steps)."""

    def check(self) -> None:
        """Raise UserError where fields do not fit each other."""
        Budget.parse(self.budget)
        if self.length < 8:
            raise UserError(f"A row length of {self.length} is too short.", "Choose --length of at least 8.")
        if self.batch < 1 or self.microbatch < 0:
            raise UserError("--batch must be at least 1 and --microbatch not negative.", "Correct the number.")
        if self.precision not in calibration.PRECISIONS:
            raise UserError(f"--precision cannot be '{self.precision}'.", "Use auto, float32 or bfloat16.")
        if self.clip <= 0 or self.optimizer.lr <= 0:
            raise UserError("--clip and --optimizer.lr must be positive.", "Correct the number.")


def recipe_names() -> list[str]:
    """Names of the recipes that ship with Daybreak."""
    files = Path(__file__).with_name("recipes").glob("[!_]*.py")
    return sorted(file.stem.replace("_", "-") for file in files)


def load_recipe(source: str | Path) -> Recipe:
    """Find a recipe by name, by a Python file that defines ``recipe``, by a recipe.json, or by a run folder.

    Raises:
        UserError: nothing of that name; a file without a recipe; a JSON that does not fit this version.
    """
    path = Path(source)
    if path.suffix == ".py" and path.is_file():
        return _from_python(path)
    if path.is_dir() and (path / "recipe.json").is_file():
        path = path / "recipe.json"
    if path.suffix == ".json" and path.is_file():
        return from_plain(Recipe, without_extras(read_json(path)))
    names = recipe_names()
    for name in (str(source), FAMILY + str(source)):
        if name in names:
            return import_module(f"daybreak.recipes.{name.replace('-', '_')}").recipe
    short = [name.removeprefix(FAMILY) for name in names]
    raise UserError(
        f"There is no recipe '{source}'.{nearest(str(source), [*names, *short])}",
        f"Use one of {', '.join(names)}, a .py file that defines 'recipe', or a run folder.",
    )


def promise(name: str) -> str:
    """The docstring of a shipped recipe: the idea, the command, and what was measured."""
    module = import_module(f"daybreak.recipes.{load_recipe(name).name.replace('-', '_')}")
    return (module.__doc__ or "").strip()


def resolved(recipe: Recipe) -> dict[str, Any]:
    """What recipe.json holds: every field, and a fingerprint of all of them."""
    plain = to_plain(recipe)
    return {**plain, "fingerprint": fingerprint(plain)}


def without_extras(plain: dict[str, Any]) -> dict[str, Any]:
    """Undo what ``resolved`` added."""
    return {key: value for key, value in plain.items() if key != "fingerprint"}


def first_difference(left: Recipe, right: Recipe) -> str | None:
    """The dotted name of the first field in which two recipes differ, or None."""
    return _difference(to_plain(left), to_plain(right), "")


def _difference(left: Any, right: Any, where: str) -> str | None:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(set(right) - set(left))]:
            found = _difference(left.get(key), right.get(key), f"{where}.{key}" if where else key)
            if found:
                return found
        return None
    return None if left == right else where


def _from_python(path: Path) -> Recipe:
    specification = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # dataclasses look their module up there
    specification.loader.exec_module(module)
    recipe = getattr(module, "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UserError(f"'{path}' defines no 'recipe'.", "Let it end with recipe = Recipe(...).")
    return recipe
