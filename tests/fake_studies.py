"""Cells of a study that were never trained, and two texts for a study of data."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_texts import small_text

from daybreak.core.run_folder import RunFolder
from daybreak.recipe import load_recipe
from daybreak.schemas.studies import CurvePoint, MachineLoad, StudyCell, TaskScore
from daybreak.studies import experiment as experiment
from daybreak.studies.cell_runner import Cell, StudyFolder

QUIET = MachineLoad(before=[0.1, 0.1, 0.1], most=2.0, mean=1.5, after=[2.0, 1.0, 0.5], seconds=60.0, others=0.05)


def cell(
    variant: str, seed: int, loss: float, *, void: str = "", curve: list[CurvePoint] | None = None,
    scores: dict[str, float] | None = None,
) -> StudyCell:  # fmt: skip
    """A finished cell, fine-tuned on the tasks of ``scores``."""
    tasks = [
        TaskScore(task=task, metric="accuracy", score=score, spread=0.01, seeds=3, baseline=0.5)
        for task, score in (scores or {}).items()
    ]
    return StudyCell(
        variant=variant, seed=seed, folder=f"cells/{variant}-seed-{seed}", recipe="0" * 16, loss=loss,
        accuracy=0.1, unigram_loss=6.0, positions=100, steps=50, tokens=1000, epochs=0.5, tokens_per_second=100.0,
        elapsed=60.0, resumes=0, threads=1, precision="float32", curve=curve or [], loads=[QUIET], void=void,
        tasks=tasks,
    )  # fmt: skip


def pair(differences: list[float], *, a: list[float] | None = None, **more: Any) -> tuple[list[StudyCell], ...]:
    losses = a or [4.0] * len(differences)
    return (
        [cell("a", seed, loss) for seed, loss in enumerate(losses)],
        [cell("b", seed, loss + more_) for seed, (loss, more_) in enumerate(zip(losses, differences))],
    )


def fake_cells(place: StudyFolder, monkeypatch: pytest.MonkeyPatch, void: dict[str, str]) -> list[str]:
    """Cells end at once with what ``void`` says of them; return the list that their names are put on."""
    ran: list[str] = []

    def train(one: Cell, place: StudyFolder, lock: object) -> None:
        ran.append(one.name)
        place.folder(one).mkdir(parents=True)
        RunFolder(place.folder(one)).summary.write_text("{}")

    def read(one: Cell, place: StudyFolder) -> StudyCell:
        return replace(cell(one.variant, one.seed, 4.0, void=void.get(one.name, "")), attempt=one.attempt)

    def once(one: Cell, place: StudyFolder, lock: object) -> None:
        if not place.folder(one).exists():
            train(one, place, lock)

    monkeypatch.setattr(experiment, "train_cell", once)
    monkeypatch.setattr(experiment, "read_cell", read)
    return ran


NAMES = ("tales", "mixed")
SMALL = replace(load_recipe("tiny"), length=32, batch=8)
"""A recipe whose steps take milliseconds."""


def write_texts(folder: Path) -> dict[str, list[str]]:
    """Two sources: clean tales, and a mixture with exact copies, near copies and text that no tokenizer compresses."""
    chance = random.Random(5)
    tales = [small_text(chance, 8) for _ in range(120)]
    mixed = [small_text(chance, 8) for _ in range(100)]
    mixed += [" ".join(chance.choice("0123456789@?+") for _ in range(150)) for _ in range(30)]
    mixed += mixed[:70]  # copies, some of them of what will be held out
    mixed += [text + " and so it was ." for text in mixed[20:50]]  # near copies
    for name, texts in zip(NAMES, (tales, mixed)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return {name: [str(folder / f"{name}.jsonl")] for name in NAMES}
