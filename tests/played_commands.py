"""How a command of a page is made a matter of a second, and what each command must have left behind."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_records import PASSED
from small_world import SHAPE

from daybreak import cli
from daybreak.commands.study_data import Preparation
from daybreak.core.files import read_json
from daybreak.data.filters.languages import _Model
from daybreak.evaluation.tasks.known_tasks import spelled_out
from daybreak.evaluation.tasks.task_file import read_task_file
from daybreak.recipe import Recipe
from daybreak.schemas.run import Summary
from daybreak.schemas.studies import DATA_STUDY_FILE, STUDY_FILE, DataStudy, Study
from daybreak.schemas.tasks import TaskResult

STEPS = 20
"""The fewest that a run may have."""
SMALLER = {"length": 32, "batch": 8, "budget": f"{STEPS}steps", "precision": "float32"}


def shortened(recipe: Recipe) -> Recipe:
    """What is trained in place of ``recipe``: few steps of few rows, a small model, and all else as it was."""
    small = replace(recipe, **SMALLER, model=replace(recipe.model, **SHAPE))  # type: ignore[arg-type]
    later, ramp, devices, finish = recipe.phase2, recipe.ramp, recipe.devices, recipe.finish
    if devices.batch:
        small = replace(small, batch=0, devices=replace(devices, batch=8))
    return replace(
        small,
        microbatch=min(recipe.microbatch, 8),
        phase2=replace(later, length=min(later.length, 64), batch=min(later.batch, 4)),
        ramp=replace(ramp, batch_multiple=min(ramp.batch_multiple, 2)),
        finish=replace(finish, length=min(finish.length, 32), longest=min(finish.longest, 30)),
    )


def two_of(preparation: Preparation) -> Preparation:
    """The first of its preprocessings and the last."""
    return replace(preparation, preprocessings=(preparation.preprocessings[0], preparation.preprocessings[-1]))


class Here:
    """In the place of a process: what a study would start is done in this one."""

    def __init__(self, command: list[str], **_: object):
        assert command[1:3] == ["-m", "daybreak"] and command[3] in ("pretrain", "evaluate")
        cli.dispatch(command[3:])
        self.returncode = 0

    def poll(self) -> int:
        return self.returncode


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is done to commands. They are parsed as they stand on the page; the commands get less to do.

    Models are small, runs have 20 steps, tasks and studies one seed, and two preprocessings those of texts; one core is
    used and no accelerator. The parity check passes, because its process takes seconds; the best checkpoint is kept at
    every end. The stand-in for the language model, which is not shipped, calls all text Finnish.
    """

    def change(verb: str, how: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        module = importlib.import_module(f"daybreak.commands.{verb}")
        whole = getattr(module, verb)

        @functools.wraps(whole)
        def less(*given: Any, **named: Any) -> Any:
            given, named = how(given, named)
            return whole(*given, **named)

        monkeypatch.setattr(module, verb, less)

    change("pretrain", lambda given, named: ((shortened(given[0]), *given[1:]), named))
    for verb in ("evaluate", "study"):
        change(verb, lambda given, named: (given, {**named, "seeds": 1}))
    change(
        "study_data", lambda given, named: (given, {**named, "seeds": 1, "preparation": two_of(named["preparation"])})
    )
    monkeypatch.setattr(
        "daybreak.studies.cell_runner.subprocess", SimpleNamespace(Popen=Here, STDOUT=subprocess.STDOUT)
    )
    monkeypatch.setattr("daybreak.pretraining.planning.PROBE_SECONDS", 0.0)
    monkeypatch.setattr("daybreak.pretraining.run_end.check_parity", lambda *_, **__: PASSED)
    monkeypatch.setattr("daybreak.exporting.parity.check_parity", lambda *_, **__: PASSED)
    monkeypatch.setattr("daybreak.pretraining.run_end.CLEARLY", -100.0)
    monkeypatch.setattr("daybreak.training.hardware.probe.choose_device", lambda: torch.device("cpu"))
    labels = ["__label__fi", "__label__sv"]
    scores = SimpleNamespace(labels=labels, predict=lambda text, k: (labels, [0.9, 0.1]))
    monkeypatch.setattr("daybreak.data.filters.languages._loaded", lambda path, changed: _Model(scores))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


# ---------------------------------------------------------------- before and after a command


def value_of(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1] if flag in words else ""


def make_room(words: list[str]) -> None:
    """What a command makes is not there yet: pages show ways to make a thing one after the other, under one name."""
    if words[0] in ("prepare", "pretrain", "run", "export", "study", "study-data"):
        for place in (value_of(words, "--out"), f"runs/{words[1]}", "runs/chosen"):
            if place:
                shutil.rmtree(place, ignore_errors=True)


def run_folder(words: list[str]) -> Path:
    """Of what was trained last."""
    found = Path(value_of(words, "--out") or max(Path("runs").iterdir(), key=lambda run: run.stat().st_mtime_ns))
    summary: Summary = read_json(found / "summary.json", Summary)
    assert summary.steps == STEPS and (found / "model" / "config.json").is_file()
    return found


def check_left(words: list[str], said: str) -> None:
    """The command has left and said what its page promises."""
    out = Path(value_of(words, "--out"))
    match words[0]:
        case "prepare":
            assert all((out / name).is_file() for name in ("manifest.json", "corpus.json", "tokenizer/tokenizer.json"))
        case "pretrain":
            assert run_folder(words)
        case "run":
            page = run_folder(words) / "report.html"
            assert page.is_file() and str(page) in said
        case "export":
            assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in out.iterdir()}
        case "evaluate":
            check_results(words, said)
        case "probe":
            assert (Path(words[1]) / "probes.json").is_file()
        case "predict":
            assert Path(value_of(words, "--out")).is_file() and "Predictions of " in said
        case "search":
            table = value_of(words, "--export")
            assert Path(table).is_file() if table else "holds " in said or " document " in said
        case "verify":
            assert "are equal bit for bit" in said
        case "record":
            studies = [file for file in (STUDY_FILE, DATA_STUDY_FILE) if (Path(words[1]) / file).is_file()]
            assert list(Path("records").glob(f"*/{(studies or ['record.json'])[0]}"))
        case "study":
            found: Study = read_json(out / STUDY_FILE, Study)
            assert found.finished and (out / "report.html").is_file()
            tasks = spelled_out(value_of(words, "--tasks").split(",")) if "--tasks" in words else []
            assert all([one.task for one in cell.tasks] == tasks for cell in found.cells)
        case "study-data":
            assert read_json(out / DATA_STUDY_FILE, DataStudy).finished and (out / "report.html").is_file()
        case "report":
            page = Path(value_of(words, "--out") or f"{words[1]}/report.{value_of(words, '--format') or 'html'}")
            assert page.is_file() and str(page) in said
        case "plan" | "status" | "recipes" | "check-submission" as verb:
            promised = {"plan": "Chosen: ", "status": "state ", "check-submission": "is a valid submission"}
            recipe = Path(words[1]).stem.replace("_", "-") if words[1:] else "daybreak-tiny"
            assert promised.get(verb, recipe) in said
        case "init-task":
            (task,) = Path(words[1]).parent.glob(f"{Path(words[1]).stem}*.toml")
            assert task.name in said and task.read_text().count("label") == 1
        case "doctor":
            assert "Python" in said
        case verb:
            raise AssertionError(f"nobody says what {verb} leaves")


def check_results(words: list[str], said: str) -> None:
    out = Path(value_of(words, "--out") or words[1])
    results: list[TaskResult] = read_json(out / "results.json", list[TaskResult])
    asked = spelled_out(value_of(words, "--tasks").split(","))
    names = {read_task_file(Path(name)).name if name.endswith(".toml") else name for name in asked}
    model = "untrained" if "--untrained" in words else "pretrained"
    assert names <= {result.task for result in results if result.model == model}
    assert all(f"{name} ({model}): " in said for name in names)
    if "--submission" in words:
        assert (Path(value_of(words, "--submission")) / "submission.zip").is_file()


def shape_of(recipe: Recipe) -> dict[str, Any]:
    """What of SHAPE a model has."""
    return {field.name: getattr(recipe.model, field.name) for field in fields(recipe.model) if field.name in SHAPE}
