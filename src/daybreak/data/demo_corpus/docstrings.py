"""The default corpus: English prose from the docstrings of the installed Python packages.

`daybreak run` without a corpus trains on it and needs no download. A document is the prose of one module. The same
installed packages give the same bytes. Sources are parsed with `ast` and never imported, so no code of a scanned
package runs.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_json, write_text
from daybreak.core.process import usable_cores
from daybreak.core.serialization import fingerprint
from daybreak.core.terminal import working
from daybreak.data.demo_corpus.package_task import CLASSES, held_out, text_hash, write_task
from daybreak.data.demo_corpus.prose import prose
from daybreak.data.pipeline.workers import over_parts, released

FORMAT = 1
"""Version of the written files. Increase it if older files must be replaced."""
CORPUS = "docstrings.jsonl"
FILES = (CORPUS, "task.toml", "task-train.jsonl", "task-dev.jsonl")

DISTRIBUTIONS = """torch transformers scikit-learn scipy numpy pandas sympy networkx plotly huggingface-hub mpmath
    datasets accelerate pyarrow joblib tokenizers safetensors fsspec narwhals rich tyro typer click pydantic pygments
    jinja2 setuptools""".split()
"""Those that are not installed are skipped."""
IMPORT_NAMES = {"scikit-learn": "sklearn", "huggingface-hub": "huggingface_hub"}
"""Where they differ from the distribution."""
SPELLINGS = {
    "torch": ("pytorch", "libtorch"),
    "scikit-learn": ("scikit learn", "scikits"),
    "numpy": ("np",),
    "pandas": ("pd",),
    "networkx": ("nx",),
    "plotly": ("px",),
    "huggingface-hub": ("hugging face", "huggingface"),
}
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


class Package(NamedTuple):
    """The location of a package's sources. ``name`` labels its documents; ``aliases`` are its other spellings."""

    name: str
    root: Path
    version: str
    aliases: tuple[str, ...] = ()


class Module(NamedTuple):
    package: str
    name: str
    path: str
    paragraphs: tuple[str, ...] = ()
    """Its prose."""

    @property
    def characters(self) -> int:
        return sum(map(len, self.paragraphs))


@dataclass(frozen=True)
class DocstringCorpus:
    """What :func:`write_corpus` wrote; stored as corpus.json, after all other files."""

    fingerprint: str
    packages: dict[str, int]
    """Characters in the corpus, by package."""
    documents: int
    characters: int
    files: dict[str, int]
    """Sizes in bytes; if a file has another size, all files are written again."""


def write_corpus(
    out: Path, packages: Sequence[Package] | None = None, *, keep_other_versions: bool = False
) -> DocstringCorpus:
    """Write FILES and corpus.json into the folder ``out``, unless it has them for the same packages.

    docstrings.jsonl has one {"text", "package", "module"} per line. task.toml asks which package a sentence comes from;
    the modules of its dev file are not in the corpus.

    Args:
        packages: packages to scan; by default the installed packages of DISTRIBUTIONS and the standard library.
        keep_other_versions: keep the files also if the packages have changed since: something is made from them.

    Raises:
        UserError: ``out`` cannot be written, or no docstring was found.
    """
    packages = installed_packages() if packages is None else packages
    make_folder(out)
    key = fingerprint([FORMAT, [[p.name, p.version, list(p.aliases)] for p in packages]])
    try:
        found: DocstringCorpus = read_json(out / "corpus.json", DocstringCorpus)
        if (keep_other_versions or found.fingerprint == key) and found.files == _sizes(out):
            return found
    except (UserError, OSError):
        pass
    (out / "corpus.json").unlink(missing_ok=True)
    modules = scan(packages)
    if not modules:
        raise UserError("No English docstrings were found in the installed packages.", "Name a text with --corpus.")
    classes = [name for name, _ in _characters(modules).most_common(CLASSES)]
    dev: list[Module] = []
    corpus: list[Module] = []
    for module in modules:
        (dev if module.package in classes and held_out(module.name) else corpus).append(module)
    write_text(out / CORPUS, "".join(map(_line, corpus)))
    train_texts, dev_texts = (
        {name: [module.paragraphs for module in part if module.package == name] for name in classes}
        for part in (corpus, dev)
    )
    spellings = [spelling for p in packages if p.name in classes for spelling in (p.name, *p.aliases)]
    write_task(out, spellings, train_texts, dev_texts, (text for module in corpus for text in module.paragraphs))
    sizes = _characters(corpus)
    found = DocstringCorpus(key, dict(sizes.most_common()), len(corpus), sizes.total(), _sizes(out))
    write_json(out / "corpus.json", found)
    return found


def _sizes(out: Path) -> dict[str, int]:
    return {name: (out / name).stat().st_size for name in FILES}


def _characters(modules: list[Module]) -> Counter[str]:
    sizes = Counter[str]()
    for module in modules:
        sizes[module.package] += module.characters
    return sizes


def _line(module: Module) -> str:
    record = {"text": "\n\n".join(module.paragraphs), "package": module.package, "module": module.name}
    return json.dumps(record, ensure_ascii=False) + "\n"


def installed_packages() -> list[Package]:
    """Find the packages of DISTRIBUTIONS that are installed, and the standard library. Imports none of them."""
    found = []
    for distribution in DISTRIBUTIONS:
        name = IMPORT_NAMES.get(distribution, distribution)
        try:
            version = importlib.metadata.version(distribution)
            spec = importlib.util.find_spec(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            continue
        if spec is not None and spec.submodule_search_locations:
            root = Path(next(iter(spec.submodule_search_locations)))
            found.append(Package(name, root, version, (distribution, *SPELLINGS.get(distribution, ()))))
    library = Path(sysconfig.get_path("stdlib"))
    return [*found, Package(STANDARD_LIBRARY, library, platform.python_version(), ("cpython",))]


def scan(packages: Sequence[Package]) -> list[Module]:
    """Return the prose of every module, sorted by package and module; repeated paragraphs are removed."""
    files = [file for package in packages for file in _source_files(package)]
    # Hash order spreads packages over the chunks, so that processes end together and progress is even.
    files.sort(key=lambda file: text_hash(file.name))
    chunks = [files[start : start + FILES_PER_CHUNK] for start in range(0, len(files), FILES_PER_CHUNK)]
    processes = min(usable_cores(), len(chunks) // CHUNKS_PER_PROCESS)
    found: list[Module] = []
    with working("Reading docstrings") as work, released():
        task = functools.partial(_read_chunk, chunks)
        for done, chunk in enumerate(over_parts(task, range(len(chunks)), processes), 1):
            found += chunk
            work.show(done / len(chunks), f"{len(found):,} modules")
    seen: set[str] = set()
    kept: list[Module] = []
    for module in sorted(found):
        paragraphs = tuple(dict.fromkeys(paragraph for paragraph in module.paragraphs if paragraph not in seen))
        seen.update(paragraphs)
        kept.append(module._replace(paragraphs=paragraphs))
    return [module for module in kept if module.characters >= MINIMUM_CHARACTERS]


def _source_files(package: Package) -> Iterator[Module]:
    """Yield the modules with enough text between triple quotes, not yet read, up to MAXIMUM_SOURCE bytes."""
    head = () if package.name == STANDARD_LIBRARY else (package.name,)
    found = []
    for folder, folders, names in os.walk(package.root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith(".")]
        parts = Path(folder).relative_to(package.root).parts
        for name in names:
            if name.endswith(".py") and not name.startswith(("test_", "conftest")):
                stem = () if name == "__init__.py" else (name[:-3],)
                found.append(Module(package.name, ".".join((*head, *parts, *stem)), os.path.join(folder, name)))
    left = MAXIMUM_SOURCE
    for module in sorted(found, key=lambda module: text_hash(module.name)):
        try:
            source = Path(module.path).read_bytes()
        except OSError:
            continue
        quoted = sum(map(len, source.split(b'"""')[1::2])) + sum(map(len, source.split(b"'''")[1::2]))
        if quoted >= max(MINIMUM_CHARACTERS, MINIMUM_QUOTED * len(source)):
            left -= len(source)
            if left < 0:
                return
            yield module


def _read_chunk(chunks: list[list[Module]], number: int) -> list[Module]:
    """Return the modules of a chunk with enough prose."""
    gc.disable()  # a syntax tree has many small objects and no cycles; collection takes a third of the time
    try:
        found = [module._replace(paragraphs=_read(module.path)) for module in chunks[number]]
    finally:
        gc.enable()
    return [module for module in found if module.characters >= MINIMUM_CHARACTERS]


def _read(path: str) -> tuple[str, ...]:
    """Return the prose of a source file; none if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in the scanned source
            tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(paragraph for text in docstrings(tree) for paragraph in prose(text))


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions, and of calls such as ``add_docstr``."""
    stack: list[ast.stmt | ast.Module] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from filter(None, [ast.get_docstring(node, clean=False)])
        if isinstance(node, (ast.Module, ast.ClassDef, ast.If, ast.Try)):
            stack += reversed(node.body)
        elif isinstance(node, (ast.Expr, ast.Assign)) and isinstance(call := node.value, ast.Call):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if "add_docstr" in name or "add_newdoc" in name:
                for part in ast.walk(call):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str) and "\n" in part.value:
                        yield part.value
