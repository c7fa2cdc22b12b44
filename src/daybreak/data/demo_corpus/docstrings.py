"""The default corpus: English prose from the docstrings of the installed Python packages.

`daybreak run` without a corpus trains on it and needs no download. A document is the prose of one module. The same
installed packages give the same bytes. Sources are parsed with `ast` and never imported, so no code of a scanned
package runs.

With the corpus comes a task: which package does a sentence come from? The names of the packages are masked in the text,
whole modules are held out for the dev file, and the classes are balanced, so that the constant answer scores 1 / number
of packages.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_json, write_text
from daybreak.core.process import usable_cores
from daybreak.core.serialization import fingerprint
from daybreak.core.terminal import working
from daybreak.data.demo_corpus.prose import prose
from daybreak.data.pipeline.workers import map_parts, workers_ended
from daybreak.data.readers.sentences import split_sentences

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

CLASSES = 8
DEV_MODULES = 6
"""One module in this many is held out: its sentences are dev rows, and its text is not in the corpus."""
TRAIN_ROWS, DEV_ROWS = 4000, 1600
SENTENCE_CHARACTERS = range(40, 251)
SHORT_NAME = 3
"""Names up to this length (np, pd) are masked as whole words, longer ones also inside words."""

Texts = Mapping[str, Iterable[Sequence[str]]]
"""Package -> its modules, each as a sequence of paragraphs."""


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
    with working("Reading docstrings") as work, workers_ended():
        task = functools.partial(_read_chunk, chunks)
        for done, chunk in enumerate(map_parts(task, range(len(chunks)), processes), 1):
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


def text_hash(text: str) -> bytes:
    """Return 8 bytes for a pseudorandom order of names that is the same on every machine."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def held_out(module: str) -> bool:
    """Return whether a module belongs to the dev file; a fixed function of its name."""
    return int.from_bytes(text_hash(f"dev {module}"), "big") % DEV_MODULES == 0


def write_task(out: Path, names: Iterable[str], train: Texts, dev: Texts, corpus: Iterable[str]) -> None:
    """Write task.toml, task-train.jsonl and task-dev.jsonl into ``out``.

    Args:
        names: all spellings of the packages' names, which are masked in every row.
        train: label -> modules whose text may be in the corpus.
        dev: label -> held-out modules.
        corpus: all paragraphs of the corpus; dev sentences that also occur there are left out.
    """
    mask = Mask(names)
    known = {mask(sentence) for paragraph in corpus for sentence in split_sentences(paragraph) if _is_row(sentence)}
    train_rows = _rows(train, mask, set(), TRAIN_ROWS)
    # Masking can make two sentences equal, so the masked texts are compared as well.
    dev_rows = _rows(dev, mask, known | {text for text, _ in train_rows}, DEV_ROWS)
    for name, rows in (("task-train.jsonl", train_rows), ("task-dev.jsonl", dev_rows)):
        lines = [json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in rows]
        write_text(out / name, "".join(lines))
    write_text(out / "task.toml", TASK)


TASK = """\
# Which package does this sentence come from? Names are masked, and the dev modules are not in the corpus.
name = "packages"
kind = "classification"
format = "jsonl"
train = "task-train.jsonl"
dev = "task-dev.jsonl"
text = "text"
label = "label"
metric = "accuracy"
"""


class Mask:
    """Replaces names, words that contain them and dotted paths that start with them by ``package``."""

    def __init__(self, names: Iterable[str]):
        spellings = sorted({name.lower() for name in names}, key=lambda name: (-len(name), name))
        long = [re.split("[-_ ]+", name) for name in spellings if len(name) > SHORT_NAME]
        short = [re.escape(name) for name in spellings if len(name) <= SHORT_NAME]
        self._beginnings = [parts[0] for parts in long]
        words = "|".join("[-_ ]?".join(map(re.escape, parts)) for parts in long)
        self._long = re.compile(rf"(?<![\w./@-])[\w./@-]*(?:{words})[\w/-]*(?:\.\w+)*(?:\(\))?", re.IGNORECASE)
        words = "|".join(short) or "(?!)"
        self._short = re.compile(rf"(?<![\w.])(?:{words})(?:(?:\.\w+)+(?:\(\))?|(?!\w))", re.IGNORECASE)

    def __call__(self, text: str) -> str:
        masked, lower = text, text.lower()
        if any(beginning in lower for beginning in self._beginnings):  # faster than the pattern
            masked = self._long.sub("package", masked)
        masked = self._short.sub("package", masked)
        return text if masked == text else re.sub(r"\bpackage(?:[ /,-]+package\b)+", "package", masked)


def _rows(texts: Texts, mask: Mask, excluded: set[str], count: int) -> list[tuple[str, str]]:
    """Draw at most ``count`` rows, equally many of each label, by the hash of the text; add them to ``excluded``."""
    candidates: dict[str, str] = {}
    for label, modules in texts.items():
        for sentence in (s for paragraphs in modules for paragraph in paragraphs for s in split_sentences(paragraph)):
            # A sentence that occurs in two packages has no label.
            candidates[sentence] = label if candidates.get(sentence, label) == label else ""
    fraction = count // max(1, len(texts))
    by_label: dict[str, list[str]] = {label: [] for label in texts}
    for sentence in sorted((s for s in candidates if _is_row(s) and s not in excluded), key=text_hash):
        rows = by_label.get(candidates[sentence])
        if rows is not None and len(rows) < fraction:
            masked = mask(sentence)
            if _is_row(masked) and masked not in excluded:
                excluded.add(masked)
                rows.append(masked)
    fraction = min(map(len, by_label.values()), default=0)
    drawn = [(text, label) for label, rows in by_label.items() for text in rows[:fraction]]
    return sorted(drawn, key=lambda row: text_hash(row[0]))


def _is_row(text: str) -> bool:
    return len(text) in SENTENCE_CHARACTERS and text[0].isupper() and text[-1] == "." and "\\" not in text
