"""What README and docs tell a stranger to type or to run, in the order of the pages, and how a command is parsed."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli
from daybreak.core.files import write_json
from daybreak.recipe import load_recipe, resolved

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "RULES.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}

BLOCK_OR_CODE = re.compile(r"^```(\w*)\n(.*?)^```|`([^`\n]+)`", re.DOTALL | re.MULTILINE)
TYPED = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:daybreak [a-z-]+ |make [a-z]|(?:\S*/)?(?:python[\d.]*|pip|iconv) \S|torchrun .*-m daybreak "
    r"|sbatch |srun |source |export [A-Z_]+=)"
)
"""How a command begins that stands in a line of prose; the bare name of a command is none."""
DRAWINGS = {"docs/architecture.md"}
"""Pages whose blocks show no commands."""


@dataclass(frozen=True)
class Said:
    """A command, or a piece of Python, as it stands on a page."""

    page: str
    language: str
    text: str


def said_in(page: str, text: str) -> list[Said]:
    """All of them from top to bottom. What is cut short by dots is none."""
    found = []
    for language, block, code in BLOCK_OR_CODE.findall(text):
        if language == "python":
            found.append(Said(page, "python", block))
        elif block and language in ("", "sh") and page not in DRAWINGS:
            found += [Said(page, "sh", line) for line in lines_of(block)]
        elif TYPED.match(code) and "..." not in code:
            found.append(Said(page, "sh", code))
    return found


def lines_of(block: str) -> list[str]:
    """The commands of a block, without comments."""
    lines = [line.split("  #")[0].strip() for line in re.sub(r"\\\n\s*", "", block).splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def cells_of(notebook: Path) -> str:
    """The text between its cells of code."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


NOTEBOOK = "examples/pretrain_your_own.ipynb"
SAID = [one for page, text in [*TEXTS.items(), (NOTEBOOK, cells_of(ROOT / NOTEBOOK))] for one in said_in(page, text)]
COMMANDS = list(dict.fromkeys(one for one in SAID if one.language == "sh"))
SNIPPETS = [one for one in SAID if one.language == "python"]


def words_of(command: str) -> list[str]:
    """What follows ``daybreak`` in a command, alone or behind a pipe or torchrun; empty where it is of another program.

    Its words are parted as a shell does it.
    """
    found = re.search(r"(?:^|\| |-m )daybreak (.*)", command)
    return shlex.split(found[1]) if found else []


def called(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Parse a command to the arguments of its function; the models, texts and runs that it names need not be there."""
    words = words_of(command)
    found: list[Any] = []
    verb = words[0].replace("-", "_")
    module = importlib.import_module(f"daybreak.commands.{verb}")
    for function in {"recipes": ("catalogue", "described"), "report": ("report", "glue_scores")}.get(verb, (verb,)):
        monkeypatch.setattr(module, function, lambda *args, **kwargs: found.append((args, kwargs)))
    monkeypatch.setattr("daybreak.exporting.hub.local_folder", Path)
    monkeypatch.setattr("daybreak.exporting.hub.push_to_hub", lambda *args, **kwargs: None)
    monkeypatch.setattr("daybreak.pretraining.starting_points.continue_model", lambda recipe, folder, **more: recipe)
    monkeypatch.setattr("daybreak.pretraining.starting_points.extend_run", lambda run, budget: load_recipe("tiny"))
    monkeypatch.chdir(folder)
    (folder / "my_recipe.py").write_text('from daybreak.recipe import load_recipe\n\nrecipe = load_recipe("tiny")\n')
    (folder / "examples").symlink_to(ROOT / "examples")
    for run in ("mine", "albert"):
        (folder / "runs" / run).mkdir(parents=True)
        write_json(folder / "runs" / run / "recipe.json", resolved(load_recipe("mini")))
    cli.dispatch(words)
    assert len(found) == 1
    args, kwargs = found[0]
    return args, kwargs
