"""Links and Python on the pages lead to what there is, and copies are of now; test_docs_commands.py runs commands.

``docs/tables.py`` makes the copies on the pages: tables of records, the table of recipes and the examples.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy

import pytest
from page_commands import COMMANDS, ROOT, SNIPPETS, TEXTS

import daybreak
from daybreak import cli

LINKING = TEXTS | {"CHANGELOG.md": (ROOT / "CHANGELOG.md").read_text("utf-8")}
LINKS = [
    pytest.param(name, target, id=f"{name}: {target}")
    for name, text in LINKING.items()
    for target in re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", text)
]
PLACES = [
    pytest.param(name, target, place, id=f"{name}: {target}#{place}")
    for name, text in LINKING.items()
    for target, place in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", text)
]
TABLES = runpy.run_path(str(ROOT / "docs/tables.py"))


def test_there_is_something_to_check() -> None:
    assert len(COMMANDS) >= 150 and len(SNIPPETS) >= 10 and len(LINKS) >= 50 and len(PLACES) >= 20


@pytest.mark.parametrize("snippet", [one.text for one in SNIPPETS])
def test_each_snippet_imports_what_there_is(snippet: str) -> None:
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("daybreak"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), node.module


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_each_link_leads_somewhere(page: str, target: str) -> None:
    assert (ROOT / page).parent.joinpath(target).exists()


@pytest.mark.parametrize(("page", "target", "place"), PLACES)
def test_each_link_to_a_heading_leads_there_on_github_and_on_the_site(page: str, target: str, place: str) -> None:
    text = ((ROOT / page).parent / target if target else ROOT / page).read_text("utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"[^\w\- ]", "", heading).lower() for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)]
    assert place in {heading.replace(" ", "-") for heading in headings}, "GitHub keeps each space as a hyphen."
    assert place in {re.sub(r"[-\s]+", "-", heading.strip()) for heading in headings}, "MkDocs joins and trims spaces."


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if TABLES["COPY"].search(text)])
def test_what_a_page_copies_is_what_it_was_copied_from(name: str) -> None:
    assert TEXTS[name] == TABLES["renewed"](TEXTS[name]), "If the change is meant: make tables"


def test_the_reference_has_every_command_and_everything_that_reaches_disk() -> None:
    page = re.findall(r"^::: (\S+)$", TEXTS["docs/reference.md"], re.MULTILINE)
    functions = {verb.replace("-", "_") for verb in cli.COMMANDS if verb != "recipes"} | {"catalogue"}
    assert functions - {name.rpartition(".")[2] for name in page} == set()
    wanted = {f"daybreak.schemas.{path.stem}" for path in (ROOT / "src/daybreak/schemas").glob("[!_]*.py")}
    wanted -= {"daybreak.schemas.old_names"}  # maps names of older files; holds no type
    assert wanted - set(page) == set() and len(page) == len(set(page))


@pytest.mark.parametrize("name", sorted({*daybreak.__all__} - {"__version__"}))
def test_each_public_function_takes_paths_as_strings(name: str) -> None:
    for parameter in inspect.signature(getattr(daybreak, name)).parameters.values():
        assert "Path" not in parameter.annotation or "str" in parameter.annotation, parameter


def test_each_test_that_a_page_names_exists() -> None:
    named = set(re.findall(r"(tests/[\w/]+\.py)::(\w+)", "".join(TEXTS.values())))
    lost = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text("utf-8")]
    assert lost == [] and len(named) > 100


def test_every_source_file_that_the_architecture_names_exists() -> None:
    files = [path for folder in ("src/daybreak", "docs", "tests") for path in (ROOT / folder).rglob("*.py")]
    known = [f"/{path.relative_to(ROOT).as_posix()}" for path in files]
    named = set(re.findall(r"[\w/]+\.py", TEXTS["docs/architecture.md"]))
    assert len(named) > 50
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in known)] == []
