"""The ledger and the users' page say what is: commands parse, values are the recipes', tests and records exist."""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from daybreak.core.errors import UserError
from daybreak.core.serialization import to_dict
from daybreak.recipe import Recipe, load_recipe, recipe_names

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LEDGER = (DOCS / "mission.md").read_text(encoding="utf-8")
FLAGS = {tuple(line.split()) for line in (ROOT / "tests/golden/flags.txt").read_text().splitlines()}
COMMANDS = {verb for verb, _ in FLAGS}

COMMAND = re.compile(r"`((?:torchrun [^`]* -m )?daybreak [^`]*)`")
VALUE = re.compile(r"`([a-z0-9-]+(?: --[a-z]+(?: [a-z]+)?)*): ([a-z_.0-9]+ = [^`]*)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\((?!http)([^)#]+)\)")
DEFERRED = "deferred, because "
OUT_OF_SCOPE = "Out of scope"
HEADS = {"| statement | how | test | record |", "| what | why |"}


class Row(NamedTuple):
    section: str
    cells: list[str]


def rows() -> list[Row]:
    """Every row of every table of the ledger."""
    found, section = [], ""
    for line in LEDGER.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("|") and line not in HEADS and set(line) != {"|", "-"}:
            found.append(Row(section, [cell.strip() for cell in line[1:-1].split("|")]))
    return found


ROWS = [row for row in rows() if row.section != OUT_OF_SCOPE]
DONE = [row for row in ROWS if not row.cells[1].startswith(DEFERRED)]


def recipe_of(words: list[str]) -> Recipe | None:
    """The recipe whose fields the flags of a command may name: its first word, or that of --recipe."""
    name = words[words.index("--recipe") + 1] if "--recipe" in words else words[1] if len(words) > 1 else "tiny"
    if name.startswith("-"):
        name = "tiny"
    size = words[words.index("--size") + 1] if "--size" in words else ""
    return load_recipe(name, size=size, faithful="--faithful" in words)


def fields(plain: Any, where: str = "") -> set[str]:
    if not isinstance(plain, dict):
        return {"--" + where.replace("_", "-")}
    return {flag for name, item in plain.items() for flag in fields(item, f"{where}.{name}" if where else name)}


def complaint(command: str) -> str:
    """What is wrong with a command, in words; empty when the program takes it."""
    words = shlex.split(command[command.index("daybreak ") :])[1:]
    flags = {word.split("=")[0] for word in words if word.startswith("--")}
    if words[0] not in COMMANDS:
        return f"no command {words[0]}" if words[0] not in ("--help", "VERB") else ""
    known = {flag for verb, flag in FLAGS if verb == words[0]}
    try:
        if words[0] in ("run", "pretrain"):
            known |= fields(to_dict(recipe_of(words)))
        elif words[0] == "recipes" and len(words) > 1 and words[1] != "NAME":
            recipe_of(words)
        elif words[0] == "prepare" and "--recipe" in words:
            known |= {f for f in fields(to_dict(recipe_of(words))) if f.startswith("--tokenizer.")}
    except UserError as error:
        return str(error)
    return ", ".join(sorted(flags - known))


@functools.cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_checks_check() -> None:
    assert complaint("daybreak pretrain crammed --data DATA --ramp.fraction 0.5 --rows.order stream") == ""
    assert complaint("daybreak pretrain crammed --data DATA --rows.oder stream") == "--rows.oder"
    assert complaint("torchrun --nproc-per-node 2 -m daybreak pretrain tiny --dat DATA") == "--dat"
    assert "no command" in complaint("daybreak train tiny") and "no recipe" in complaint("daybreak run crammd")
    assert len(ROWS) > 150 and len(DONE) > 100


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_link_leads_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [target for target in LINK.findall(text) if not (DOCS / target).exists()] == []


@pytest.mark.parametrize("page", ["mission.md", "systems.md"])
def test_every_command_is_one(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = [
        line.split("#")[0].strip()
        for block in re.findall(r"```\n(.*?)```", text, re.DOTALL)
        for line in block.split("\n")
    ]
    commands = COMMAND.findall(text) + [line for line in blocks if "daybreak " in line]
    assert len(commands) > 10
    assert {command: wrong for command in commands if (wrong := complaint(command))} == {}


def test_every_value_is_the_recipes() -> None:
    wrong = []
    for name, values in VALUE.findall(LEDGER):
        word, *options = name.split()
        size = options[options.index("--size") + 1] if "--size" in options else ""
        plain = to_dict(load_recipe(word, size=size, faithful="--faithful" in options))
        for value in values.split("; "):
            dotted, told = value.split(" = ")
            found: Any = plain
            for part in dotted.split("."):
                found = found[part]
            if found != json.loads(told):
                wrong.append(f"{name}: {value}, but it is {json.dumps(found)}")
    assert wrong == []


def test_every_test_exists() -> None:
    missing = [f"{path}::{name}" for path, name in TEST.findall(LEDGER) if name not in functions_of(path)]
    assert missing == []


def test_every_row_is_done_or_deferred_with_a_reason() -> None:
    bad = []
    for row in ROWS:
        whole = len(row.cells) == 4 and row.cells[0]
        if row in DONE:
            how = COMMAND.search(row.cells[1]) or VALUE.search(row.cells[1])
            whole = whole and how and TEST.search(row.cells[2])
            whole = whole and (row.cells[3] == "-" or LINK.search(row.cells[3]))
        else:
            whole = whole and len(row.cells[1]) > len(DEFERRED) + 10
        if not whole:
            bad.append(" | ".join(row.cells))
    assert bad == []


def test_every_section_has_rows_and_every_recipe_a_place() -> None:
    sections = re.findall(r"^## (.*)$", LEDGER, re.MULTILINE)
    assert set(sections) == {row.section for row in rows()}
    told = {name.split()[0] for name, _ in VALUE.findall(LEDGER)}
    assert {name for name in recipe_names() if not name.startswith("daybreak-")} <= told


def test_what_is_out_of_scope_has_one_reason_each() -> None:
    reasons = {row.cells[0]: row.cells[1] for row in rows() if row.section == OUT_OF_SCOPE}
    assert len(reasons) == 9 and all(reason.startswith("out of scope, because ") for reason in reasons.values())
