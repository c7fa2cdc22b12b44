"""Parsing of options: the parser, groups of options of several commands, and the recipe as first argument."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin, get_type_hints

import tyro
from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from daybreak.commands import COMMANDS
from daybreak.core.errors import UserError
from daybreak.core.run_folder import as_argument
from daybreak.core.serialization import Component, to_dict

if TYPE_CHECKING:
    from daybreak.recipe import Recipe

Options = TypeVar("Options")

DEFAULT_RECIPE = "tiny"

REQUIRES = {"--extend": "--from", "--general": "--init", "--new-vocabulary": "--init"}
"""Options that need another one."""


def _separated(text: str) -> tuple[str, ...]:
    """Return the names in ``text``: the path of a task file, which may contain commas, or several separated by them."""
    if text.endswith(".toml") and os.path.isfile(text):
        return (text,)
    return tuple(name.strip() for name in text.split(",") if name.strip())


CommaSeparated = Annotated[
    tuple[str, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME,NAME",
        instance_from_str=lambda words: _separated(words[0]),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda names: [",".join(names)],
    ),
]
"""Type of an option with several names in one argument: ``--tasks cola,rte``."""


RECIPE_HELP = "RECIPE is a name that daybreak recipes lists, a .py or .json file, or a run folder."
WITHOUT_RECIPE = {
    "run": "With --corpus and a budget in time, it defaults to the size with the lowest forecast loss, otherwise to "
    f"{DEFAULT_RECIPE}. Most runs need only --corpus, --budget, --out and --tasks.",
    "pretrain": f"Defaults to {DEFAULT_RECIPE}.",
}
"""What the help of the commands with a recipe says of their first argument."""
SET_ELSEWHERE = {"texts", "origin"}
"""Fields of a recipe that are no options: --document and the like set ``texts``, --init and --from set ``origin``."""

# ---------------------------------------------------------------- options of several commands


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """The variant of a recipe."""

    size: str = ""
    """Model size: tiny, mini, small, base or large. Defaults to the recipe's own."""
    faithful: bool = False
    """Keep the original values that Daybreak's version of the recipe changes."""


@dataclass(frozen=True, kw_only=True)
class InitOptions(SizeOptions):
    """The model that a run starts from."""

    init: str = ""
    """Continue pretraining this model: a run folder, or a Hugging Face folder or hub name of a BERT, RoBERTa,
    XLM-RoBERTa, CamemBERT, DistilBERT, ELECTRA, ModernBERT or crammed BERT."""
    new_vocabulary: bool = False
    """With --init: train a tokenizer on the text and initialize its embeddings from the old ones."""


@dataclass(frozen=True, kw_only=True)
class RunOutOptions:
    """The run folder."""

    out: Path | None = None
    """Run folder. Defaults to runs/RECIPE. The same folder resumes the run."""
    overwrite: bool = False
    """Delete the run folder first."""


@dataclass(frozen=True, kw_only=True)
class TaskDirOptions:
    """The files of known tasks."""

    task_dir: Annotated[str | None, arg(aliases=("--glue-dir",))] = None
    """Folder of the task files as distributed: GLUE (CoLA/ ...), SciBERT's data (ner/ ...); or hf://nyu-mll/glue."""


@dataclass(frozen=True, kw_only=True)
class RunDataOptions:
    """The data of a run."""

    data: Path | None = None
    """Prepared data of the run. Defaults to RUN/data."""


@dataclass(frozen=True, kw_only=True)
class RecipeFileOptions:
    """The code of a run's recipe."""

    recipe: str = ""
    """Python file with your own classes, if the run's recipe uses any."""


# ---------------------------------------------------------------- parsing


def parse(options: type[Options], command: str, arguments: Sequence[str], default: Any = None) -> Options:
    """Parse ``arguments`` into the dataclass ``options``.

    tyro prints a mistake with the nearest option name; the exit code is then 2.

    Raises:
        UserError: an argument is empty, or an option with several values is given twice.
        SystemExit: after ``--help`` (0) or a mistake (2).
    """
    if "" in arguments:  # nearly always an unset shell variable
        raise UserError("One of the arguments is empty.", "Check the shell variables in the command.")
    _refuse_repeated(options, arguments)
    if os.environ.get("NO_COLOR"):
        tyro._experimental_options["ansi_codes"] = False  # has no public name
    _describe(options, default)
    _hide_fields_set_elsewhere(default)
    prog, about = f"daybreak {command}", COMMANDS[command]
    if {"-h", "--help"} & {*arguments}:
        _leave_out_empty_defaults(options, default)
        if without := WITHOUT_RECIPE.get(command):
            # Not after a mistake: the message quotes the command with --help to copy.
            prog, about = f"{prog} [RECIPE]", f"{about} {RECIPE_HELP} {without}"
    # An option that is None by default is left out to be so: its type is shown without None.
    parsed: Options = tyro.cli(
        options, prog=prog, args=arguments, default=default, description=about, config=(tyro.conf.DisallowNone,)
    )
    return parsed


def _refuse_repeated(options: type, arguments: Sequence[str]) -> None:
    """Refuse options with several values that are given twice: the last one counts, and would drop those values."""
    names = Counter(word.partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--"))
    for name in [name for name, count in names.items() if count > 1]:  # usually none
        if name.rpartition(".")[2].lstrip("-") in _names_of_several(options):
            raise UserError(f"{name} is given twice.", "Give it once, with all of its values behind it.")


def _names_of_several(options: type) -> set[str]:
    """Return the names of the options that take several values, without prefixes."""
    found: set[str] = set()
    for name, kind in get_type_hints(options).items():
        if is_dataclass(kind):
            found |= _names_of_several(kind)  # type: ignore[arg-type]
        elif get_origin(kind) is tuple:
            found.add(name.replace("_", "-"))
    return found


def _describe(options: type, default: Any = None) -> None:
    """Make each docstring of an option its help, in one line: tyro would keep the line breaks of the source.

    The help shows no marks of code, which are for the pages.

    Args:
        default: instance of ``options`` whose values choose the classes of nested options.
    """
    import docstring_parser  # here, because a bare machine calls commands without parsing (benchmarks/bare.py)

    options.__doc__ = (options.__doc__ or "").replace("``", "")
    for base in reversed(options.__mro__):
        if is_dataclass(base):
            lines = {one.arg_name: one.description for one in docstring_parser.parse_from_object(base).params}
            for one in fields(base):
                if words := lines.get(one.name):
                    help_text = " ".join(words.replace("``", "").split())
                    one.metadata = MappingProxyType({**one.metadata, "help": help_text})
    for one in fields(options):
        value = getattr(default, one.name, one.default)
        if is_dataclass(value) and not isinstance(value, type):
            _describe(type(value), value)


def _hide_fields_set_elsewhere(default: Any) -> None:
    """Let the options of a recipe not contain those fields that other options set."""
    recipe = getattr(default, "recipe", None)
    if is_dataclass(recipe):
        types = get_type_hints(type(recipe), include_extras=True)
        for name in SET_ELSEWHERE:
            type(recipe).__annotations__[name] = Annotated[types[name], tyro.conf.Suppress]


def _leave_out_empty_defaults(options: type, default: Any = None) -> None:
    """Let the help show no default that is empty, such as ``(default: '')``; what it means is in the description.

    Args:
        default: as for ``_describe``.
    """
    for base in options.__mro__:
        if is_dataclass(base):
            own, types = base.__annotations__, get_type_hints(base, include_extras=True)
            for one in fields(base):
                # Positional arguments of any number have no default: tyro shows an empty one.
                empty = ("", None, ()) if one.default_factory is not MISSING else ("", None, (), MISSING, tyro.MISSING)
                if one.name in own and getattr(default, one.name, one.default) in empty:
                    own[one.name] = Annotated[types[one.name], arg(help_behavior_hint="")]
    for one in fields(options):
        value = getattr(default, one.name, one.default)
        if is_dataclass(value) and not isinstance(value, type):
            _leave_out_empty_defaults(type(value), value)


def keywords(options: Any, group: type | None = None) -> dict[str, Any]:
    """Options by name, as keyword arguments: all of them, or those that the dataclass ``group`` declares."""
    return {field.name: getattr(options, field.name) for field in fields(group or options)}


def listed(names: Sequence[Path | str] | Path | str | None) -> list[Path | str]:
    """Return paths or names as a list; one alone is a list of one, not of its letters, and None is an empty one."""
    return [names] if isinstance(names, Path | str) else list(() if names is None else names)


def data_of(run: Path, data: Path | str | None) -> Path:
    """Return the folder of a run's prepared data: ``data``, or RUN/data if it is None."""
    if data is None and not (run / "data" / "manifest.json").is_file():
        raise UserError(f"The prepared data of '{run}' are not in '{run / 'data'}'.", "Name their folder with --data.")
    return Path(data or run / "data")


def value_of(flag: str, arguments: Sequence[str]) -> str:
    """Return the value of a flag before parsing, because it decides which options exist.

    As in the parser, the last of several counts. The value is empty if the flag is absent.
    """
    value = ""
    for position, argument in enumerate(arguments):
        if argument == flag and position + 1 < len(arguments):
            value = arguments[position + 1]
        if argument.startswith(flag + "="):
            value = argument.partition("=")[2]
    return value


def given_flags(arguments: Sequence[str]) -> set[str]:
    """Return the names of the flags among the arguments."""
    return {argument.partition("=")[0] for argument in arguments if argument.startswith("-")}


def refuse_without(arguments: Sequence[str], requires: Mapping[str, str]) -> None:
    """Raise UserError for a flag without the flag that it needs; ``requires`` has the two names."""
    given = given_flags(arguments)
    for flag, other in requires.items():
        if flag in given and other not in given:
            raise UserError(f"{flag} needs {other}.", f"Add {other}, or leave {flag} out.")


def refuse_idle(arguments: Sequence[str], flags: Sequence[str], why: str, remedy: str) -> None:
    """Raise UserError for the first of ``flags`` among the arguments, because it would change nothing."""
    given = given_flags(arguments)
    for flag in flags:
        if flag in given:
            raise UserError(f"{flag} {why}", f"{remedy}, or leave {flag} out.")


# ---------------------------------------------------------------- the recipe


def split_recipe(command: str, flag: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Split off the recipe, empty unless it is the first argument of a command.

    ``flag`` is the option that takes text or data, for the remedy where its name was forgotten.
    """
    from daybreak.recipe import FAMILY, recipe_names

    given = bool(arguments) and not arguments[0].startswith("-")
    recipe, rest = (arguments[0], list(arguments[1:])) if given else ("", list(arguments))
    if rest and not rest[0].startswith("-"):
        raise UserError(f"The argument '{rest[0]}' belongs to no option.", f"Did you mean {flag} {rest[0]}?")
    path = Path(recipe)
    known = {recipe, FAMILY + recipe} & set(recipe_names()) or path.suffix in (".py", ".json")
    if recipe and path.is_file() and not known and command == "pretrain":
        raise UserError(f"'{recipe}' is not a recipe.", "Name a shipped recipe, a .py or .json file, or a run folder.")
    if recipe and path.exists() and not known and not (path / "recipe.json").is_file():
        raise UserError(f"'{recipe}' is not a recipe.", f"Did you mean daybreak {command} tiny {flag} {recipe}?")
    return recipe, rest


def load_chosen_recipe(command: str, name: str, arguments: Sequence[str]) -> Recipe:
    """Load the recipe that ``arguments`` choose by name, size and starting point.

    The options of a command include the recipe's fields, so the recipe is known before the others are parsed.
    """
    from daybreak.recipe import load_recipe

    refuse_without(arguments, REQUIRES)
    given = given_flags(arguments)
    branch, init = value_of("--from", arguments), value_of("--init", arguments)
    if (code := value_of("--recipe", arguments)) and not (code.endswith(".py") and (name or branch)):
        raise UserError(
            "--recipe names the Python file of your own classes and chooses no recipe.",
            f"Put the recipe first: daybreak {command} {name or code} --data DATA.",
        )
    load_recipe_file(code)
    started = Path(value_of("--out", arguments) or "")
    if branch:
        from daybreak.pretraining.starting_points import extend_run

        if not (Path(branch) / "recipe.json").is_file() and (started / "recipe.json").is_file():
            raise _not_needed(f"'{branch}' is no run folder", started)
        budget = value_of("--extend", arguments)
        if not budget or name or init or {"--size", "--faithful"} & given:
            raise UserError(
                "--from continues a run with its own recipe and needs --extend.",
                "Write daybreak pretrain --from RUN --extend 8h --data DATA --out RUN2.",
            )
        if "--budget" in given:
            raise UserError("--extend and --budget both set the length of the run.", "Give --extend alone.")
        return extend_run(Path(branch), budget)
    recipe = load_recipe(name or DEFAULT_RECIPE, size=value_of("--size", arguments), faithful="--faithful" in arguments)
    _refuse_class(recipe, given)
    if not init:
        return recipe
    from daybreak.pretraining.starting_points import continue_model

    return continue_model(
        recipe,
        _initial_weights(init, started),
        parent_name="" if Path(init).exists() else init,
        new_vocabulary="--new-vocabulary" in arguments,
        general=value_of("--general", arguments) if command == "pretrain" else "",
    )


def _initial_weights(init: str, started: Path) -> Path:
    """Return the folder of the model that --init names; the run in ``started``, if there is one, has its weights."""
    from daybreak.exporting.hub import local_folder

    try:
        return local_folder(init)
    except UserError as error:
        if (started / "recipe.json").is_file():
            raise _not_needed(error.sentence.rstrip("."), started) from None
        raise


def _not_needed(fault: str, started: Path) -> UserError:
    """Return the error for a starting point that is gone, where the started run has all that it needs."""
    return UserError(
        f"{fault}, and the run in '{started}' does not need it any more.",
        f"Continue that: daybreak pretrain {shlex.quote(as_argument(started))} --data DATA "
        f"--out {shlex.quote(str(started))}.",
    )


KEPT_SHAPE = ("pooling",)
"""Fields of a model beside its dropouts that a continued run may change."""


def refuse_idle_settings(default: Recipe, recipe: Recipe, arguments: Sequence[str]) -> None:
    """Raise UserError for a setting that has no effect in ``recipe``, or that would change the shape of its start.

    Args:
        default: the recipe before the options.
    """
    for used, flags, why, remedy in (
        (
            recipe.phase2.enabled,
            ("--phase2.length", "--phase2.batch", "--phase2.lr"),
            "sets the second phase, and this run has one phase.",
            "Add --phase2.start 0.9, which is the fraction of the run at which it starts",
        ),
        (
            recipe.finish.enabled,
            ("--finish.length", "--finish.weight"),
            "sets the embedding finish, and this run has none.",
            "Add --finish.start 0.9, which is the fraction of the run at which it starts",
        ),
        (
            recipe.average.fraction,
            ("--average.every",),
            "sets the average of the weights, and this run has none.",
            "Add --average.fraction 0.2, which is the averaged fraction of the run",
        ),
        (
            recipe.ramp.enabled,
            ("--ramp.batch-multiple",),
            "sets the growth of the batch, and the batch of this run does not grow.",
            "Add --ramp.fraction 0.6, which is the fraction of the run in which it grows",
        ),
        (
            recipe.word_vectors.weight,
            ("--word-vectors.tokens", "--word-vectors.window"),
            "sets the word vectors, and this run starts without them.",
            "Add --word-vectors.weight 0.8",
        ),
        (
            recipe.devices.rate_rule != "none",
            ("--devices.reference",),
            "belongs to the rule for the learning rate of many devices, and this run has none.",
            "Add --devices.rate-rule sqrt",
        ),
        (
            recipe.counts_steps,
            ("--schedule.warmup-steps",),
            f"counts steps, and a budget of {recipe.budget} has no fixed number of steps.",
            "Give --schedule.warmup, a fraction of the run",
        ),
    ):
        if not used:
            refuse_idle(arguments, flags, why, remedy)
    if not recipe.origin.has_weights:
        return
    before, now = to_dict(default.model), to_dict(recipe.model)
    for name in before:
        if before[name] != now[name] and name not in KEPT_SHAPE and "dropout" not in name:
            raise UserError(
                f"--model.{name.replace('_', '-')} would change the model that the run continues.", "Leave it out."
            )


def _refuse_class(recipe: Recipe, given: set[str]) -> None:
    """Raise UserError for ``--schedule Cosine`` and the like: options are the fields of the classes of the recipe."""
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if isinstance(value, Component) and given & {f"--{field.name}", f"--{field.name}.kind"}:
            raise UserError(
                f"No option chooses the class of the {field.name}; it is {type(value).__name__} in '{recipe.name}'.",
                f"Choose another recipe, or set {field.name} in a recipe file; --{field.name}.NAME sets a field of it.",
            )


def load_recipe_file(path: str) -> None:
    """Load a recipe file, so that a run whose recipe uses the file's classes can be read; nothing if empty."""
    if path:
        from daybreak.recipe import load_recipe

        load_recipe(path)


def default_run_folder(recipe_name: str) -> Path:
    """``daybreak-mini`` -> ``runs/mini``."""
    from daybreak.recipe import FAMILY

    return Path("runs") / recipe_name.removeprefix(FAMILY)
