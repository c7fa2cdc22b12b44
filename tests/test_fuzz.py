"""Damaged files are read, or refused in one sentence: the quick properties of benchmarks/fuzz.py, in this process.

The script itself tries all commands for as long as it is given, each try in a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import beside, script
from fake_runs import fake_results
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.core.files import write_json

__all__ = ["beside"]  # a fixture


@pytest.fixture(scope="session")
def world(data: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The world of benchmarks/fuzz.py from the run and the data that the session has already; its own takes minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
        fuzz = script("fuzz")
        folder = tmp_path_factory.mktemp("fuzz") / "world"
        folder.mkdir()
        fuzz.write_texts(folder / "texts")
        fuzz.write_tasks(folder / "tasks")
    shutil.copytree(data, folder / "data")
    shutil.copytree(finished, folder / "run")
    shutil.copytree(finished / "model", folder / "model")
    stopped = shutil.copytree(finished, folder / "stopped", ignore=shutil.ignore_patterns("summary.json", "model"))
    (stopped / "before-end").rename(stopped / "checkpoints")
    fuzz.write_forecasts(folder / "run")
    write_json(folder / "run" / "results.json", fake_results(random.Random(0), 0.0))
    return folder


def run_damaged(world: Path, place: Path, reader: Any, file: str, damage: Callable[[Path], None]) -> str:
    """Damage one file in a copy of the world; return what is wrong with the end of its reader, with the output."""
    fuzz, output = script("fuzz"), io.StringIO()
    fuzz.copy_world(reader, world, place)
    damage(place / file)
    with contextlib.chdir(place), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = fuzz.run_reader(reader)
    why = fuzz.complaint(code, output.getvalue())
    return f"{why}\n{output.getvalue()}" if why else ""


@settings(max_examples=80)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 2**48))
def test_a_damaged_file_is_read_or_refused_in_one_sentence(
    world: Path, tmp_path_factory: pytest.TempPathFactory, which: int, file: int, seed: int
) -> None:
    fuzz = script("fuzz")
    reader = fuzz.QUICK[which % len(fuzz.QUICK)]
    files = fuzz.files_of(reader, world)
    name = files[file % len(files)]
    place = tmp_path_factory.getbasetemp() / "damaged"
    wrong = run_damaged(world, place, reader, name, lambda path: fuzz.damage(path, random.Random(seed)))
    assert not wrong, f"{reader.name}, {name}, seed {seed}: {wrong}"


def test_the_readers_read_what_is_not_damaged(world: Path, tmp_path: Path) -> None:
    """Otherwise a refusal would say nothing."""
    fuzz = script("fuzz")
    for reader in fuzz.QUICK:
        assert fuzz.files_of(reader, world), reader.name
        fuzz.copy_world(reader, world, tmp_path / "copy")
        with contextlib.chdir(tmp_path / "copy"), contextlib.redirect_stdout(io.StringIO()):
            assert fuzz.run_reader(reader) == 0, reader.name


def test_a_bad_end_is_recognized() -> None:
    complaint = script("fuzz").complaint
    assert complaint(0, "done") == "" and complaint(2, "daybreak: It is empty. Give another.\n") == ""
    trace = 'Traceback (most recent call last):\n  File "/x/src/daybreak/core/files.py", line 3, in read\nKeyError: 1\n'
    assert complaint(1, trace) == "KeyError: read in core/files.py"
    assert complaint(-11, "") == "exit code -11: no frame"
    assert complaint(2, "nothing to see") == "exit code 2 without a message"
    assert complaint(2, "daybreak: It is") == "a message without a full stop"


@pytest.mark.parametrize("damage", ["damage_json", "damage_lines", "damage_bytes", "damage_digits", "damage_tensors"])
def test_damage_depends_on_the_seed_alone_and_changes_the_content(damage: str, world: Path) -> None:
    fuzz = script("fuzz")
    suffix = {"damage_json": "recipe.json", "damage_tensors": "model/model.safetensors"}.get(damage, "metrics.jsonl")
    content = (world / "run" / suffix).read_bytes()
    made = [getattr(fuzz, damage)(content, random.Random(seed)) for seed in range(30)]
    assert made == [getattr(fuzz, damage)(content, random.Random(seed)) for seed in range(30)]
    assert sum(one != content for one in made) > 20


def test_a_failure_can_be_repeated_from_what_is_kept(world: Path, tmp_path: Path) -> None:
    fuzz = script("fuzz")
    file = "run/recipe.json"
    broken = fuzz.Reader("broken", (file,), lambda: json.loads(Path(file).read_text()), ("run",))
    one = next(fuzz.tries([broken], world, "", 0))
    assert one == next(fuzz.tries([broken], world, "recipe", 0)) and one.file == "run/recipe.json"
    wrong = run_damaged(world, tmp_path / "copy", broken, one.file, lambda path: path.write_text("{"))
    fuzz.save_finding(tmp_path, one, tmp_path / "copy", "why", wrong)
    (kept,) = (tmp_path / "findings").iterdir()
    assert (kept / "recipe.json").read_text() == "{" and "JSONDecodeError" in (kept / "output.txt").read_text()
    assert json.loads((kept / "try.json").read_text())["seed"] == one.seed


@pytest.mark.parametrize("how", ["folder", "loop", "dangling"])
@pytest.mark.parametrize("name", ["trace.jsonl", "metrics.jsonl", "recipe.json", "summary.json", "results.json"])
def test_something_else_in_the_place_of_a_file_of_a_run_is_no_traceback(
    how: str, name: str, world: Path, tmp_path: Path
) -> None:
    fuzz = script("fuzz")

    def damage(path: Path) -> None:
        path.unlink(missing_ok=True)
        if how == "folder":
            path.mkdir()
        else:
            path.symlink_to(path.name if how == "loop" else "nowhere")

    assert not run_damaged(world, tmp_path / "copy", fuzz.QUICK[0], f"run/{name}", damage)


def test_tensors_of_another_shape_than_the_config_are_one_sentence(world: Path, tmp_path: Path) -> None:
    from daybreak.models.importing import load_pretrained

    folder = shutil.copytree(world / "model", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for name, value in (("intermediate_size", 2**40), ("vocab_size", 2**40), ("num_hidden_layers", 10**12)):
        (folder / "config.json").write_text(json.dumps({**config, name: value, "layer_types": None}))
        with pytest.raises(UserError, match="config"):
            load_pretrained(folder)
