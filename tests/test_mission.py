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
STATUS = re.compile(r"\*(built|quoted|shown|not built)\*")
PLACE = re.compile(r"`(src/daybreak/[\w/.]+)`")
STATUSES = ["built", "quoted", "shown", "not built"]
OUT_OF_SCOPE = "Out of scope"
LEDGER_HEAD = "| statement | status | where | test | record |"
COUNTS_HEAD = "| seed | built | quoted | shown | not built |"


class Row(NamedTuple):
    section: str
    cells: list[str]


def rows() -> list[Row]:
    """Every row of the tables below the section headings."""
    found, section, above = [], "", ""
    for line in LEDGER.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif section and line.startswith("|") and above.startswith("|") and set(line) != {"|", "-"}:
            found.append(Row(section, [cell.strip() for cell in line[1:-1].split("|")]))
        above = line
    return found


ROWS = [row for row in rows() if row.section != OUT_OF_SCOPE]


def status_of(row: Row) -> str:
    """The status of a row, or an empty string if its second cell holds anything else."""
    found = STATUS.fullmatch(row.cells[1])
    return found.group(1) if found else ""


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
    assert len(ROWS) > 200 and all(status_of(row) for row in ROWS)


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_link_leads_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [target for target in LINK.findall(text) if not (DOCS / target).exists()] == []


@pytest.mark.parametrize(("page", "least"), [("mission.md", 2), ("systems.md", 11)])
def test_every_command_is_one(page: str, least: int) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = [
        line.split("#")[0].strip()
        for block in re.findall(r"```\n(.*?)```", text, re.DOTALL)
        for line in block.split("\n")
    ]
    commands = COMMAND.findall(text) + [line for line in blocks if "daybreak " in line]
    assert len(commands) >= least
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


def fault(row: Row) -> str:
    """What a row of the ledger lacks for its status, or an empty string."""
    if len(row.cells) != 5 or not row.cells[0]:
        return "not five cells"
    statement, _, where, test, record = row.cells
    status = status_of(row)
    code = PLACE.search(where)
    if status == "not built":
        return "" if len(where) > 10 and not code and (test, record) == ("-", "-") else "not built: a reason alone"
    if status == "quoted" and where == "this page":
        code = None
    elif not code or not (ROOT / code.group(1)).is_file():
        return "no file of the code"
    if test != "-" and not TEST.search(test):
        return "unreadable test"
    if status == "built":
        return "" if TEST.search(test) and record == "-" else "built: a test and no record"
    if status == "shown":
        return "" if TEST.search(test) and "](../records/" in record else "shown: a test and a record"
    if status == "quoted":
        numbers = re.findall(r"\d+\.\d+", statement)
        text = (ROOT / code.group(1)).read_text(encoding="utf-8") if code else statement
        if numbers and not all(number in text for number in numbers):
            return "quoted: the file repeats another number"
        refuted = "contradicts" in statement and "](../records/" in record
        return "" if record == "-" or refuted else "quoted: a record only if it contradicts"
    return "no status"


def test_every_row_has_what_its_status_needs() -> None:
    assert {row.cells[0]: wrong for row in ROWS if (wrong := fault(row))} == {}


def test_a_row_that_lacks_something_is_found() -> None:
    code, test, link = "`src/daybreak/cli.py`", "`tests/test_cli.py::test_x`", "[a](../records/a.json)"
    for cells in (
        ["x", "*shown*", code, test, "-"],
        ["x", "*built*", code, "-", "-"],
        ["x", "*built*", code, test, link],
        ["x", "*built*", "`src/daybreak/none.py`", test, "-"],
        ["x", "*quoted*", code, "-", link],
        ["x", "*not built*", code, "-", "-"],
        ["x", "*done*", code, test, "-"],
    ):
        assert fault(Row("", cells)) != ""
    assert fault(Row("", ["x", "*shown*", code, test, link])) == ""


def test_the_counts_at_the_top_are_those_of_the_tables() -> None:
    counts = {}
    for line in LEDGER.split(COUNTS_HEAD)[1].split("\n\n")[0].splitlines()[2:]:
        name, *numbers = [cell.strip() for cell in line[1:-1].split("|")]
        counts[name] = [int(number) for number in numbers]
    sections = dict.fromkeys(row.section for row in ROWS)
    found = {
        section: [sum(row.section == section and status_of(row) == status for row in ROWS) for status in STATUSES]
        for section in sections
    }
    total = [sum(column) for column in zip(*found.values(), strict=True)]
    assert counts == {**found, "All": total}
    assert [name.split(":")[0] for name in counts][:5] == [f"Seed {number:03d}" for number in range(5)]


def test_every_section_has_one_table_and_every_recipe_a_place() -> None:
    sections = re.findall(r"^## (.*)$", LEDGER, re.MULTILINE)
    assert set(sections) == {row.section for row in rows()}
    assert LEDGER.count(LEDGER_HEAD) == len(sections) - 1
    told = {name.split()[0] for name, _ in VALUE.findall(LEDGER)}
    assert {name for name in recipe_names() if not name.startswith("daybreak-")} <= told


def test_the_top_of_the_ledger_says_which_recipes_have_left_the_plateau_in_a_record() -> None:
    runs = []
    for path in sorted((ROOT / "records").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict) and record.get("benchmark") == "systems":
            runs += [run for run in record["runs"] if not run["recipe"].startswith("daybreak-")]
    assert len(runs) == len({run["recipe"] for run in runs}) == 19
    assert not any(run["left_plateau"] for run in runs)
    assert "The 19 recorded runs before them" in LEDGER
    for name in ("2026-11-24-crammed-mini-45m", "2026-11-23-bert-2018-tiny-4000steps"):
        record = json.loads((ROOT / "records" / name / "record.json").read_text())
        below = record["unigram_loss"] - record["loss"]
        assert f"{below:.2f} nats below the unigram baseline ([record](../records/{name}/))" in LEDGER


def test_what_is_out_of_scope_has_one_reason_each() -> None:
    reasons = {row.cells[0]: row.cells[1] for row in rows() if row.section == OUT_OF_SCOPE}
    assert len(reasons) == 8 and all(reason.startswith("out of scope, because ") for reason in reasons.values())
