"""Nothing that a user can set is silently ignored: each field of a configuration, each flag and each parameter is read.

The configurations are ``Recipe``, what the commands take, and every dataclass that these are made of, with all kinds of
each plug point. A field counts as read where code outside its class, or a method of its class that does more than
check values, takes an attribute of that name. Code that goes over all fields, to store or to print them, takes none.
Names are compared, not types: a field that shares its name with something that is read goes unnoticed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from daybreak.commands import COMMANDS, main_of

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "daybreak"
CHECKS = {"__post_init__", "check"}
Sources = Mapping[str, str]


SOURCES = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
"""Every file of the package by its path within."""
COMMAND_FILES = sorted({f"{main_of(verb)[0].removeprefix('daybreak.').replace('.', '/')}.py" for verb in COMMANDS})


def names(node: ast.AST | None) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)} if node else set()


def parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def public_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def fields(node: ast.ClassDef) -> dict[str, ast.expr]:
    """Name -> type of the fields that the class adds."""
    found = [line for line in node.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
    return {ast.unparse(line.target): line.annotation for line in found if "ClassVar" not in names(line.annotation)}


def dataclasses_of(tree: ast.Module) -> dict[str, ast.ClassDef]:
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: node for node in classes if any("dataclass" in names(mark) for mark in node.decorator_list)}


def bases(node: ast.ClassDef) -> set[str]:
    return set().union(*map(names, node.bases))


def reads(node: ast.AST, *, of_self: bool) -> set[str]:
    """Attributes that are read of ``self``, or of anything else."""
    return {
        found.attr
        for found in ast.walk(node)
        if isinstance(found, ast.Attribute)
        and isinstance(found.ctx, ast.Load)
        and (isinstance(found.value, ast.Name) and found.value.id == "self") is of_self
    }


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def read_outside(tree: ast.Module) -> set[str]:
    """Attributes that are read of anything but ``self``, and the fields in a table ``ENTRIES``, for ``getattr``."""
    tables = [
        node.value for node in tree.body if isinstance(node, ast.Assign) and names(node.targets[0]) == {"ENTRIES"}
    ]
    keys = {key.value for table in tables for key in table.keys}  # type: ignore[attr-defined]
    return reads(tree, of_self=False) | keys


# ---------------------------------------------------------------- fields


def configurations(trees: Mapping[str, ast.Module], classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """``Recipe`` and what the commands take, and all that these are made of."""
    taken = [
        one for file in COMMAND_FILES for function in public_functions(trees[file]) for one in parameters(function)
    ]
    found: set[str] = set()
    new = {"Recipe"}.union(*(names(one.annotation) for one in taken)) & classes.keys()
    while new:
        found |= new
        inner = {name for one in new for annotation in fields(classes[one]).values() for name in names(annotation)}
        above = {name for one in new for name in bases(classes[one])}
        below = {name for name, node in classes.items() if bases(node) & found}
        new = (inner | above | below) & classes.keys() - found
    return found


def family(name: str, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """The class with all above it."""
    return {name}.union(*(family(base, classes) for base in bases(classes[name]) & classes.keys()))


def unread_fields(sources: Sources) -> tuple[list[str], set[str]]:
    """``Class.field`` of those that nothing reads, and all configurations."""
    trees = {file: parsed(text) for file, text in sources.items()}
    given = [tree for file, tree in trees.items() if not file.startswith("schemas/")]  # those are records, for readers
    classes = {name: node for tree in given for name, node in dataclasses_of(tree).items()}
    found = configurations(trees, classes)
    outside = set().union(*map(read_outside, trees.values()))
    families = {name: family(name, classes) for name in found}
    unread = []
    for name in sorted(found):
        relatives = {other for other in found if name in families[other]} | families[name]
        methods = [node for other in relatives for node in classes[other].body if isinstance(node, ast.FunctionDef)]
        own = set().union(*(reads(method, of_self=True) for method in methods if method.name not in CHECKS))
        unread += [f"{name}.{field}" for field in fields(classes[name]) if field not in outside | own]
    return unread, found


def test_every_field_is_read() -> None:
    unread, found = unread_fields(SOURCES)
    assert unread == []
    expected = "Watching Preparation Preprocessing Variant Texts SecondPhase AdamW Muon ModernEncoder"
    assert found >= {*expected.split()} and "Summary" not in found


FIELD = "\n    planted: int = 0\n"
CHECKED = FIELD + "\n    def __post_init__(self) -> None:\n        assert self.planted >= 0\n"
STORED = FIELD + "\n    def stored(self) -> object:\n        return [getattr(self, one.name) for one in fields(self)]\n"
USED = FIELD + "\n    def build_planted(self) -> int:\n        return self.planted\n"


@pytest.mark.parametrize(
    ("planted", "file", "name"),
    [
        (FIELD, "recipe.py", "Recipe"),
        (FIELD, "commands/pretrain.py", "Watching"),
        (CHECKED, "data/sequences/sampler.py", "PackedRows"),
        (STORED, "training/optim/optimizers.py", "AdamW"),
        (USED, "training/optim/optimizers.py", "AdamW"),
    ],
    ids=lambda value: "" if "\n" in value else value,
)
def test_a_planted_field_is_found_unless_it_is_used(planted: str, file: str, name: str) -> None:
    (node,) = [one for one in ast.parse(SOURCES[file]).body if isinstance(one, ast.ClassDef) and one.name == name]
    lines = SOURCES[file].splitlines(keepends=True)
    changed = "".join([*lines[: node.end_lineno], planted, *lines[node.end_lineno :]])
    assert unread_fields({**SOURCES, file: changed})[0] == ([] if planted == USED else [f"{name}.planted"])


# ---------------------------------------------------------------- flags


def unread_flags(source: str) -> list[str]:
    """``Class.option`` of the options that a command's file declares and that nothing reads.

    An option is read as ``options.name``, by its name in a string, also in the file that commands share, or with all
    others (``keywords(...)``).
    """
    tree = ast.parse(source)
    functions = [node for node in ast.parse(SOURCES["commands/options.py"]).body if isinstance(node, ast.FunctionDef)]
    functions += [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "keywords"]
    # keywords(options, Group) reads the group; keywords(parse(Class, ...)) reads the class with all above it.
    passed_on = {name for call in calls for part in call.args for name in names(part)}
    classes = dataclasses_of(tree)
    whole = {name for call in calls if len(call.args) == 1 for name in names(call) & classes.keys()}
    passed_on |= whole.union(*(bases(classes[name]) for name in whole))
    read = {
        found.attr
        for found in ast.walk(tree)
        if isinstance(found, ast.Attribute) and ast.unparse(found.value).endswith("options")
    }
    read |= set().union(*(strings(node) for node in functions))
    return [
        f"{name}.{field}"
        for name, node in classes.items()
        if name.endswith("Options") and name not in passed_on
        for field, annotation in fields(node).items()
        if field not in read and not {typed(given) for given in {field, *strings(annotation)}} & read
    ]


def typed(name: str) -> str:
    """The option as it is typed."""
    return f"--{name.replace('_', '-')}"


def strings(node: ast.AST) -> set[str]:
    """The string constants in it."""
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def test_every_flag_is_read() -> None:
    assert [flag for file in COMMAND_FILES for flag in unread_flags(SOURCES[file])] == []


@pytest.mark.parametrize("verb", ["Pretrain", "Status"])
def test_a_planted_flag_is_found(verb: str) -> None:
    source = SOURCES[f"commands/{verb.lower()}.py"]
    (head,) = [line for line in source.splitlines() if line.startswith(f"class {verb}Options")]
    changed = source.replace(head, f"{head}\n    planted: int = 0\n")
    assert unread_flags(changed) == [f"{verb}Options.planted"]


# ---------------------------------------------------------------- parameters


def unread_parameters(sources: Sources) -> list[str]:
    """``file: function(parameter)`` of those that a public function of a command's file takes and never reads."""
    return [
        f"{file}: {function.name}({one.arg})"
        for file in COMMAND_FILES
        for function in public_functions(parsed(sources[file]))
        for one in parameters(function)
        if one.arg not in {name for line in function.body for name in names(line)}
    ]


def test_every_parameter_of_a_command_is_read() -> None:
    assert unread_parameters(SOURCES) == []


def test_a_planted_parameter_is_found() -> None:
    changed = SOURCES["commands/export.py"].replace(
        "    onnx: bool = False,\n", "    onnx: bool = False,\n    planted: int = 0,\n", 1
    )
    assert unread_parameters({**SOURCES, "commands/export.py": changed}) == ["commands/export.py: export(planted)"]
