"""The default corpus: English prose from the docstrings of the installed Python packages.

`daybreak run` without a corpus trains on it and needs no download. A document is the prose of one module. The same
installed packages give the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder, read_json, write_json, write_text
from daybreak.core.serialization import fingerprint
from daybreak.data.demo_corpus.docstring_scan import Module, Package, installed_packages, scan, text_hash
from daybreak.data.demo_corpus.package_task import CLASSES, held_out, write_task

FORMAT = 1
"""Version of the written files. Increase it if the code writes different files, so that older ones are replaced."""

MAXIMUM_CHARACTERS = 15_000_000
MAXIMUM_FRACTION = 0.35
"""Maximum fraction of MAXIMUM_CHARACTERS for one package."""


@dataclass(frozen=True)
class DocstringCorpus:
    """The files of :func:`write_corpus`."""

    corpus: Path
    """docstrings.jsonl: one {"text", "source", "package", "module"} per line."""
    task: Path
    """task.toml: which package a sentence comes from. The modules of its dev file are not in ``corpus``."""
    packages: list[str]
    documents: int
    characters: int


@dataclass(frozen=True)
class _Stamp:
    fingerprint: str
    packages: dict[str, int]
    """Characters in the corpus, by package."""
    documents: int
    characters: int
    files: dict[str, int]
    """Sizes in bytes; if a file has another size, all files are written again."""


def write_corpus(out: Path, packages: Sequence[Package] | None = None) -> DocstringCorpus:
    """Write docstrings.jsonl, task.toml, task-train.jsonl, task-dev.jsonl and the stamp corpus.json into ``out``.

    Returns without writing if the stamp shows that the same packages were scanned before.

    Args:
        out: folder, created if missing.
        packages: packages to scan; by default the installed packages of DISTRIBUTIONS and the standard library.

    Raises:
        UserError: ``out`` cannot be written, or no docstring was found.
    """
    packages = installed_packages() if packages is None else packages
    make_folder(out)
    key = fingerprint([FORMAT, [[p.name, p.version, list(p.aliases)] for p in packages]])
    stamp = _finished(out, key)
    if stamp is None:
        (out / "corpus.json").unlink(missing_ok=True)
        stamp = _write(out, key, packages)
    corpus, task = out / "docstrings.jsonl", out / "task.toml"
    return DocstringCorpus(corpus, task, list(stamp.packages), stamp.documents, stamp.characters)


def _finished(out: Path, key: str) -> _Stamp | None:
    try:
        stamp: _Stamp = read_json(out / "corpus.json", _Stamp)
        sizes = {name: (out / name).stat().st_size for name in stamp.files}
    except (UserError, OSError):
        return None
    return stamp if stamp.fingerprint == key and sizes == stamp.files else None


def _write(out: Path, key: str, packages: Sequence[Package]) -> _Stamp:
    modules = scan(packages)
    if not modules:
        raise UserError("No English docstrings were found in the installed packages.", "Name a text with --corpus.")
    sizes = Counter[str]()
    for module in modules:
        sizes[module.package] += module.characters
    classes = [name for name, _ in sizes.most_common(CLASSES)]
    dev = [module for module in modules if module.package in classes and held_out(module.name)]
    dev_names = {module.name for module in dev}
    corpus = _within_limits([module for module in modules if module.name not in dev_names])

    write_text(out / "docstrings.jsonl", "".join(map(_line, corpus)))
    names = {package.name: (package.name, *package.aliases) for package in packages if package.name in classes}
    write_task(out, names, _texts(names, corpus), _texts(names, dev), (p for m in corpus for p in m.paragraphs))
    files = ("docstrings.jsonl", "task.toml", "task-train.jsonl", "task-dev.jsonl")
    fractions = Counter[str]()
    for module in corpus:
        fractions[module.package] += module.characters
    stamp = _Stamp(
        key,
        dict(fractions.most_common()),
        len(corpus),
        fractions.total(),
        {name: (out / name).stat().st_size for name in files},
    )
    write_json(out / "corpus.json", stamp)
    return stamp


def _within_limits(modules: list[Module]) -> list[Module]:
    """Select modules in the order of their hashes, within the limits of the corpus and of each package."""
    sizes = Counter[str]()
    kept = set()
    for module in sorted(modules, key=lambda module: text_hash(module.name)):
        size = module.characters
        fits = sizes[module.package] + size <= MAXIMUM_FRACTION * MAXIMUM_CHARACTERS
        if fits and sizes.total() + size <= MAXIMUM_CHARACTERS:
            sizes[module.package] += size
            kept.add(module.name)
    return [module for module in modules if module.name in kept]


def _line(module: Module) -> str:
    record = {
        "text": "\n\n".join(module.paragraphs),
        "source": module.source,
        "package": module.package,
        "module": module.name,
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def _texts(names: Iterable[str], modules: list[Module]) -> dict[str, list[tuple[str, ...]]]:
    return {name: [module.paragraphs for module in modules if module.package == name] for name in names}
