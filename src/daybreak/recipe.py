"""Recipe: the settings of a run as one frozen dataclass, from a Python file or from the JSON in a run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from daybreak.core.budget import Budget
from daybreak.core.encoder import EncoderConfig
from daybreak.core.errors import UserError, check_option
from daybreak.core.recipe_file import read_recipe_file, without_extras
from daybreak.core.serialization import (
    Component,
    UnknownKind,
    check_choice,
    fingerprint,
    flat,
    from_dict,
    nearest,
    to_dict,
)
from daybreak.core.user_code import import_file, read_code
from daybreak.data.sequences import views as _views
from daybreak.data.sequences.sampler import SequencesConfig, StreamRows
from daybreak.data.sequences.sentence_pairs import SentencePairs
from daybreak.data.sequences.word_vectors import WordVectors
from daybreak.data.tokenizers import byte_bpe as _byte_bpe
from daybreak.data.tokenizers import tokenizer_import as _tokenizer_import
from daybreak.data.tokenizers.tokenizer import TokenizerConfig
from daybreak.models import bert as _bert
from daybreak.models import crammed as _crammed
from daybreak.models import modern as _modern
from daybreak.training import calibration
from daybreak.training.averaging import Averaging
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.masked import Masked
from daybreak.training.objectives.objective import Objective
from daybreak.training.optim import muon as _muon
from daybreak.training.optim.optimizers import OptimizerConfig
from daybreak.training.phases import SecondPhase
from daybreak.training.schedule import Ramp, Schedule

KINDS = (_byte_bpe, _tokenizer_import, _views, _bert, _crammed, _modern, _muon)
"""Modules whose components must be registered before a recipe is read from JSON."""

FAMILY = "daybreak-"
"""Prefix that a user may leave out: 'tiny' means 'daybreak-tiny'."""
LADDER = "ladder"
"""File that defines several recipes in one table."""
SIZES = ("tiny", "mini", "small", "base", "large")
RATE_RULES = ("none", "linear", "sqrt")
COMPILE = ("auto", "on", "off")
FOLDERS = ("origin.init", "origin.branch", "origin.general", "tokenizer.folder")
"""Fields with the path of a folder that a run reads."""
MOST_SEED = 9 * 10**12
"""Largest seed for which seed * 1_000_003 + position fits torch's range."""
MOST_BATCH = 1 << 20
"""Most sequences of an optimizer step; a larger number is a typing mistake that would take minutes to measure."""
MOST_SIZE = 1 << 20
"""Largest number of layers, positions or channels of a model; a larger one would fill the memory, or never end."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """How ``daybreak prepare --recipe`` and ``daybreak run`` split the text into documents for this recipe."""

    document: str = "auto"
    """Unit of a text file that is one document: file, line, blank-line or auto."""
    split_sentences: bool = False
    """Split prose into sentences; otherwise each line is a sentence."""
    chunk_characters: int = 0
    """Cut documents at spaces into documents of about this many characters; 0 to keep them whole."""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """How the number of devices changes the batch and the learning rate."""

    batch: int = 0
    """Sequences of a step on each device; 0 divides --batch among the devices."""
    rate_rule: str = "none"
    """Scaling of the learning rate with the global batch: none, linear or sqrt."""
    reference: int = 0
    """Global batch that the learning rate was tuned for."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Starting point of a run that does not start from random weights; options such as --init set these fields."""

    init: str = ""
    """Model folder with the initial weights."""
    parent: str = ""
    """The published model of ``init``, or of the run that a branch comes from, as the argument of --init names it."""
    branch: str = ""
    """Run folder whose last checkpoint before the decay is the starting point."""
    begin: float = 0.0
    """Progress of that run at the checkpoint, from 0 to 1; the objective continues from there."""
    general: str = ""
    """Folder of prepared general text, to measure on its held-out part what a continued model forgets."""

    @property
    def has_weights(self) -> bool:
        """Whether the run starts from trained weights."""
        return bool(self.init or self.branch)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings that determine the model, its training and its budget."""

    name: str
    """Name of the recipe in reports and in the default run folder; it does not choose the recipe."""
    texts: Texts = Texts()
    tokenizer: TokenizerConfig
    rows: SequencesConfig = StreamRows()
    model: EncoderConfig
    word_vectors: WordVectors = WordVectors()
    objective: Objective
    optimizer: OptimizerConfig
    schedule: Schedule
    length: int = 128
    """Positions of a sequence, special tokens included."""
    batch: int = 16
    """Sequences of an optimizer step over all devices; 0 if --devices.batch gives the number per device."""
    ramp: Ramp = Ramp()
    phase2: SecondPhase = SecondPhase()
    finish: Finish = Finish()
    devices: Devices = Devices()
    microbatch: int = 0
    """Sequences that one device processes at a time. With 0, the run measures the fastest number, unless the batch of a
    device is small enough to be processed at once."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient; a larger gradient is scaled down to it."""
    precision: str = "auto"
    """Precision of training: float32, bfloat16, float16, or auto for the fastest on this machine."""
    compile: str = "auto"
    """torch.compile for the blocks: on, off, or auto to compile on a GPU if the run is long enough to gain from it."""
    gradient_checkpointing: bool = False
    """Recompute the activations of a block in the backward pass: less memory, same result."""
    average: Averaging = Averaging()
    seed: int = 0
    """Seed of the initial weights, the order of the sequences and the masks."""
    budget: str = "24h"
    """Time (90s 30m 24h 2d), tokens (2e9tok) or optimizer steps (10000steps)."""
    origin: Origin = Origin()

    def check(self) -> None:
        """Check the values and their combination."""
        self.check_types()
        Budget.parse(self.budget)
        if self.length < 8:
            raise UserError(f"A sequence length of {self.length} is too short.", "Choose --length of at least 8.")
        batches = {"--batch": self.batch, "--microbatch": self.microbatch, "--devices.batch": self.devices.batch}
        for name, value in batches.items():
            check_option(name, value, 0 <= value <= MOST_BATCH, f"from 0 to {MOST_BATCH:,}")
        for field in fields(self.model):
            size = getattr(self.model, field.name)
            option = f"--model.{field.name.replace('_', '-')}"
            check_option(option, size, not isinstance(size, int) or size <= MOST_SIZE, f"up to {MOST_SIZE:,}")
        check_option("--batch", self.batch, bool(self.batch or self.devices.batch), "of at least 1")
        if self.batch and self.devices.batch:
            raise UserError(
                f"--batch {self.batch} and --devices.batch {self.devices.batch} name the batch twice.",
                "Give the sequences of each device with --devices.batch and --batch 0, or those of all devices with "
                "--batch and --devices.batch 0.",
            )
        check_choice("--precision", self.precision, calibration.PRECISIONS)
        check_choice("--compile", self.compile, COMPILE)
        check_option("--max-grad-norm", self.max_grad_norm, self.max_grad_norm > 0, "above 0")
        check_option("--optimizer.lr", self.optimizer.lr, 0 < self.optimizer.lr < math.inf, "above 0")
        if abs(self.seed) > MOST_SEED:
            raise UserError(f"--seed {self.seed} is too large.", f"Choose one up to {MOST_SEED:,}.")
        check_choice("--devices.rate-rule", self.devices.rate_rule, RATE_RULES)
        if self.devices.rate_rule != "none" and self.devices.reference < 1:
            raise UserError(
                "--devices.rate-rule needs the batch that the learning rate was tuned for.",
                "Give it with --devices.reference.",
            )
        longest = self.model.longest
        if longest is not None and self.longest_row > longest:
            raise UserError(
                f"Sequences of {self.longest_row} positions are longer than the {longest} positions of this model.",
                "Shorten --length, --phase2.length or --finish.length, or build a model with more positions.",
            )
        self._check_next_sentence()
        self._check_finish()

    def check_types(self) -> None:
        """Check that each value has its type, so that the run can read its own recipe.json."""
        try:
            from_dict(Recipe, to_dict(self))
        except UserError as error:
            raise UserError(f"The recipe cannot be used: {error.sentence}", "Correct that value.") from None

    def refuse_without_origin(self) -> None:
        """Raise UserError if the whole run is an embedding finish and there is no model to start from."""
        if self.finish.start == 0 and not self.origin.has_weights:
            raise UserError(
                f"'{self.name}' adapts a pretrained model, but no model is given.",
                "Name a model with --init, or start the finish later with --finish.start 0.9.",
            )

    def _check_next_sentence(self) -> None:
        predicts = isinstance(self.objective, Masked) and self.objective.next_sentence
        if predicts != self.model.predicts_next or (predicts and not isinstance(self.rows, SentencePairs)):
            raise UserError(
                "Next-sentence prediction needs --objective.next-sentence, --model.next-sentence and sequences of "
                "sentence pairs together.",
                "Start from the recipe bert-2018, or turn all three off.",
            )

    def _check_finish(self) -> None:
        if not self.finish.enabled:
            return
        if self.objective.averages_rows:
            raise UserError(
                "The embedding finish cannot be combined with next-sentence prediction.",
                "Leave --finish.start at 1, or start from a recipe without next-sentence prediction.",
            )
        if self.objective.stage(self.finish.start) == "causal":
            raise UserError(
                f"The finish starts at {self.finish.start:g} of the run, before masked language modeling does.",
                "Give a later --finish.start, or a smaller --objective.causal-fraction.",
            )
        if self.phase2.start < 1 and self.finish.start <= self.phase2.start:
            raise UserError(
                f"The finish starts at {self.finish.start:g} of the run, with or before the second phase at "
                f"{self.phase2.start:g}.",
                "Give a later --finish.start.",
            )

    @property
    def longest_row(self) -> int:
        """Positions of the longest sequences of the run."""
        return self.longest_read(second=self.phase2.enabled)

    def longest_read(self, *, second: bool) -> int:
        """Positions of the longest sequences, with those of the second phase if it started (``second``)."""
        finish = self.finish.length if self.finish.enabled else 0
        return max(self.length, self.phase2.length if second else 0, finish)

    def global_batch(self, devices: int) -> int:
        """Sequences of a step over ``devices`` devices."""
        return self.devices.batch * devices if self.devices.batch else self.batch

    def rate_factor(self, devices: int) -> float:
        """Factor of the learning rate for ``devices`` devices."""
        ratio = self.global_batch(devices) / max(1, self.devices.reference)
        return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.devices.rate_rule]

    @property
    def counts_steps(self) -> bool:
        """Whether the budget gives the number of steps: not one in time, or in tokens with a growing batch."""
        unit = Budget.parse(self.budget).unit
        return unit == "steps" or (unit == "tokens" and not self.ramp.enabled)

    def run_schedule(self, devices: int = 1) -> Schedule:
        """Return the schedule with a warm-up in steps as a fraction of the budget.

        If the number of steps is unknown (see ``counts_steps``), the fraction of the schedule is used.
        """
        if not self.counts_steps:
            return self.schedule
        budget = Budget.parse(self.budget)
        step_tokens = self.global_batch(devices) * self.length
        steps = budget.amount if budget.unit == "steps" else budget.amount / step_tokens
        # A second phase with its own learning rate leaves the first schedule only the steps before it.
        return self.schedule.with_steps(steps * self.phase2.start if self.phase2.lr > 0 else steps)


def smaller_than(recipe: Recipe) -> str:
    """Options that select the smallest model of the recipe's family; empty if there is none, or the shape is given."""
    if recipe.origin.has_weights:
        return ""
    if not recipe.name.startswith(FAMILY):
        return "--size tiny" if recipe.name in recipe_names() else ""
    return "" if recipe.name == FAMILY + SIZES[0] else f"recipe {SIZES[0]}"


def recipe_names() -> list[str]:
    """Names of the recipes that ship with Daybreak."""
    files = Path(__file__).with_name("recipes").glob("[!_]*.py")
    names = {file.stem.replace("_", "-") for file in files} - {LADDER}
    return sorted(names.union(_rungs()))


def load_recipe(source: str | Path, *, size: str = "", faithful: bool = False) -> Recipe:
    """Load a recipe by name, from a Python file that defines ``recipe``, from a recipe.json, or from a run folder.

    Args:
        source: a string that is the name of a recipe means that recipe, also where a folder has the same name; write
            ./NAME for the folder.
        size: one of SIZES, for a recipe that ships; empty for its own size.
        faithful: keep the settings of the original, also where DEVIATIONS names a reason to change them.

    Raises:
        UserError: there is no such recipe; a file defines none; a JSON does not fit this version; a size or
            ``faithful`` for a recipe that has none.
    """
    path, names = Path(source), recipe_names()
    if size:
        check_choice("--size", size, SIZES)
    shipped = next((name for name in (str(source), FAMILY + str(source)) if name in names), "")
    if shipped and isinstance(source, str):
        return _shipped(shipped, size, faithful)
    is_run = (path / "recipe.json").is_file()
    if (size or faithful) and (path.suffix in (".py", ".json") or is_run):
        raise UserError(f"'{source}' has one size only.", "Leave --size and --faithful out, or name a recipe.")
    if path.suffix == ".py" and path.is_file():
        return _from_python(path)
    if is_run:
        path = path / "recipe.json"
    if path.suffix == ".json" and path.is_file():
        return _from_json(path)
    if shipped:
        return _shipped(shipped, size, faithful)
    short = [name.removeprefix(FAMILY) for name in names]
    raise UserError(
        f"There is no recipe '{source}'.{nearest(str(source), [*names, *short])}",
        f"Use one of {', '.join(names)}, a .py file that defines 'recipe', or a run folder.",
    )


def _shipped(name: str, size: str, faithful: bool) -> Recipe:
    shipped = shipped_recipe(name)
    if not size and not faithful:
        return shipped.recipe
    if name.startswith(FAMILY):
        if faithful:
            raise UserError(f"'{name}' is Daybreak's own recipe and has no original.", "Leave --faithful out.")
        if name.removeprefix(FAMILY) not in SIZES:
            raise UserError(f"'{name}' has the size of the model that --init names.", "Leave --size out.")
        return load_recipe(FAMILY + size)
    assert shipped.build is not None  # all recipes outside the family have one
    return shipped.build(size or "base", faithful)


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """What ``daybreak run`` does before and after pretraining with a recipe, unless an option says otherwise."""

    preset: str = "plain"
    """Filter preset of the preparation."""
    protocol: str = ""
    """Fine-tuning protocol; empty for ``distilled`` or ``quick``, by the size of the model."""
    tasks: tuple[str, ...] = ()
    """Tasks and lists of tasks to fine-tune on if their files are given; empty for all built-in tasks."""


@dataclass(frozen=True, kw_only=True)
class ShippedRecipe:
    """A recipe that ships with Daybreak."""

    recipe: Recipe
    description: str
    """What it is, its source, its command, and where it was measured."""
    deviations: dict[str, str]
    """Deviations from the original and their reasons, by dotted field or in words."""
    build: Callable[[str, bool], Recipe] | None
    """(size, faithful) -> the recipe; None for the flagship, which has one recipe for each size."""
    procedure: Procedure = Procedure()


@cache
def shipped_recipe(name: str) -> ShippedRecipe:
    """Return the recipe ``name`` of ``recipe_names()`` with its description and deviations."""
    rung = _rungs().get(name)
    if rung:
        build = partial(rung.build, name)
        return ShippedRecipe(
            recipe=build("base", False),
            description=rung.description(name),
            deviations=rung.deviations,
            build=build,
            procedure=rung.procedure,
        )
    module = import_module(f"daybreak.recipes.{name.replace('-', '_')}")
    return ShippedRecipe(
        recipe=module.recipe,
        description=(module.__doc__ or "").strip(),
        deviations=getattr(module, "DEVIATIONS", {}),
        build=getattr(module, "build", None),
        procedure=getattr(module, "PROCEDURE", Procedure()),
    )


def procedure_of(recipe: Recipe) -> Procedure:
    """Return the procedure of the shipped recipe that has the name of ``recipe``, or the default one."""
    return shipped_recipe(recipe.name).procedure if recipe.name in recipe_names() else Procedure()


def of_a_paper(recipe: Recipe) -> bool:
    """Whether ``recipe`` is a shipped one of another system, not the flagship or a file."""
    return recipe.name in recipe_names() and not recipe.name.startswith(FAMILY)


def _rungs() -> dict[str, Any]:
    """The recipes of the ladder, one table in one file."""
    rungs: dict[str, Any] = import_module(f"daybreak.recipes.{LADDER}").RUNGS
    return rungs


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Return the content of recipe.json: every field, a fingerprint, and the user's own components, if any."""
    values, own = to_dict(recipe), sorted(set(_own_kinds(recipe)))
    return {**values, "fingerprint": fingerprint(values)} | ({"own_kinds": own} if own else {})


def _own_kinds(value: Any) -> Iterator[str]:
    """Names of the component classes that are defined in a file of the user."""
    if isinstance(value, Component) and not type(value).__module__.startswith("daybreak."):
        yield type(value).__name__
    children = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else value
    for child in children if isinstance(children, list | tuple) else ():
        yield from _own_kinds(child)


def with_whole_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with the resolved paths of the folders that it reads, as a run keeps it.

    A name that is no folder here, such as one of the Hugging Face hub, stays.
    """

    def whole(name: str) -> str:
        return str(Path(name).resolve()) if name and Path(name).is_dir() else name

    origin, tokenizer = recipe.origin, recipe.tokenizer
    if isinstance(tokenizer, _tokenizer_import.Existing):
        tokenizer = replace(tokenizer, folder=whole(tokenizer.folder))
    origin = replace(origin, init=whole(origin.init), branch=whole(origin.branch), general=whole(origin.general))
    return replace(recipe, origin=origin, tokenizer=tokenizer)


def first_difference(before: Recipe, now: Recipe) -> str | None:
    """The dotted name of the first field in which the recipe of a run and that of a command differ, or None.

    A budget may be written in another unit of time. A folder that both start from counts as equal under any of its
    paths, and if it was moved under its name, as with the run to another machine.
    """

    def differ(name: str) -> bool:
        if name == "budget":
            budgets = [Budget.parse(recipe.budget) for recipe in (before, now)]
            return len({(budget.amount, budget.unit) for budget in budgets}) > 1
        old, new = ours.get(name), theirs.get(name)
        if old == new or name not in FOLDERS or not (old and new):
            return bool(old != new)
        place, target = Path(old), Path(new)
        moved = place.is_absolute() and not place.exists() and place.name == target.name
        return not moved and place.resolve() != target.resolve()

    ours, theirs = dict(flat(to_dict(before))), dict(flat(to_dict(now)))
    return next(filter(differ, {**ours, **theirs}), None)


def _from_json(path: Path) -> Recipe:
    values = read_recipe_file(path)
    try:
        return from_dict(Recipe, without_extras(values))
    except UnknownKind as unknown:
        own = " and ".join(map(str, values.get("own_kinds", ())))
        raise UserError(
            f"'{path}' uses {own}, which a file of your own defines." if own else unknown.sentence,
            "Name that file with --recipe FILE.py, or in place of the run if the command has no such flag.",
        ) from None


def _from_python(path: Path) -> Recipe:
    recipe = getattr(import_file(path, read_code(path), "recipe"), "recipe", None)
    if not isinstance(recipe, Recipe):
        raise UserError(f"'{path}' defines no 'recipe'.", "End the file with recipe = Recipe(...).")
    recipe.check_types()
    return recipe
