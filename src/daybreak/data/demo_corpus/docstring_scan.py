"""Find installed Python packages and extract the prose of their docstrings.

Sources are parsed with `ast` and never imported, so no code of a scanned package runs.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from daybreak.core.process import usable_cores
from daybreak.core.terminal import working
from daybreak.data.demo_corpus.prose import is_english, prose
from daybreak.data.pipeline.workers import over_parts, released

DISTRIBUTIONS = {
    "torch": ("torch", "pytorch", "libtorch"),
    "transformers": ("transformers",),
    "scikit-learn": ("sklearn", "scikit learn", "scikits"),
    "scipy": ("scipy",),
    "numpy": ("numpy", "np"),
    "pandas": ("pandas", "pd"),
    "sympy": ("sympy",),
    "networkx": ("networkx", "nx"),
    "plotly": ("plotly", "px"),
    "huggingface-hub": ("huggingface_hub", "hugging face", "huggingface"),
    "mpmath": ("mpmath",),
    "datasets": ("datasets",),
    "accelerate": ("accelerate",),
    "pyarrow": ("pyarrow",),
    "joblib": ("joblib",),
    "tokenizers": ("tokenizers",),
    "safetensors": ("safetensors",),
    "fsspec": ("fsspec",),
    "narwhals": ("narwhals",),
    "rich": ("rich",),
    "tyro": ("tyro",),
    "typer": ("typer",),
    "click": ("click",),
    "pydantic": ("pydantic",),
    "pygments": ("pygments",),
    "jinja2": ("jinja2",),
    "setuptools": ("setuptools",),
}
"""Distribution -> import name and other spellings. Distributions that are not installed are skipped."""

STANDARD_LIBRARY = "python"
SKIPPED_FOLDERS = frozenset(
    """test tests idlelib lib2to3 turtledemo ensurepip encodings site-packages dist-packages __pycache__ _vendor vendor
    externals _externals extern benchmarks""".split()
)
MINIMUM_CHARACTERS = 200
"""Minimum prose of a module to become a document."""
MINIMUM_QUOTED = 0.10
"""Minimum fraction of bytes between triple quotes; parsing files with less is not worth the time."""
MAXIMUM_SOURCE = 14_000_000
"""Bytes of source parsed per package; larger packages are sampled by the hash of the module name."""
FILES_PER_CHUNK = 50
CHUNKS_PER_PROCESS = 5
"""Minimum number of chunks per process; for fewer, starting a process takes longer than reading them."""


@dataclass(frozen=True)
class Package:
    """The location of a package's sources. ``name`` labels its documents; ``aliases`` are its other spellings."""

    name: str
    root: Path
    version: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """The prose of one module, as paragraphs."""

    package: str
    name: str
    source: str
    paragraphs: tuple[str, ...]

    @property
    def characters(self) -> int:
        return sum(map(len, self.paragraphs))


@dataclass(frozen=True)
class _File:
    package: str
    module: str
    source: str
    path: str


def installed_packages() -> list[Package]:
    """Find the packages of DISTRIBUTIONS that are installed, and the standard library. Imports none of them."""
    found = []
    for distribution, (import_name, *aliases) in DISTRIBUTIONS.items():
        try:
            version = importlib.metadata.version(distribution)
            spec = importlib.util.find_spec(import_name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
        if spec is not None and spec.submodule_search_locations:
            root = Path(next(iter(spec.submodule_search_locations)))
            found.append(Package(import_name, root, version, (distribution, *aliases)))
    library = Path(sysconfig.get_path("stdlib"))
    return [*found, Package(STANDARD_LIBRARY, library, platform.python_version(), ("cpython",))]


def scan(packages: Sequence[Package]) -> list[Module]:
    """Return the prose of every module, sorted by package and module; repeated paragraphs are removed."""
    files = [file for package in packages for file in _chosen_files(package)]
    # Hash order spreads packages over the chunks, so that processes end together and progress is even.
    files.sort(key=lambda file: text_hash(file.module))
    chunks = [files[start : start + FILES_PER_CHUNK] for start in range(0, len(files), FILES_PER_CHUNK)]
    modules: list[Module] = []
    with working("Reading docstrings") as work:
        for done, chunk in enumerate(_read_chunks(chunks), 1):
            modules += chunk
            work.show(done / len(chunks), f"{len(modules)} modules")
    return _without_repetition(sorted(modules, key=lambda module: (module.package, module.name)))


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions, and of calls such as ``add_docstr``."""
    stack: list[ast.stmt | ast.Module] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text
        if isinstance(node, (ast.Module, ast.ClassDef, ast.If, ast.Try)):
            stack += reversed(node.body)
        elif isinstance(node, (ast.Expr, ast.Assign)) and isinstance(node.value, ast.Call):
            yield from _attached_texts(node.value)


def _attached_texts(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if "add_docstr" in name or "add_newdoc" in name:
        for node in ast.walk(call):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
                yield node.value


def _chosen_files(package: Package) -> Iterator[_File]:
    """Yield the files with enough text between triple quotes, up to MAXIMUM_SOURCE bytes."""
    left = MAXIMUM_SOURCE
    for file in sorted(_source_files(package), key=lambda file: text_hash(file.module)):
        try:
            source = Path(file.path).read_bytes()
        except OSError:
            continue
        quoted = sum(map(len, source.split(b'"""')[1::2])) + sum(map(len, source.split(b"'''")[1::2]))
        if quoted >= max(MINIMUM_CHARACTERS, MINIMUM_QUOTED * len(source)):
            left -= len(source)
            if left < 0:
                return
            yield file


def _source_files(package: Package) -> Iterator[_File]:
    head = () if package.name == STANDARD_LIBRARY else (package.name,)
    for folder, folders, names in os.walk(package.root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith(".")]
        parts = Path(folder).relative_to(package.root).parts
        for name in names:
            if name.endswith(".py") and not name.startswith(("test_", "conftest")):
                stem = () if name == "__init__.py" else (name[:-3],)
                source = "/".join((package.name, *parts, name))
                yield _File(package.name, ".".join((*head, *parts, *stem)), source, os.path.join(folder, name))


def _read_chunks(chunks: list[list[_File]]) -> Iterator[list[Module]]:
    processes = min(usable_cores(), len(chunks) // CHUNKS_PER_PROCESS)
    if processes < 2:
        yield from map(_read_files, chunks)
        return
    with released():
        yield from over_parts(partial(_read_chunk, chunks), range(len(chunks)), processes)


def _read_chunk(chunks: list[list[_File]], number: int) -> list[Module]:
    return _read_files(chunks[number])


def _read_files(files: list[_File]) -> list[Module]:
    """Parse files and keep those with enough English prose."""
    modules = []
    gc.disable()  # a syntax tree has many small objects and no cycles; collection takes a third of the time
    try:
        for file in files:
            paragraphs = tuple(_file_prose(file.path))
            if sum(map(len, paragraphs)) >= MINIMUM_CHARACTERS and is_english(" ".join(paragraphs)):
                modules.append(Module(file.package, file.module, file.source, paragraphs))
    finally:
        gc.enable()
    return modules


def _file_prose(path: str) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in the scanned source
            tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for text in docstrings(tree):
        yield from prose(text)


def _without_repetition(modules: list[Module]) -> list[Module]:
    seen: set[str] = set()
    kept = []
    for module in modules:
        paragraphs = []
        for paragraph in module.paragraphs:
            if paragraph not in seen:
                seen.add(paragraph)
                paragraphs.append(paragraph)
        if sum(map(len, paragraphs)) >= MINIMUM_CHARACTERS:
            kept.append(replace(module, paragraphs=tuple(paragraphs)))
    return kept


def text_hash(text: str) -> bytes:
    """Return 8 bytes for a pseudorandom order of names that is the same on every machine."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
