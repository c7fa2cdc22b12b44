"""The house keeps its plan: imports fall, and nothing private or dead is left lying about.

The floors are those of docs/architecture.md. Imports inside functions and under TYPE_CHECKING count like all others:
they run later, but the reader still walks the same way.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

FLOORS = [
    {"daybreak"},  # the package itself: its version, and no import
    {"base"},
    {"data", "models", "training"},
    {"evaluation", "packaging", "reporting", "forecasting"},
    {"recipe"},
    {"run_start", "assembly", "origins", "subject", "turns", "arithmetic"},
    {"deciding", "run_end", "cell_tasks", "filing"},
    {"planning", "contest"},
    {
        "prepare",
        "pretrain",
        "evaluate",
        "report",
        "export",
        "status",
        "catalogue",
        "recipes",
        "probe",
        "check_submission",
        "verify",
        "leaderboard",
        "plan",
        "doctor",
        "init_task",
    },
    {"run", "study", "study_data", "record"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

ROOM_MAY_IMPORT = {
    "data": {"base"},
    "models": {"base"},
    "training": {"base"},
    "reporting": {"base"},
    "forecasting": {"base"},
    "evaluation": {"base", "models", "training", "data.tokenizer"},
    "packaging": {"base", "models", "training", "data.tokenizer"},
}
"""Where falling is not enough. Rooms of one floor never import each other anyway."""

BASE_LIBRARIES = {"numpy", "torch", "rich"}
TORCH_FREE = {"data", "prepare", "reporting", "report", "status", "cli", "doctor"}
"""Rooms that start fast: preparing, reading and asking for help must not wait for torch."""
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "sklearn", "scipy", "plotly", "numpy"}

FORBIDDEN_NAMES = re.compile(r"_*(utils?|common|helpers?|misc)")
PRIVATE = re.compile(r"/work/|\bshared/|/tmp/|/root/|/home/")
PUBLIC_TEXT = "src benchmarks docs examples records .ci README.md RULES.md CHANGELOG.md Makefile pyproject.toml".split()


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text("utf-8"))
    return found


def imports(module: str) -> Iterator[str]:
    """Every name that ``module`` imports, as far down as it is a module: ``daybreak.core.plain``, ``numpy`` ..."""
    is_package = (SOURCE / module.replace(".", "/")).is_dir()
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package
            package = module.split(".")[: -up or None] if node.level else []
            name = ".".join(package + ([node.module] if node.module else []))
            for alias in node.names:
                full = f"{name}.{alias.name}"
                yield full if full in trees() else name
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from (str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant))


def room(module: str) -> str:
    """``daybreak.data.tokenizers.tokenizer`` -> ``data``; ``daybreak`` -> ``daybreak``."""
    return module.split(".")[1] if "." in module else module


def arrows() -> Iterator[tuple[str, str]]:
    """Every (importing module, imported module) between two different modules of the package."""
    for module in trees():
        for target in imports(module):
            if target.split(".")[0] == "daybreak" and target != module:
                yield module, target


def test_every_module_has_a_floor() -> None:
    homeless = sorted({module for module in trees() if room(module) not in FLOOR})
    assert homeless == [], "add the room to FLOORS here and to docs/architecture.md"


def test_imports_only_fall() -> None:
    rising = [
        f"{module} -> {target}"
        for module, target in arrows()
        if room(module) != room(target) and FLOOR[room(target)] >= FLOOR[room(module)]
    ]
    assert rising == []


def test_rooms_with_a_list_keep_to_it() -> None:
    strange = []
    for module, target in arrows():
        allowed = ROOM_MAY_IMPORT.get(room(module), {""})
        inside = target.removeprefix("daybreak.")
        if room(target) in {room(module), "daybreak"} or "" in allowed:
            continue
        if not any(inside == name or inside.startswith(name + ".") for name in allowed):
            strange.append(f"{module} -> {target}")
    assert strange == []


def test_no_circle_of_files() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, target in arrows():
        graph[module].add(target)
    circle: list[str] = []
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
    assert circle == []


def test_libraries_stay_in_their_rooms() -> None:
    strange = []
    for module in trees():
        for library in {name.split(".")[0] for name in imports(module)} - {"daybreak"} - sys.stdlib_module_names:
            base_keeps_out = room(module) == "base" and library not in BASE_LIBRARIES
            must_be_fast = room(module) in TORCH_FREE and library in {"torch", "transformers"}
            parses_arguments = library == "tyro" and room(module) != "cli"
            if base_keeps_out or must_be_fast or parses_arguments:
                strange.append(f"{module} -> {library}")
        if "argparse" in set(imports(module)) and room(module) != "cli":
            strange.append(f"{module} -> argparse")
    assert strange == []


def loaded(*arguments: str) -> set[str]:
    """Names of the packages that a fresh interpreter loads, started with ``arguments``."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    told = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 0, "\n".join(told)
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line not in told]
    assert "daybreak.cli" in names or "daybreak.prepare" in names
    return {name.split(".")[0] for name in names}


def test_the_command_line_starts_light() -> None:
    assert loaded("-c", "import daybreak.cli") & HEAVY == set()
    assert loaded("-m", "daybreak", "--help") & HEAVY == set()


def test_preparing_never_loads_torch() -> None:
    assert loaded("-c", "import daybreak.commands.prepare") & {"torch", "transformers"} == set()


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def test_no_file_is_named_after_nothing() -> None:
    paths = [part for file in python_files("src", "tests", "benchmarks") for part in (file, file.parent)]
    assert {str(path) for path in paths if FORBIDDEN_NAMES.fullmatch(path.stem)} == set()


def test_source_is_ascii() -> None:
    assert [str(path) for path in python_files("src") if not path.read_bytes().isascii()] == []


def public_files() -> list[Path]:
    found = []
    for name in PUBLIC_TEXT:
        path = ROOT / name
        found += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return [path for path in found if path.suffix != ".pyc" and ".egg-info" not in str(path)]


def test_no_private_path_in_public_text() -> None:
    told = []
    for path in public_files():
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1):
            if PRIVATE.search(line):
                told.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert told == []


def test_tests_on_outside_data_say_so_when_they_skip() -> None:
    texts = {path: path.read_text("utf-8") for path in python_files("tests") if path != Path(__file__).resolve()}
    assert [str(path) for path, text in texts.items() if "shared/" in text and "needs ../shared/" not in text] == []
    assert [str(path) for path, text in texts.items() if "/work/" in text] == []


def test_every_dependency_is_pinned() -> None:
    def normal(requirement: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement)[0]).lower()

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    wanted = project["project"]["dependencies"] + [name for extra in extras for name in extra]
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    assert {normal(name) for name in wanted + project["build-system"]["requires"]} <= {normal(pin) for pin in pins}
