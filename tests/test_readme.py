"""What the README tells a stranger to type is what the program takes; its links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in BLOCKS
    if language in ("", "sh")
    for line in block.splitlines()
    if line.startswith("daybreak ")
]
SNIPPETS = [block for language, block in BLOCKS if language == "python"]


def test_there_is_something_to_check() -> None:
    assert len(COMMANDS) >= 6 and SNIPPETS


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_reaches_its_verb(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)[1:]
    called: list[Any] = []
    verb = importlib.import_module(f"daybreak.{words[0]}")
    monkeypatch.setattr(verb, words[0], lambda *args, **kwargs: called.append((args, kwargs)))
    cli._dispatch(words)
    assert len(called) == 1


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_each_snippet_imports_what_there_is(snippet: str) -> None:
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("daybreak"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), node.module


@pytest.mark.parametrize("target", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_each_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_make_knows_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for goal in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE)
