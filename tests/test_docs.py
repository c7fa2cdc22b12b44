"""What README and docs tell a stranger to type is what the program takes; their links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli
from daybreak.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "RULES.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
BLOCKS = [
    (name, language, block)
    for name, text in TEXTS.items()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
]
COMMAND = re.compile(r"(?:^|\| |-m )(?=daybreak )")
"""Alone in a line, behind a pipe, or what torchrun starts."""
TYPED = [
    (name, line[found.end() :].split("  #")[0].strip())
    for name, language, block in BLOCKS
    if language in ("", "sh")
    for line in block.splitlines()
    if (found := COMMAND.search(line))
]
INLINE = [
    (name, command)
    for name, text in TEXTS.items()
    for command in re.findall(r"`(daybreak [a-z-]+ [^`]*)`", text)
    if "..." not in command
]
COMMANDS = [pytest.param(command, id=f"{name}: {command}") for name, command in dict.fromkeys([*TYPED, *INLINE])]
SNIPPETS = [block for _, language, block in BLOCKS if language == "python"]
LINKS = [
    pytest.param(name, target, id=f"{name}: {target}")
    for name, text in TEXTS.items()
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text)
]


def test_there_is_something_to_check() -> None:
    assert len(COMMANDS) >= 50 and SNIPPETS and len(LINKS) >= 50


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_reaches_its_verb(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed to what the verb is called with: the models, texts and runs that it names need not be there."""
    words = shlex.split(command)[1:]
    called: list[Any] = []
    verb = words[0].replace("-", "_")
    module = importlib.import_module(f"daybreak.{'catalogue' if verb == 'recipes' else verb}")
    for function in ("catalogue", "described") if verb == "recipes" else (verb,):
        monkeypatch.setattr(module, function, lambda *args, **kwargs: called.append((args, kwargs)))
    monkeypatch.setattr("daybreak.packaging.hub.local_folder", Path)
    monkeypatch.setattr("daybreak.packaging.hub.push_to_hub", lambda *args, **kwargs: None)
    monkeypatch.setattr("daybreak.origins.continued", lambda recipe, folder, **more: recipe)
    monkeypatch.setattr("daybreak.origins.extended", lambda run, budget: load_recipe("tiny"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_recipe.py").write_text('from daybreak.recipe import load_recipe\n\nrecipe = load_recipe("tiny")\n')
    cli._dispatch(words)
    assert len(called) == 1


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_each_snippet_imports_what_there_is(snippet: str) -> None:
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("daybreak"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), node.module


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_each_link_leads_somewhere(page: str, target: str) -> None:
    assert (ROOT / page).parent.joinpath(target).exists()


def test_make_knows_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for goal in re.findall(r"^make (\w+)", TEXTS["README.md"], re.MULTILINE):
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE)
