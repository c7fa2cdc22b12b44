"""A recipe: one of everything, by instance. Recipes are Python files; a resolved one is JSON in its run folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from daybreak.core.encoder import EncoderConfig
from daybreak.core.errors import UserError
from daybreak.core.recipe_file import read_recipe_file, without_extras
from daybreak.core.serialization import Component, UnknownKind, fingerprint, from_dict, nearest, to_dict
from daybreak.core.user_code import import_file, read_code
from daybreak.data.sequences import chunks as _chunks
from daybreak.data.sequences import views as _views
from daybreak.data.sequences.sampler import RowsConfig, StreamRows
from daybreak.data.sequences.sentence_pairs import SentencePairs
from daybreak.data.tokenizers import byte_bpe as _byte_bpe
from daybreak.data.tokenizers import tokenizer_import as _tokenizer_import
from daybreak.data.tokenizers.tokenizer import TokenizerConfig
from daybreak.models import bert as _bert
from daybreak.models import crammed as _crammed
from daybreak.models import modern as _modern
from daybreak.training import calibration
from daybreak.training.averaging import Averaging
from daybreak.training.clock import Budget
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.masked import Masked
from daybreak.training.objectives.objective import Objective
from daybreak.training.optim import muon as _muon
from daybreak.training.optim.optimizers import OptimizerConfig
from daybreak.training.phases import SecondPhase
from daybreak.training.ramp import Ramp
from daybreak.training.schedule import Schedule

KINDS = (_byte_bpe, _chunks, _tokenizer_import, _views, _bert, _crammed, _modern, _muon)
"""Files whose kinds must be known before JSON is read."""

FAMILY = "daybreak-"
"""Prefix that a user may leave out: 'tiny' is 'daybreak-tiny'."""
SIZES = ("tiny", "mini", "small", "base", "large")
RATE_RULES = ("none", "linear", "sqrt")
COMPILE = ("auto", "on", "off")
MOST_SEED = 9 * 10**12
"""Times a million, and with the rows of any run added, it still is a seed that torch takes."""
MOST_BATCH = 1 << 20
"""Sequences of an optimizer step; larger numbers are typing mistakes, and would be timed for minutes."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """How ``daybreak prepare --recipe`` and ``daybreak run`` part the text for this recipe."""

    document: str = "auto"
    """What one document of a text file is: file, line, blank-line or auto."""
    split_sentences: bool = False
    """Find the sentences in prose; otherwise they are the lines of text that has one a line."""
    chunk_characters: int = 0
    """Cut documents at spaces into pieces of about so many characters, each a document; 0 for whole ones."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What several devices make of the batch and of the learning rate."""

    batch: int = 0
    """Rows that each device adds to a step: the global batch is this times the devices. 0 shares out --batch."""
    rate_rule: str = "none"
    """How the learning rate grows with the global batch: none, linear or sqrt."""
    reference: int = 0
    """The global batch that the learning rate was chosen for."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a run starts from, where that is not random weights."""

    init: str = ""
    """A model folder whose weights are trained on."""
    parent: str = ""
    """That model, as the user named it."""
    branch: str = ""
    """A run folder whose last checkpoint before the decay is gone on from."""
    begin: float = 0.0
    """How far through its objective that checkpoint was, as a share of its run."""
    general: str = ""
    """Prepared general text: its held-out part shows what a continued model forgets."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what is trained, how, and for how long."""

    name: str
    texts: Texts = Texts()
    tokenizer: TokenizerConfig
    rows: RowsConfig = StreamRows()
    model: EncoderConfig
    objective: Objective
    optimizer: OptimizerConfig
    schedule: Schedule
    length: int = 128
    """Positions of a row, special tokens included."""
    batch: int = 16
    """Rows of an optimizer step, over all devices; 0 where --devices.batch names those of each."""
    ramp: Ramp = Ramp()
    phase2: SecondPhase = SecondPhase()
    finish: Finish = Finish()
    devices: Devices = Devices()
    microbatch: int = 0
    """Rows that one device handles at a time; 0 for all of its share, or the fastest where that is many."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient."""
    precision: str = "auto"
    """Of training: float32, bfloat16, float16, or auto for the one whose step this machine does faster."""
    compile: str = "auto"
    """Run the blocks through torch.compile: on, off, or auto for where it pays."""
    gradient_checkpointing: bool = False
    """Gradient checkpointing: compute blocks twice instead of keeping what they computed. Less memory, same result."""
    average: Averaging = Averaging()
    seed: int = 0
    budget: str = "24h"
    """Time (90s 30m 24h 2d), tokens (2e9tok) or optimizer steps (10000steps)."""
    origin: Origin = Origin()

    def check(self) -> None:
        """Raise UserError where fields do not fit each other."""
        Budget.parse(self.budget)
        if self.length < 8:
            raise UserError(f"A row length of {self.length} is too short.", "Choose --length of at least 8.")
        if min(self.batch, self.microbatch, self.devices.batch) < 0 or not (self.batch or self.devices.batch):
            raise UserError("--batch must be at least 1 and --microbatch not negative.", "Correct the number.")
        if max(self.batch, self.microbatch, self.devices.batch) > MOST_BATCH:
            raise UserError(f"A batch above {MOST_BATCH:,} sequences is too large.", "Correct the number.")
        if self.batch and self.devices.batch:
            raise UserError(
                f"--batch {self.batch} and --devices.batch {self.devices.batch} name the batch twice.",
                "Give the rows of each device with --devices.batch and --batch 0, or those of all the other way round.",
            )
        if self.precision not in calibration.PRECISIONS:
            raise UserError(f"--precision cannot be '{self.precision}'.", f"Use {', '.join(calibration.PRECISIONS)}.")
        if self.compile not in COMPILE:
            raise UserError(f"--compile cannot be '{self.compile}'.", f"Use {', '.join(COMPILE)}.")
        if not (self.max_grad_norm > 0 and self.optimizer.lr > 0):
            raise UserError("--max-grad-norm and --optimizer.lr must be positive.", "Correct the number.")
        if abs(self.seed) > MOST_SEED:
            raise UserError(f"--seed {self.seed} is too large.", f"Choose one up to {MOST_SEED:,}.")
        if self.devices.rate_rule not in RATE_RULES:
            raise UserError(
                f"--devices.rate-rule cannot be '{self.devices.rate_rule}'.", f"Use {', '.join(RATE_RULES)}."
            )
        if self.devices.rate_rule != "none" and self.devices.reference < 1:
            raise UserError(
                "A rule for the learning rate needs the batch that the rate was chosen for.",
                "Give it with --devices.reference.",
            )
        longest = self.model.longest
        if longest is not None and self.longest_row > longest:
            raise UserError(
                f"Rows of {self.longest_row} positions are longer than the {longest} that this model has.",
                "Choose shorter rows, or more --model.positions.",
            )
        self._check_next_sentence()
        self._check_finish()

    def refuse_without_origin(self) -> None:
        """Raise UserError where the whole run is a finish, and there is no model to begin with."""
        if self.finish.start == 0 and not (self.origin.init or self.origin.branch):
            raise UserError(
                f"'{self.name}' adapts a model that is trained already.",
                "Name the model with --init, or begin the finish later with --finish.start 0.9.",
            )

    def _check_next_sentence(self) -> None:
        wanted = isinstance(self.objective, Masked) and self.objective.next_sentence
        if wanted != self.model.predicts_next or (wanted and not isinstance(self.rows, SentencePairs)):
            raise UserError(
                "Next-sentence prediction needs --objective.next-sentence, --model.next-sentence and rows of sentence "
                "pairs together.",
                "Start from the recipe bert-2018, or turn all of it off.",
            )

    def _check_finish(self) -> None:
        if not self.finish.ever:
            return
        if self.objective.averages_rows:
            raise UserError(
                "The finish has no pairs of sentences, which next-sentence prediction needs.",
                "Leave --finish.start at 1, or start from a recipe without next-sentence prediction.",
            )
        if self.objective.stage(self.finish.start) == "causal":
            raise UserError(
                f"The finish begins at {self.finish.start:g} of the run, while the next token is still predicted.",
                "Give a later --finish.start, or a smaller --objective.causal-fraction.",
            )
        if self.phase2.start < 1 and self.finish.start < self.phase2.start:
            raise UserError(
                f"The finish begins at {self.finish.start:g} of the run, before the second phase at "
                f"{self.phase2.start:g}.",
                "Give a later --finish.start.",
            )

    @property
    def longest_row(self) -> int:
        """Positions of the longest rows of the run."""
        later = self.phase2.length if self.phase2.ever else 0
        return max(self.length, later, self.finish.length if self.finish.ever else 0)

    def global_batch(self, devices: int) -> int:
        """Rows of a step over ``devices`` devices."""
        return self.devices.batch * devices if self.devices.batch else self.batch

    def rate_factor(self, devices: int) -> float:
        """What the rule for several devices multiplies the learning rate by."""
        ratio = self.global_batch(devices) / max(1, self.devices.reference)
        return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.devices.rate_rule]


def smaller_than(recipe: Recipe) -> str:
    """How to ask for the smallest model of the recipe's family; empty where this is it, or its size is unknown."""
    if not recipe.name.startswith(FAMILY):
        return "--size tiny" if recipe.name in recipe_names() else ""
    return "" if recipe.name == FAMILY + SIZES[0] else f"recipe {SIZES[0]}"


def recipe_names() -> list[str]:
    """Names of the recipes that ship with Daybreak."""
    files = Path(__file__).with_name("recipes").glob("[!_]*.py")
    return sorted(file.stem.replace("_", "-") for file in files)


def load_recipe(source: str | Path, *, size: str = "", faithful: bool = False) -> Recipe:
    """Find a recipe by name, by a Python file that defines ``recipe``, by a recipe.json, or by a run folder.

    Args:
        size: one of SIZES, for a recipe that ships; its own when empty.
        faithful: as the original was, with what we hold to be its faults.

    Raises:
        UserError: nothing of that name; a file without a recipe; a JSON that does not fit this version; a size or
            --faithful for a recipe that has none.
    """
    path = Path(source)
    if size and size not in SIZES:
        raise UserError(f"There is no size '{size}'.{nearest(size, SIZES)}", f"Use {', '.join(SIZES)}.")
    if (size or faithful) and (path.suffix in (".py", ".json") or path.is_dir()):
        raise UserError(f"'{source}' has one size only.", "Leave --size and --faithful out, or name a recipe.")
    if path.suffix == ".py" and path.is_file():
        return _from_python(path)
    if path.is_dir() and (path / "recipe.json").is_file():
        path = path / "recipe.json"
    if path.suffix == ".json" and path.is_file():
        return _from_json(path)
    names = recipe_names()
    for name in (str(source), FAMILY + str(source)):
        if name in names:
            return _shipped(name, size, faithful)
    short = [name.removeprefix(FAMILY) for name in names]
    raise UserError(
        f"There is no recipe '{source}'.{nearest(str(source), [*names, *short])}",
        f"Use one of {', '.join(names)}, a .py file that defines 'recipe', or a run folder.",
    )


def _shipped(name: str, size: str, faithful: bool) -> Recipe:
    module = recipe_module(name)
    if not size and not faithful:
        return module.recipe
    if name.startswith(FAMILY):
        if faithful:
            raise UserError(f"'{name}' is our own: there is nothing to be faithful to.", "Leave --faithful out.")
        if name.removeprefix(FAMILY) not in SIZES:
            raise UserError(f"'{name}' has the size of the model that --init names.", "Leave --size out.")
        return load_recipe(FAMILY + size)
    return module.sized(size, faithful)


def recipe_module(name: str) -> Any:
    """The file of a shipped recipe: its ``recipe``, its ``sized`` and its ``DEVIATIONS``."""
    return import_module(f"daybreak.recipes.{name.replace('-', '_')}")


def promise(name: str) -> str:
    """The docstring of a shipped recipe: the idea, the command, and what was measured."""
    return (recipe_module(name).__doc__ or "").strip()


def resolved(recipe: Recipe) -> dict[str, Any]:
    """What recipe.json holds: every field, a fingerprint of all of them, and which kinds do not ship, if any."""
    plain, own = to_dict(recipe), sorted(set(_own_kinds(recipe)))
    return {**plain, "fingerprint": fingerprint(plain)} | ({"own_kinds": own} if own else {})


def _own_kinds(value: Any) -> Iterator[str]:
    """Names of the classes of components that a file of the user's defines."""
    if isinstance(value, Component) and not type(value).__module__.startswith("daybreak."):
        yield type(value).__name__
    inner = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else value
    for one in inner if isinstance(inner, list | tuple) else ():
        yield from _own_kinds(one)


def first_difference(left: Recipe, right: Recipe) -> str | None:
    """The dotted name of the first field in which two recipes differ, or None."""
    return _difference(to_dict(left), to_dict(right), "")


def _difference(left: Any, right: Any, where: str) -> str | None:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(set(right) - set(left))]:
            found = _difference(left.get(key), right.get(key), f"{where}.{key}" if where else key)
            if found:
                return found
        return None
    return None if left == right else where


def _from_json(path: Path) -> Recipe:
    plain = read_recipe_file(path)
    try:
        return from_dict(Recipe, without_extras(plain))
    except UnknownKind as unknown:
        own = " and ".join(map(str, plain.get("own_kinds", ())))
        raise UserError(
            f"'{path}' holds {own}, of a file of yours." if own else unknown.sentence,
            "Name the file that defines it: with --recipe FILE.py, or in the run's place where there is no such flag.",
        ) from None


def _from_python(path: Path) -> Recipe:
    recipe = getattr(import_file(path, read_code(path), "recipe"), "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UserError(f"'{path}' defines no 'recipe'.", "Let it end with recipe = Recipe(...).")
    return recipe
