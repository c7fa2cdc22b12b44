"""What README and docs tell a stranger to type is what the program takes; their links lead somewhere.

The table of recipes and the examples on the pages are copies: ``python tests/test_docs.py --write`` renews them.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli
from daybreak.base.files import write_json
from daybreak.catalogue import catalogue
from daybreak.recipe import load_recipe, promise, resolved

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
    for line in re.sub(r"\\\n\s*", "", block).splitlines()
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
    for target in re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", text)
]
COPY = re.compile(r"<!-- made from: (.+?) -->\n.*?<!-- until here -->", re.DOTALL)
"""What stands on a page and is made of something else."""


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
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for run in ("mine", "albert"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        write_json(tmp_path / "runs" / run / "recipe.json", resolved(load_recipe("mini")))
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


def renewed(text: str) -> str:
    """The page with its copies as they should be."""
    return COPY.sub(lambda found: f"<!-- made from: {found[1]} -->\n{copied(found[1])}<!-- until here -->", text)


def copied(source: str) -> str:
    if source == "daybreak recipes":
        return recipes_table()
    language = {".py": "python"}.get(Path(source).suffix, Path(source).suffix[1:])
    return f"```{language}\n{(ROOT / source).read_text(encoding='utf-8')}```\n"


def recipes_table() -> str:
    """What ``daybreak recipes`` prints, with each promise whole and its record linked."""
    lines = catalogue().splitlines()
    rows = ["| recipe | what it is | from | promise |", "|---|---|---|---|"]
    for first, second in zip(lines[::2], lines[1::2]):
        name, what = first.split(maxsplit=1)
        source, _, standing = second.strip().rpartition("; ")
        told = " ".join(promise(name).partition("Promise:")[2].split())
        assert told.startswith(standing), name
        told = re.sub(r"(records/[\w.-]*\w)", r"[the record](../\1/)", told)
        rows.append(f"| `{name}` | {what} | {source} | {told} |")
    return "\n".join([*rows, ""])


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if COPY.search(text)])
def test_what_a_page_copies_is_what_it_was_copied_from(name: str) -> None:
    assert TEXTS[name] == renewed(TEXTS[name]), "If the change is meant: python tests/test_docs.py --write"


def test_the_reference_has_every_verb_and_everything_that_reaches_disk() -> None:
    page = re.findall(r"^::: (\S+)$", TEXTS["docs/reference.md"], re.MULTILINE)
    verbs = {verb.replace("-", "_") for verb in cli.VERBS if verb != "recipes"}
    wanted = {f"daybreak.{verb}.{verb}" for verb in verbs} | {"daybreak.catalogue.catalogue"}
    wanted |= {f"daybreak.base.{path.stem}" for path in (ROOT / "src" / "daybreak" / "base").glob("*records.py")}
    assert wanted - set(page) == set() and len(page) == len(set(page))


def test_make_knows_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for goal in re.findall(r"^make (\w+)", TEXTS["README.md"], re.MULTILINE):
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE)


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], __doc__
    for name, text in TEXTS.items():
        (ROOT / name).write_text(renewed(text), encoding="utf-8")
