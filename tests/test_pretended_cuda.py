"""The GPU path without a GPU: tensors that say cuda, devices that may not mix, and every wait counted.

Each test is a process of its own, for what pretends must be there before torch is.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from needs import takes_long

SCRIPTS = Path(__file__).parent / "pretended"
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA of its own"),
]


def pretended(script: str, *arguments: object) -> str:
    sources = str(Path(importlib.util.find_spec("daybreak").submodule_search_locations[0]).parent)  # type: ignore[union-attr, index]
    environment = {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script), *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    sys.stderr.write(done.stderr)  # pytest shows it when a test fails
    return done.stdout


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads(pretended("steps.py"))


def test_every_trunk_objective_and_optimizer_computes_what_the_processor_does(found: dict[str, Any]) -> None:
    steps = found["steps"]
    # Each objective with Muon, each other optimizer with one objective; pairs need BERT's head.
    assert len(steps) == (3 * 4 + 1) + 3 * 3
    assert {name: one for name, one in steps.items() if one["loss"] > 1e-5 or one["weight"] > 1e-5} == {}


def test_a_step_waits_once_for_the_device(found: dict[str, Any]) -> None:
    """For loss and norm, which decide whether it updates the weights; copies to the device are not waited for."""
    waits = {name: [sum(step.values()) for step in one["waits"]] for name, one in found["steps"].items()}
    once = [name for name in waits if "causal then masked" in name or "fixed" in name]
    assert {name: waits[name] for name in once if waits[name] != [1, 1, 1]} == {}
    # How many are chosen, and how many of each row, depends on the text: one message more.
    assert {name: waits[name] for name in waits if "bernoulli" in name and waits[name] != [2, 2, 2]} == {}
    # What a pair weighs depends on all targets of the step, which are counted first.
    assert {name: waits[name] for name in waits if "pairs" in name and waits[name] != [3, 3, 3]} == {}
    # Whole words are fitted in rounds, each of which asks whether it was the last.
    assert all(max(counts) <= 6 for name, counts in waits.items() if "whole words" in name)


def test_a_fine_tuning_waits_once_a_step(found: dict[str, Any]) -> None:
    """transformers asks whether a batch has padding. The loss of 64 steps is shown twice, and the epoch's read once."""
    tuned = found["fine_tuning"]
    assert tuned["cuda"] == pytest.approx(tuned["cpu"], rel=1e-2)  # the GPU computes in bfloat16
    assert sorted(tuned["waits"].values()) == [1, 2, 64]


def test_a_table_on_the_wrong_device_is_found_at_its_line(found: dict[str, Any]) -> None:
    lines = (SCRIPTS.parents[1] / "src/daybreak/models/layers.py").read_text().splitlines()
    number = int(found["planted"].rpartition("layers.py:")[2].rstrip(")"))
    assert "on the same device" in found["planted"] and "first * cosine" in lines[number - 1]


@takes_long
def test_a_run_is_halved_stopped_resumed_verified_and_evaluated(data: Path, tmp_path: Path) -> None:
    rows = [{"text": f"tale {'old' if row % 2 else 'new'} {row}", "label": "ab"[row % 2]} for row in range(60)]
    (tmp_path / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.toml").write_text('train = "task.jsonl"\ntext = "text"\nlabel = "label"\n')
    said = pretended("runs.py", data, tmp_path / "task.toml", tmp_path / "run", tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text()) == {
        "stopped": 143, "resumed": 0, "verified": 0, "evaluated": 0,
    }, said  # fmt: skip
    assert "Out of memory at step 5: continuing with a microbatch of 4 sequences" in said
    assert "Resuming at step 1" in said
    decisions = json.loads((tmp_path / "run" / "decisions.json").read_text())
    assert decisions["device"] == "cuda" and list(decisions["step_seconds"]) == ["bfloat16"]
    assert [change["microbatch"] for change in decisions["changes"]] == [4]
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["device"] == "Pretended GPU"


@takes_long
def test_the_blocks_of_the_flagship_are_few_whole_graphs() -> None:
    """First, middle and last block in each of two stages; with local layers one kind more. None at other mask rates.

    The finish asks for all positions of padded sequences, so only its first block differs from the others. It has
    graphs without gradients and graphs with them. The loss has one graph more, whatever the mask rate.
    """
    assert json.loads(pretended("captured.py")) == {
        "global": [3, 6, 6, 6, 6] + [8, 10, 10, 10] + [11, 11],
        "local": [4, 8, 8, 8, 8] + [10, 12, 12, 12] + [13, 13],
    }
