"""The whole way from text to report, with every network call forbidden."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from daybreak.commands import run
from daybreak.core.files import read_json
from daybreak.core.serialization import from_dict
from daybreak.core.task_pairs import baseline_sentence
from daybreak.data.demo_corpus import docstrings
from daybreak.data.demo_corpus.docstring_scan import Package
from daybreak.recipe import load_recipe
from daybreak.reporting.headline import loss_sentence
from daybreak.schemas.run import FillMask, Summary
from daybreak.schemas.tasks import TaskResult
from daybreak.training.hardware import probe

Daybreak = Callable[..., "subprocess.CompletedProcess[str]"]

NO_NETWORK = """
import socket

def forbid(name):
    inner = getattr(socket.socket, name)

    def guarded(self, address, *rest):
        if self.family != socket.AF_UNIX:
            raise AssertionError(f"the network was called: {name} {address}")
        return inner(self, address, *rest)

    setattr(socket.socket, name, guarded)

def resolve(*address, **_):
    raise AssertionError(f"a name was looked up: {address}")

for each in ("connect", "connect_ex", "sendto"):
    forbid(each)
socket.getaddrinfo = resolve
"""
"""A sitecustomize.py: it is imported by every Python process that sees its folder on PYTHONPATH."""


def without_network() -> list[str]:
    """The prefix of a command that has no network at all, also in the gate, which obeys no PYTHONPATH; or nothing."""
    unshare = shutil.which("unshare")
    if unshare and subprocess.run([unshare, "-n", "true"], capture_output=True, check=False).returncode == 0:
        return [unshare, "-n"]
    return []


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Does the sentence speak of the day or of the night? 80 rows."""
    chance = random.Random(3)
    rows = [
        f"{chance.choice(('every morning', 'at noon') if i % 2 else ('every evening', 'at midnight'))} the "
        f"{chance.choice(('teacher', 'farmer', 'doctor'))} walks near the river\t{'day' if i % 2 else 'night'}"
        for i in range(80)
    ]
    (tmp_path / "rows.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    path = tmp_path / "day.toml"
    path.write_text('name = "day"\ntrain = "rows.tsv"\ntext = "sentence"\nlabel = "label"\nheader = true\n')
    return path


def test_from_text_to_report_without_a_network(corpus: Path, shape: list[str], task: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    out = tmp_path / "out"
    command = [*without_network(), sys.executable, "-m", "daybreak", "run", "tiny"]
    command += ["--corpus", str(corpus), "--budget", "40steps", "--out", str(out)]
    command += ["--tasks", str(task), "--seeds", "1", *shape]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "CUDA_VISIBLE_DEVICES": ""}
    first = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    summary = read_json(out / "summary.json", Summary)
    assert summary.steps == 40 and summary.parity is not None and summary.parity.passed
    results = [from_dict(TaskResult, item) for item in read_json(out / "results.json")]
    assert [(result.task, result.model, len(result.seeds)) for result in results] == [
        ("day", "pretrained", 1),
        ("day", "untrained", 1),
    ]
    examples = [from_dict(FillMask, item) for item in read_json(out / "examples.json")]
    assert examples and all("[MASK]" in example.text and len(example.guesses) == 5 for example in examples)
    page = (out / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert (out / "report.html").as_uri() in first.stdout and "one masked word" in first.stdout
    sentence = baseline_sentence(results)
    assert (
        sentence in " ".join(first.stdout.split())
        and sentence in page
        and all(result.bag_of_words for result in results)
    )
    stages = [line for line in first.stdout.splitlines() if re.match(r"\d/4  ", line)]
    assert [line[:9] for line in stages] == ["1/4  Prep", "2/4  Pret", "3/4  Eval", "4/4  Repo"]
    assert "a guess" not in first.stdout
    card = (out / "model" / "README.md").read_text()
    assert "day" in card and "walks near the river" not in card

    kept = [out / "data" / "manifest.json", out / "model" / "model.safetensors", out / "results.json"]
    before = [path.stat().st_mtime_ns for path in kept]
    second = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert second.returncode == 0, second.stderr
    assert "is ready" in second.stdout and "is finished" in second.stdout
    assert [path.stat().st_mtime_ns for path in kept] == before


def test_the_guard_guards(tmp_path: Path) -> None:
    """The test above would prove nothing with a guard that lets everything through."""
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    script = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, check=False
    )
    assert done.returncode == 1 and "AssertionError: a name was looked up" in done.stderr


NOUNS = "river mountain garden winter kitchen sailor teacher window letter engine market orchard".split()


def site(folder: Path) -> list[Package]:
    """Two installed packages, as the default corpus finds them: 24 modules of prose each."""
    chance = random.Random(2)
    found = []
    for name in ("alphalib", "betalib"):
        (folder / name).mkdir(parents=True)
        for number in range(24):
            prose = "\n\n".join(
                f"The {chance.choice(NOUNS)} of this module is kept when the {chance.choice(NOUNS)} near the "
                f"{chance.choice(NOUNS)} was told about the {noun} and the number {number} of {name}."
                for noun in NOUNS
            )
            (folder / name / f"part{number:02d}.py").write_text(f'"""{prose}\n"""\n')
        found.append(Package(name, folder / name, "1.0", ()))
    return found


@pytest.mark.usefixtures("ungated")
def test_without_a_corpus_the_docstrings_are_read_and_their_task_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(docstrings, "installed_packages", lambda: site(tmp_path / "site"))
    monkeypatch.setattr(probe, "choose_device", lambda: torch.device("cpu"))
    monkeypatch.setattr("daybreak.commands.evaluate.evaluate", lambda model, tasks, **more: asked.append((tasks, more)))
    tiny = load_recipe("tiny")
    recipe = dataclasses.replace(
        tiny,
        tokenizer=dataclasses.replace(tiny.tokenizer, vocabulary=400),
        model=dataclasses.replace(tiny.model, layers=1, hidden_size=32, heads=2, intermediate_size=32),  # type: ignore[call-arg]
        length=32,
        batch=4,
        budget="20steps",
    )
    monkeypatch.setattr("daybreak.evaluation.model_source.find_tasks", lambda *_: [])  # there are no GLUE files here
    page = run.run(recipe, out=tmp_path / "out", tasks=["cola"], seeds=2)
    assert page == tmp_path / "out" / "report.html" and page.is_file()
    validation = read_json(tmp_path / "out" / "summary.json", Summary).validation
    assert loss_sentence(validation) in " ".join(capsys.readouterr().out.split())
    task = str(tmp_path / "out" / "corpus" / "task.toml")
    assert [(tasks, more["untrained"], more["seeds"]) for tasks, more in asked] == [
        ([task, "cola"], False, 2),
        ([task, "cola"], True, 2),
    ]
    first = json.loads((tmp_path / "out" / "corpus" / "docstrings.jsonl").read_text().splitlines()[0])
    assert first["package"] in ("alphalib", "betalib")


def test_a_task_file_that_is_missing_is_refused_in_words(
    finished: Path, corpus: Path, data: Path, shape: list[str], refused: Callable[..., str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.copytree(data, out / "data")
    said = refused(
        "run", "tiny", "--corpus", corpus, "--budget", "40steps", "--out", out, "--tasks", "none.toml", *shape
    )
    assert "Cannot read the task file 'none.toml'" in said


def test_another_recipe_does_not_touch_the_data_of_a_run(
    finished: Path, corpus: Path, data: Path, shape: list[str], refused: Callable[..., str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    shutil.copytree(data, out / "data")
    before = {path: path.read_bytes() for path in (out / "data").rglob("*") if path.is_file()}
    command = ["run", "tiny", "--corpus", corpus, "--budget", "40steps", "--out", out, *shape]
    assert "with other settings" in refused(*command, "--tokenizer.vocabulary", "500")
    assert "'seed' differs" in refused(*command, "--seed", "9")
    assert {path: path.read_bytes() for path in (out / "data").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--corpus", "nowhere.txt"], "There is no 'nowhere.txt'"),
        (["--tasks", "none.toml"], "Cannot read the task file 'none.toml'"),
        (["--seeds", "0"], "0 seeds are too few"),
        (["--max-grad-norm", "0"], "--max-grad-norm and --optimizer.lr must be positive"),
        (["--track", "wand"], "There is no tracker 'wand'"),
        (["--price", "-1"], "is not a price"),
    ],
)
def test_a_mistake_costs_no_run_that_was_to_be_replaced(
    wrong: list[str], said: str, finished: Path, corpus: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    corpus_of = [] if "--corpus" in wrong else ["--corpus", corpus]
    assert said in refused("run", "tiny", "--budget", "40steps", "--out", out, "--overwrite", *corpus_of, *wrong)
    assert (out / "model" / "model.safetensors").is_file() and (out / "summary.json").is_file()


def test_a_text_inside_the_run_is_not_deleted_with_it(
    finished: Path, corpus: Path, refused: Callable[..., str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    (out / "corpus").mkdir()
    own = Path(shutil.copy(corpus, out / "corpus"))
    said = refused("run", "tiny", "--budget", "40steps", "--out", out, "--overwrite", "--corpus", out / "corpus")
    assert "which --overwrite would delete" in said and own.is_file()
