"""One call for a rented GPU: stages in order, recorded as they end, cut cleanly, gone on with; and a bare machine."""

from __future__ import annotations

import argparse
import builtins
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import FOLDER, beside, script
from needs import takes_long

from daybreak.core.errors import UserError
from daybreak.recipe import load_recipe

__all__ = ["beside"]  # a fixture


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return ``call(minutes, **stages)``: perform these stages; what they did, exit status and record come back."""
    gpu = script("gpu")

    def perform(minutes: float = 10.0, **stages: Any) -> tuple[int, dict[str, Any]]:
        out = tmp_path / "gpu.json"
        found = {"stages": json.loads(out.read_text())["stages"] if out.exists() else {}}
        chosen = argparse.Namespace(dry_run=True, out=out, task_dir=None)
        monkeypatch.setattr(gpu, "STAGES", stages)
        made = gpu.Call(chosen, tmp_path, found, time.monotonic() + 60 * minutes)
        return gpu.perform(made, list(stages)), json.loads(out.read_text())["stages"]

    return perform


def test_a_stage_that_fails_is_recorded_and_the_next_one_begins(call: Any) -> None:
    def fails(_: Any) -> None:
        raise ValueError("no kernel")

    status, found = call(parity=fails, speed=lambda one: one.tell("speed", cells=[1]))
    assert status == 1 and found["parity"]["state"] == "failed" and "no kernel" in found["parity"]["error"]
    assert found["speed"]["state"] == "done" and found["speed"]["cells"] == [1]
    # The second call does what is missing, and that alone.
    status, found = call(parity=lambda _: None, speed=fails)
    assert status == 0 and [found[name]["state"] for name in ("parity", "speed")] == ["done", "done"]


def test_what_was_measured_before_the_time_was_over_is_kept(call: Any, tmp_path: Path) -> None:
    gpu, begun = script("gpu"), time.monotonic()

    def long(one: Any) -> None:
        one.tell("speed", cells=[1])
        one.run(["sh", "-c", "trap 'kill $!; echo saved; exit' TERM; sleep 60 & wait"])

    status, found = call((gpu.GRACE + 2) / 60, speed=long, kills=lambda _: pytest.fail("no time for it"))
    assert status == 0 and found == {"speed": {"cells": [1], "state": "out of time"}}
    assert (tmp_path / "log.txt").read_text().endswith("saved\n") and time.monotonic() - begun < 30


def test_a_second_call_repeats_only_the_recipes_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Any
) -> None:
    """Nor does it compare the device again, which takes a minute."""
    gpu, asked = script("gpu"), []
    monkeypatch.setattr(gpu, "data_of", lambda _: tmp_path)
    monkeypatch.setitem(sys.modules, "device_parity", argparse.Namespace(render=lambda _: ""))

    def measured(_: Any, script: str, *arguments: str, label: str = "") -> dict[str, Any]:
        asked.append(label or script)
        if label == "step-bert-2018" and asked.count(label) == 1:
            raise SystemExit("no sentences")
        return {name: True for name in ("device", "float32_products", "passed", "findings", "step_seconds")}

    monkeypatch.setattr(gpu, "measured", measured)
    stage = gpu.parity
    status, found = call(parity=stage)
    assert (
        status == 1
        and "no step of bert-2018" in found["parity"]["error"]
        and "step_seconds" in found["parity"]["recipes"]["tiny"]
    )
    status, found = call(parity=stage)
    assert status == 0 and asked == ["device_parity.py", "step-tiny", "step-bert-2018", "step-bert-2018"]
    assert found["parity"]["state"] == "done" and "error" not in found["parity"]["recipes"]["bert-2018"]


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Environment of a rented machine: neither Daybreak nor the packages of its command line can be imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "for name in ('tyro', 'docstring_parser', 'typeguard', 'zstandard', 'plotly', 'bm25s'):\n"
        "    sys.modules[name] = None\n"
        "asked = os.environ['PYTHONPATH'].split(os.pathsep)\n"
        "foreign = [path for path in sys.path if path not in asked and os.path.isdir(os.path.join(path, 'daybreak'))]\n"
        "sys.path[:] = [path for path in sys.path if path not in foreign]\n"
    )
    return {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}


@takes_long
def test_the_shortest_form_of_the_call(bare: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "gpu.py"), "--dry-run", "--work", str(tmp_path / "work")]
    done = subprocess.run([*command, "--only", "flagship,glue5"], env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "work" / "gpu.json").read_text())["stages"]
    assert found["flagship"]["state"] == found["glue5"]["state"] == "done"
    assert found["flagship"]["summary"]["steps"] == 30 and found["flagship"]["summary"]["parity"]["passed"]
    assert {result["model"] for result in found["glue5"]["results"]} == {"pretrained", "untrained"}


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    blank = [sys.executable, "-S", "-E", str(FOLDER / "gpu.py"), "--dry-run", "--work", str(tmp_path / "work")]
    done = subprocess.run(blank, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert f"{sys.executable} has no torch. Name a Python that has it: make gpu TORCH_PYTHON=" in done.stderr


def test_a_variant_of_the_speed_stages_needs_no_installed_daybreak(bare: dict[str, str], tmp_path: Path) -> None:
    cell = {"recipe": "tiny", "vocabulary": 200, "length": 32, "rows": 4, "data": None, "device": "cpu"}
    cell |= {"precision": "float32", "workers": 0, "threads": 1, "toy": True}
    sources = [str(FOLDER.parent / "src"), str(FOLDER)]
    code = f"""
import sys; sys.path[:0] = {sources}
from pathlib import Path; from variant import Variant
one = Variant("products, masked", {cell}, Path({str(tmp_path / "log.txt")!r}))
print(one.block(0.1)); one.close()
"""
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True)
    assert "'flops'" in done.stdout, done.stdout + done.stderr + (tmp_path / "log.txt").read_text()


def test_a_speed_that_was_not_measured_is_not_done() -> None:
    cells: list[Any] = [
        {"variants": {"daybreak, causal": {"failed": "ended with 1"}, "transformers BERT": {"failed": "x"}}}
    ]
    assert script("gpu").failures(cells) == ["daybreak, causal"]
    cells[0]["variants"]["daybreak, causal"] = {"tokens_per_second": 1.0}
    assert script("gpu").failures(cells) == []


def test_a_speed_stage_goes_on_where_it_was_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    throughput = script("throughput")
    asked: list[int] = []

    class Ready:
        def __init__(self, name: str, settings: dict[str, Any], log: Path) -> None:
            self.length = settings["length"]

        def block(self, seconds: float, limit: float) -> dict[str, Any]:
            asked.append(self.length)
            return {"failed": "no kernel"} if limit < 50 else {"tokens": 1, "seconds": 1.0, "flops": 1.0}

        def close(self) -> None: ...

    monkeypatch.setattr(throughput, "Variant", Ready)
    chosen = argparse.Namespace(data=None, **dict.fromkeys(throughput.DEFAULTS["cpu"]))
    throughput.shorten(chosen)
    chosen.lengths, chosen.vocabularies = "16,32", "512"
    device, told = throughput.torch.device("cpu"), []

    def sweep(seconds: float, before: list[Any]) -> list[Any]:
        until = time.monotonic() + seconds
        found: list[Any] = throughput.sweep(chosen, device, until, tmp_path / "log", told.append, before)
        return found

    first = sweep(3600.0, [])
    assert [cell["complete"] for cell in first] == [True, True] and set(asked) == {16, 32}
    cut = [first[0], {**first[1], "complete": False}]
    asked.clear()
    assert sweep(3600.0, cut)[0] == first[0] and set(asked) == {32}
    asked.clear()
    assert sweep(-1.0, cut) == cut and sweep(-1.0, []) == [] and not asked


def test_a_variant_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    cell = {"recipe": "tiny", "vocabulary": 200, "length": 32, "rows": 4, "data": None, "device": "cpu"}
    cell |= {"precision": "float32", "workers": 0, "threads": 1, "toy": True}
    one = script("variant").Variant("products, masked", cell, tmp_path / "log.txt")
    assert one.block(3600.0, 0.1) == {"failed": "ended with -9"}
    one.close()


def test_a_missing_package_is_named_before_the_first_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = script("gpu")
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if name == "sklearn" else name)
    with pytest.raises(SystemExit, match="lacks scikit-learn"):
        gpu.refuse_absent()


def test_the_image_copies_what_exists_and_installs_pinned_versions() -> None:
    root = FOLDER.parent
    lines = (root / "Dockerfile").read_text().splitlines()
    copied = [words[1:-1] for words in map(str.split, lines) if words[:1] == ["COPY"]]
    assert copied and all((root / name).exists() for names in copied for name in names)
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 2 and all("-c constraints.txt" in line for line in installs)
    assert "\ntorch==" in (root / "constraints.txt").read_text()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r"'\.\[(.+)\]'", installs[1])
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert (
        'ENTRYPOINT ["daybreak"]' in lines and 'daybreak = "daybreak.cli:main"' in (root / "pyproject.toml").read_text()
    )


def test_fields_of_a_recipe_are_named_as_on_the_command_line() -> None:
    bare = script("bare")
    recipe = load_recipe("tiny")
    for name, text in bare.fields_of("--model.layers 1 --objective.mask-rates 0.4,0.2 --budget 9s".split()):
        recipe = bare.with_field(recipe, name, text)
    assert (recipe.model.layers, recipe.objective.mask_rates, recipe.budget) == (1, (0.4, 0.2), "9s")
    assert bare.with_field(recipe, "gradient_checkpointing", "true").gradient_checkpointing
    for flags in (["--model.layers"], ["layers", "1"]):
        with pytest.raises(UserError):
            bare.fields_of(flags)
    with pytest.raises(UserError, match="no field 'layer'"):
        bare.with_field(recipe, "model.layer", "1")


def test_a_packed_file_without_its_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from daybreak.data.readers.unpacking import unpack

    load = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name == "zstandard":
            raise ImportError
        return load(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match="needs the package zstandard"):
        unpack(io.BytesIO(b""), ".zst")  # type: ignore[arg-type]
