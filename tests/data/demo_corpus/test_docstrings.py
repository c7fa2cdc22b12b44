import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from daybreak.core.errors import UserError
from daybreak.data.demo_corpus import docstrings as module
from daybreak.data.demo_corpus.docstrings import (
    CORPUS,
    FILES,
    Mask,
    Package,
    docstrings,
    held_out,
    installed_packages,
    scan,
    write_corpus,
)
from daybreak.data.readers.sentences import split_sentences

NOUNS = "river mountain garden winter kitchen sailor teacher window letter engine market orchard".split()
LICENCE = "This paragraph is copied into every module of every package, as licences are."


def _module(package: str, number: int) -> str:
    lines = [
        f"The {noun} of module {chr(97 + number)} in group {len(package)} is what {package} keeps when the"
        f" {NOUNS[(index * 5 + number) % len(NOUNS)]} was told about {package.title()} and `{package}.{noun}.open`."
        for index, noun in enumerate(NOUNS)
    ]
    body = "\n\n".join([f"Handle the things of module number {number}.", LICENCE, *lines])
    return f'"""{body}\n"""\nraise SystemExit("a scanned module was imported")\n'


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Package]:
    """Three packages of 24 modules each; importing any of them would end the test."""
    found = []
    for name in ("alphalib", "betalib", "gammadelta"):
        root = tmp_path_factory.mktemp("site") / name
        root.mkdir()
        for number in range(24):
            (root / f"part{number:02d}.py").write_text(_module(name, number))
        (root / "tests").mkdir()
        (root / "tests" / "check.py").write_text(_module(name, 25))
        (root / "broken.py").write_text('"""' + "The text of a module that is broken. " * 20 + '"""\ndef (:\n')
        (root / "tiny.py").write_text('"""The prose of this module is too short."""\n')
        found.append(Package(name, root, "1.0", (f"py{name}",)))
    return found


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_script_may_scan_at_its_top_level_with_several_processes(packages: list[Package], tmp_path: Path) -> None:
    """Processes that import the script again, as those of multiprocessing do, would start others without end."""
    script = tmp_path / "own.py"
    script.write_text(
        "from pathlib import Path\n"
        "from daybreak.data.demo_corpus import docstrings\n"
        "print('begun', flush=True)\n"
        "docstrings.FILES_PER_CHUNK, docstrings.CHUNKS_PER_PROCESS = 10, 2\n"
        "docstrings.usable_cores = lambda: 2\n"
        f"package = docstrings.Package('alphalib', Path({str(packages[0].root)!r}), '1.0')\n"
        "print(repr(docstrings.scan([package])))\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0 and said == f"begun\n{scan(packages[:1])!r}\n"


def test_a_document_is_the_prose_of_a_module(packages: list[Package], tmp_path: Path) -> None:
    found = write_corpus(tmp_path / "out", packages)
    documents = _lines(tmp_path / "out" / CORPUS)
    assert found.documents == len(documents) and sorted(found.packages) == [p.name for p in packages]
    assert found.characters == sum(len(d["text"].replace("\n\n", "")) for d in documents)
    for document in documents:
        assert document["module"].startswith(f"{document['package']}.part") and len(document["text"]) >= 200
    assert sum(LICENCE in document["text"] for document in documents) <= 1
    # A second scan writes equal bytes.
    write_corpus(tmp_path / "again", packages)
    for name in (*FILES, "corpus.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    # Dev modules and their sentences stay out of the corpus.
    assert not any(held_out(document["module"]) for document in documents)
    _check_task(tmp_path / "out", [name for p in packages for name in (p.name, *p.aliases)])
    rows = _lines(tmp_path / "out" / "task-dev.jsonl")
    assert rows and {row["label"] for row in rows} == {p.name for p in packages}


def _check_task(out: Path, names: list[str]) -> None:
    mask = Mask(names)
    paragraphs = (p for document in _lines(out / "docstrings.jsonl") for p in document["text"].split("\n\n"))
    corpus = {mask(sentence) for paragraph in paragraphs for sentence in split_sentences(paragraph)}
    train, dev = _lines(out / "task-train.jsonl"), _lines(out / "task-dev.jsonl")
    dev_texts = {row["text"] for row in dev}
    assert not dev_texts & {row["text"] for row in train}
    assert not dev_texts & corpus
    for row in train + dev:
        assert not any(name in row["text"].lower() for name in names if len(name) > 3)
        assert 40 <= len(row["text"]) <= 250
    for rows in (train, dev):
        assert len(set(Counter(row["label"] for row in rows).values())) == 1


def test_the_stamp_saves_a_second_scan(
    packages: list[Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def counted(found: list[Package]) -> list[module.Module]:
        calls.append(found)
        return scan(found)

    monkeypatch.setattr(module, "scan", counted)
    first = write_corpus(tmp_path / "out", packages)
    assert write_corpus(tmp_path / "out", packages) == first and len(calls) == 1
    (tmp_path / "out" / "task-dev.jsonl").write_text("torn")
    assert write_corpus(tmp_path / "out", packages) == first and len(calls) == 2
    write_corpus(tmp_path / "out", [package._replace(version="2.0") for package in packages])
    assert len(calls) == 3


def test_no_docstrings_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--corpus"):
        write_corpus(tmp_path / "out", [Package("empty", tmp_path, "1")])


def test_docstrings_of_nested_classes_and_attached_texts() -> None:
    source = '"""module"""\nclass A:\n  "class"\n  def f(self):\n    "method"\n'
    source += 'add_docstr(x, r"""\nattached""")\nprint("""\nno""")\n'
    assert list(docstrings(ast.parse(source))) == ["module", "class", "method", "\nattached"]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("PyTorch and torch.nn.Linear(x) agree.", "package and package(x) agree."),
        ("See np.mean then scikit-learn or Scikit Learn.", "See package then package or package."),
        ("The input and the rich snp are kept.", "The input and the rich snp are kept."),
        ("Call is_torch_available() first.", "Call package first."),
    ],
)
def test_names_are_masked(text: str, masked: str) -> None:
    assert Mask(["torch", "pytorch", "np", "scikit-learn"])(text) == masked


def test_installed_packages_are_found_and_real_ones_scanned_without_import(tmp_path: Path) -> None:
    packages = {package.name: package for package in installed_packages()}
    assert {"torch", "numpy", "python"} <= set(packages) and packages["numpy"].version
    assert packages["sklearn"].aliases == ("scikit-learn", "scikit learn", "scikits")
    names = ["joblib", "rich"]
    before = set(sys.modules)
    found = write_corpus(tmp_path, [packages[name] for name in names])
    assert "joblib" not in {module.split(".")[0] for module in set(sys.modules) - before}
    assert found.characters > 50_000
    _check_task(tmp_path, names[:1])
