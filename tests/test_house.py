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
from pathlib import Path

import pytest

import daybreak

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

FLOORS = [
    {"schemas"},
    {"core"},
    {"data.readers", "models", "training.objectives", "training.optim", "training.monitoring", "reporting"},
    {"data.tokenizers", "training.hardware", "forecasting", "evaluation.scoring"},
    {"data.filters", "data.sequences", "training", "evaluation.tasks"},
    {"data.pipeline", "exporting", "evaluation.baselines", "evaluation.protocols", "evaluation.glue_server"},
    {"data.demo_corpus", "evaluation.finetuning"},
    {"evaluation.probes"},
    {"evaluation"},
    {"recipe", "searching"},
    {"recipes", "pretraining"},
    {"studies"},
    {"commands"},
    {"daybreak"},  # the public functions, imported at their first use, and the version
    {"cli"},
    {"__main__"},
]
"""Folders of the package, lowest first. A folder imports itself and folders of lower floors."""
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

WINGS = {"data", "models", "training"}
"""They never import each other."""

MAY_IMPORT = {
    "schemas": {"schemas"},
    "core": {"core", "schemas"},
    "data": {"core", "schemas", "data"},
    "models": {"core", "schemas", "models"},
    "training": {"core", "schemas", "training"},
    "reporting": {"core", "schemas", "reporting"},
    "forecasting": {"core", "schemas", "forecasting"},
    "exporting": {"core", "schemas", "exporting", "models", "training", "data.tokenizers"},
    "evaluation": {"core", "schemas", "evaluation", "models", "training", "data.tokenizers", "exporting.hub"},
}
"""Where falling is not enough."""

CORE_LIBRARIES = {"numpy", "psutil", "torch", "rich", "IPython"}
TORCH_FREE = {
    "schemas",
    "data",
    "commands.prepare",
    "reporting",
    "commands.report",
    "commands.status",
    "commands.doctor",
    "cli",
}
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


def called(call: ast.Call) -> str:
    """The last name of the function that is called; empty if it has none."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


@functools.cache
def imports(module: str) -> list[str]:
    """Every name that ``module`` imports, down to the module: ``daybreak.core.serialization``, ``numpy`` ..."""
    is_package, found = (SOURCE / module.replace(".", "/")).is_dir(), []
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package
            package = module.split(".")[: -up or None] if node.level else []
            name = ".".join(package + ([node.module] if node.module else []))
            full = [f"{name}.{alias.name}" for alias in node.names]
            found += [each if each in trees() else name for each in full]
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            found += [str(name.value) for name in node.args[:1] if isinstance(name, ast.Constant)]
    return found


@functools.cache
def room(module: str) -> str:
    """``daybreak.data.readers.hub`` -> ``data.readers``; ``daybreak.cli`` -> ``cli``; ``daybreak`` -> ``daybreak``."""
    inside = module.removeprefix("daybreak.")
    is_folder = (SOURCE / module.replace(".", "/")).is_dir()
    return inside if is_folder or "." not in inside else inside.rpartition(".")[0]


@functools.cache
def arrows() -> list[tuple[str, str]]:
    """Every (importing module, imported module) between two different modules of the package."""
    pairs = [(module, target) for module in trees() for target in imports(module)]
    return [(module, target) for module, target in pairs if target.split(".")[0] == "daybreak" and target != module]


def holds_only_folders(module: str) -> bool:
    return (SOURCE / module.replace(".", "/")).is_dir() and not trees()[module].body[1:]


def test_every_module_has_a_floor() -> None:
    homeless = sorted({module for module in trees() if room(module) not in FLOOR and not holds_only_folders(module)})
    assert homeless == [], "add the room to FLOORS here and to docs/architecture.md"


def test_imports_only_fall() -> None:
    rising = [
        f"{module} -> {target}"
        for module, target in arrows()
        if target != "daybreak"  # its version
        and room(module) != room(target)
        and FLOOR[room(target)] >= FLOOR[room(module)]
    ]
    assert rising == []


def within(module: str, names: set[str]) -> bool:
    inside = module.removeprefix("daybreak.")
    return any(inside == name or inside.startswith(name + ".") for name in names)


def test_folders_with_a_list_keep_to_it() -> None:
    strange = []
    for module, target in arrows():
        allowed = MAY_IMPORT.get(module.split(".")[1]) if "." in module else None
        if allowed and target != "daybreak" and not within(target, allowed):
            strange.append(f"{module} -> {target}")
    assert strange == []
    assert all(MAY_IMPORT[wing] & WINGS == {wing} & MAY_IMPORT[wing] for wing in WINGS)


@pytest.mark.parametrize("depth", [1, 2], ids=["top folders", "all folders"])
def test_no_circle_of_folders(depth: int) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, target in arrows():
        one, other = (".".join(room(name).split(".")[:depth]) for name in (module, target))
        if one != other and "daybreak" not in (module, target):
            graph[one].add(other)
    assert circle(graph) == []


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_of_files() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module, target in arrows():
        if "daybreak" not in (module, target):  # the version, from below; the public functions, from above
            graph[module].add(target)
    assert circle(graph) == []


def test_libraries_stay_in_their_rooms() -> None:
    strange = []
    for module in trees():
        for library in {name.split(".")[0] for name in imports(module)} - {"daybreak"} - sys.stdlib_module_names:
            core_keeps_out = room(module) in {"core", "schemas"} and library not in CORE_LIBRARIES
            must_be_fast = within(module, TORCH_FREE) and library in {"torch", "transformers"}
            parses_arguments = library == "tyro" and room(module) != "commands"
            if core_keeps_out or must_be_fast or parses_arguments:
                strange.append(f"{module} -> {library}")
        if "argparse" in set(imports(module)):
            strange.append(f"{module} -> argparse")
    assert strange == []


def loaded(*arguments: str) -> set[str]:
    """Names of the packages that a fresh interpreter loads, started with ``arguments``."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 0, "\n".join(told)
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line not in told]
    assert "daybreak" in names
    return {name.split(".")[0] for name in names}


def test_the_command_line_starts_light() -> None:
    assert loaded("-c", "import daybreak.cli") & HEAVY == set()
    assert loaded("-m", "daybreak", "--help") & HEAVY == set()


def test_the_public_functions_are_imported_at_their_first_use() -> None:
    assert loaded("-c", "import daybreak") & HEAVY == set()
    assert loaded("-c", "import daybreak; daybreak.prepare, daybreak.report") & {"torch", "transformers"} == set()
    for name in daybreak.__all__:
        assert name == "__version__" or getattr(daybreak, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        daybreak.nothing_of_the_kind  # noqa: B018


def test_rooms_that_prepare_asks_load_no_extra() -> None:
    assert "torch" not in loaded("-c", "import daybreak.exporting.hub")  # where the folder of --tokenizer-from is
    extras = {"datatrove", "fasttext", "xxhash", "torch", "transformers"}
    assert loaded("-c", "import daybreak.data.filters.presets") & extras == set()


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
    named = [name for extra in extras for name in extra if not name.startswith("daybreak[")]
    wanted = project["project"]["dependencies"] + named
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    assert {normal(name) for name in wanted + project["build-system"]["requires"]} <= {normal(pin) for pin in pins}
