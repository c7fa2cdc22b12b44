"""The notebooks of examples/ run from their first cell to their last, and do what they promise."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from needs import needs, takes_long
from rendezvous import wait_for
from warm_python import SERVERS

from daybreak.cli import COMMANDS
from daybreak.core.files import read_json
from daybreak.schemas.run import Summary
from daybreak.schemas.tasks import TaskResult

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "pretrain_your_own.ipynb"
BOOK: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
SMALL = """
from dataclasses import replace

import huggingface_hub
from daybreak import recipe
from daybreak.data.demo_corpus import docstrings

huggingface_hub.constants.HF_HUB_OFFLINE = True
docstrings.MAXIMUM_SOURCE = 500_000
whole = recipe.load_recipe


def small(name):
    found = whole(name)
    model = replace(found.model, layers=1, hidden_size=32, heads=2, intermediate_size=32)
    return replace(found, model=model, length=32, batch=8, tokenizer=replace(found.tokenizer, vocabulary=1000))


recipe.load_recipe = small
"""
"""Before the cells: a small model on some modules of each library, without a network."""
PLAYER = """
import json, sys

names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
if "figure" in names:
    assert len(names["figure"].data) == 3
    assert names["figure"].data[2].y == tuple(one["loss"] for one in names["held_out"])
"""
"""Runs the code cells in one namespace. As in a kernel, no file is the main module."""


def cells(kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in BOOK["cells"] if cell["cell_type"] == kind]


def test_it_is_a_dozen_cells_of_code_each_explained_and_without_output() -> None:
    assert len(cells("code")) == 12
    kinds = [cell["cell_type"] for cell in BOOK["cells"]]
    assert all(before == "markdown" for before, kind in pairwise(kinds) if kind == "code")
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in BOOK["cells"] if "outputs" in cell)
    assert len({cell["id"] for cell in BOOK["cells"]}) == len(kinds)
    absolute = re.findall(r"""["'](/\w+/)""", "".join(cells("code")))
    assert absolute == [], "no path of one machine"


@pytest.mark.parametrize("name", ["pretrain_your_own.ipynb", "hosted_gpu.ipynb"])
def test_what_its_text_links_to_and_types_exists(name: str) -> None:
    for cell in json.loads(NOTEBOOK.with_name(name).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            assert all((NOTEBOOK.parent / target).exists() for target in re.findall(r"\]\((?!http)([^)#]+)", text))
            assert all(verb in COMMANDS for verb in re.findall(r"`daybreak ([a-z-]+)", text))


@needs("nbformat: make test-all", "nbformat")
def test_it_is_valid_needs_nbformat() -> None:
    import nbformat

    nbformat.validate(nbformat.from_dict(BOOK))


@takes_long
def test_it_runs_from_the_first_cell_to_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = SERVERS["daybreak"].run(["-c", SMALL + PLAYER, NOTEBOOK], {"PRETRAIN_YOUR_OWN": "40steps 1 64"})
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    summary = read_json(folder / "run" / "summary.json", Summary)
    assert summary.steps == 40 and summary.parity is not None and summary.parity.passed
    results = read_json(folder / "run" / "results.json", list[TaskResult])
    assert [(one.task, one.model, one.train_rows) for one in results] == [
        ("libraries", "pretrained", 64), ("libraries", "untrained", 64),
    ]  # fmt: skip
    assert {"numpy", "scipy", "sklearn"} == set(results[0].labels)
    said = done.stdout
    first = ("tokens a word", "40 steps, ", "of masked tokens right", "bag of words     accuracy 0.")
    for words in (*first, "constant answer 0.333"):
        assert words in said, said
    assert re.search(r"tensor\(\[\[ ?1\.0000", said), said
    assert (folder / "report.html").resolve().as_uri() in said and "Returns the [MASK] of the array." in said


@takes_long
def test_a_session_of_a_hosted_gpu_that_ends_is_continued_by_the_same_cells(tmp_path: Path) -> None:
    text = tmp_path / "my text.jsonl"
    words = ("river", "stone", "bridge", "garden", "winter", "music")
    documents = [" ".join(words[(row * place) % 6] for place in range(1, 60)) + f" {row}." for row in range(300)]
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    folder = tmp_path / "kept"
    settings = shlex.join(["tiny", "40steps", str(folder), str(text), "none"])
    environment = {
        **os.environ, "HOSTED_GPU": settings, "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    environment.pop("XDG_CACHE_HOME", None)
    command = [sys.executable, "-c", PLAYER, str(NOTEBOOK.with_name("hosted_gpu.ipynb"))]

    trace, saved = folder / "tiny" / "trace.jsonl", tmp_path / "said.txt"
    with saved.open("wb") as said:
        session = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            wait_for(lambda: trace.exists() and trace.stat().st_size, session, 300, log=saved)
        finally:
            os.killpg(session.pid, signal.SIGKILL)
            session.wait()
    assert not (folder / "tiny" / "summary.json").exists(), "the session ended after its run"

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = read_json(folder / "tiny" / "summary.json", Summary)
    assert summary.steps == 40 and summary.parity is not None and summary.parity.passed
    assert "Resuming at step" in done.stdout and (folder / "tiny" / "report.html").exists()
