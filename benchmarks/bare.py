"""Run Daybreak's commands without the packages of its command line, by calling their functions directly.

    python benchmarks/bare.py prepare TEXT ... --out DATA --tokenizer.vocabulary 32768
    python benchmarks/bare.py pretrain base --data DATA --out RUN --budget 390s --model.layers 2
    python benchmarks/bare.py evaluate RUN --tasks glue5 --task-dir GLUE --seeds 1
    python benchmarks/bare.py verify RUN --data DATA

Images of rented GPU machines often have torch and transformers but lack tyro, zstandard and plotly. Training,
evaluation and verification need none of them. measure.py uses this file if tyro cannot be imported. The flags of
pretrain are the dotted names of recipe fields.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

from daybreak.core.errors import Interrupted, UserError
from daybreak.core.process import process_started


class Absent(types.ModuleType):
    """Stands in for tyro: the classes of options name parts of it, but no option is parsed here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


try:
    import tyro  # noqa: F401
except ImportError:
    sys.modules.update({name: Absent(name) for name in ("tyro", "tyro.conf", "tyro.constructors")})


def with_field(value: Any, name: str, text: str) -> Any:
    """Return ``value``, a recipe or a part of one, with the field of this dotted name parsed from ``text``."""
    first, _, rest = name.replace("-", "_").partition(".")
    if not hasattr(value, first):
        raise UserError(f"There is no field '{first}' in {type(value).__name__}.", "See daybreak recipes.")
    old = getattr(value, first)
    if rest:
        return replace(value, **{first: with_field(old, rest, text)})
    if isinstance(old, bool):
        return replace(value, **{first: text.lower() == "true"})
    if isinstance(old, tuple):
        kind = type(old[0]) if old else str
        return replace(value, **{first: tuple(kind(part) for part in text.split(","))})
    return replace(value, **{first: type(old)(text)})


def fields_of(flags: list[str]) -> list[tuple[str, str]]:
    """Names and values from ``--name value --name value``."""
    if len(flags) % 2 or not all(flag.startswith("--") for flag in flags[::2]):
        raise UserError(f"'{' '.join(flags)}' is no list of --name value.", "Write it so.")
    return [(name[2:], value) for name, value in zip(flags[::2], flags[1::2])]


def prepare(arguments: list[str]) -> None:
    from daybreak.commands.prepare import prepare
    from daybreak.data.tokenizers.tokenizer import WordPiece

    parser = argparse.ArgumentParser()
    parser.add_argument("text", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer.vocabulary", dest="vocabulary", type=int, default=32_768)
    parser.add_argument("--split-sentences", action="store_true")
    chosen = parser.parse_args(arguments)
    tokenizer = WordPiece(vocabulary=chosen.vocabulary)
    prepare(chosen.text, chosen.out, tokenizer=tokenizer, split_sentences=chosen.split_sentences)


def pretrain(arguments: list[str]) -> None:
    from daybreak.commands.pretrain import pretrain
    from daybreak.recipe import load_recipe

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--accept-tokenizer", action="store_true")
    chosen, flags = parser.parse_known_args(arguments)
    recipe = load_recipe(chosen.recipe)
    for name, text in fields_of(flags):
        recipe = with_field(recipe, name, text)
    accepted = chosen.accept_tokenizer
    pretrain(recipe, data=chosen.data, out=chosen.out, accept_tokenizer=accepted, started=process_started())


def evaluate(arguments: list[str]) -> None:
    from daybreak.commands.evaluate import evaluate

    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--task-dir", type=Path)
    parser.add_argument("--protocol", default="quick")
    for name in ("seeds", "epochs", "workers"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--untrained", action="store_true")
    chosen = vars(parser.parse_args(arguments))
    evaluate(chosen.pop("model"), chosen.pop("tasks").split(","), **chosen)


def verify(arguments: list[str]) -> None:
    from daybreak.commands.verify import verify

    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--last", type=int, default=0)
    chosen = parser.parse_args(arguments)
    verify(chosen.run, data=chosen.data, last=chosen.last)


COMMANDS = {"prepare": prepare, "pretrain": pretrain, "evaluate": evaluate, "verify": verify}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        import measure

        parser = measure.parser(__doc__)
        parser.add_argument("command", nargs="?", choices=COMMANDS)
        if parser.parse_args().short:  # make bench; tests and make gpu-dry run the commands
            return
        parser.error(f"name one of {', '.join(COMMANDS)}")
    begun = time.monotonic()
    try:
        COMMANDS[sys.argv[1]](sys.argv[2:])
    except UserError as error:
        sys.exit(f"{sys.argv[1]}: {error.sentence} {error.remedy} ({time.monotonic() - begun:.0f} s)")
    except Interrupted as error:
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
