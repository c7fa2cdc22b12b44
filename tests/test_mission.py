"""The ledger says what is: values are the recipes', tests and records exist, counts are right.

``test_docs.py`` and ``test_docs_commands.py`` check the commands and links of all pages.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from daybreak.core.serialization import to_dict
from daybreak.recipe import load_recipe, recipe_names

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LEDGER = (DOCS / "mission.md").read_text(encoding="utf-8")

VALUE = re.compile(r"`([a-z0-9-]+(?: --[a-z]+(?: [a-z]+)?)*): ([a-z_.0-9]+ = [^`]*)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
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


@functools.cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_has_a_status() -> None:
    assert len(ROWS) > 200 and all(status_of(row) for row in ROWS)


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
    for name in (
        "2026-11-25-crammed-mini-2h",
        "2026-11-23-bert-2018-tiny-4000steps",
        "2026-11-25-bert-2018-mini-2h",
    ):
        record = json.loads((ROOT / "records" / name / "record.json").read_text())
        below = record["unigram_loss"] - record["loss"]
        assert f"{below:.2f} nats below the unigram baseline ([record](../records/{name}/))" in LEDGER


def test_what_is_out_of_scope_has_one_reason_each() -> None:
    reasons = {row.cells[0]: row.cells[1] for row in rows() if row.section == OUT_OF_SCOPE}
    assert len(reasons) == 8 and all(reason.startswith("out of scope, because ") for reason in reasons.values())
