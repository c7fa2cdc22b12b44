"""A folder of results with the cells behind them, and one of probes."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from daybreak.core.files import write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.schemas.probes import (
    BucketScore,
    CalibrationBin,
    LayerProbe,
    LayerScore,
    MaskedWords,
    Probes,
    RowLength,
    SimilarityProbe,
    SimilarityScore,
)
from daybreak.schemas.tasks import FinetuningRun, TaskResult

RATE = 3e-4
WriteResults = Callable[..., Path]


def answered(task: str, ability: float, seed: int, rows: int) -> list[list[float]]:
    """Judged rows of a task with two labels: each row is as hard for every model."""
    hard, chance = random.Random(task), random.Random(f"{task}{ability}{seed}")
    table = []
    for _ in range(rows):
        target = hard.randint(0, 1)
        right = hard.gauss(0, 1) + chance.gauss(0, 0.3) < ability
        answer = target if right else 1 - target
        table.append([target, answer, 0.2 + 0.6 * answer, 0.8, 0.3 if right else 1.5])
    return [[float(value) for value in row] for row in table]


@pytest.fixture
def write_results() -> WriteResults:
    """Return ``write(folder, {task: ability}, ...)``: it adds results of an accuracy, and their cells, to a folder."""

    def write(
        folder: Path, abilities: dict[str, float], *, model: str = "pretrained", rows: int = 400, seeds: int = 3,
        name: str | None = None,
    ) -> Path:  # fmt: skip
        folder.mkdir(exist_ok=True)
        run, name = RunFolder(folder), folder.name if name is None else name
        old = json.loads(run.results.read_text()) if run.results.exists() else []
        results = []
        for task, ability in abilities.items():
            scores = []
            for seed in range(seeds):
                judged = answered(task, ability, seed, rows)
                scores.append(statistics.fmean(row[0] == row[1] for row in judged))
                cell = FinetuningRun(
                    fingerprint="f", protocol="quick", task=task, model=model, model_name=name, epochs=5,
                    learning_rate=RATE, batch=16, seed=seed, scores={"accuracy": scores[-1]},
                    scored_rows={"dev": judged}, threads=1, seconds=2.0,
                )  # fmt: skip
                place = run.cells / "quick" / task / f"{name}-{model}"
                place.mkdir(parents=True, exist_ok=True)
                write_json(place / f"seed-{seed}.json", cell)
            spread = statistics.stdev(scores) if seeds > 1 else 0.0
            results.append(
                TaskResult(
                    protocol="quick", task=task, model=model, model_name=name, kind="classification",
                    metric="accuracy", seeds=list(range(seeds)), mean=statistics.fmean(scores), spread=spread,
                    scores={"accuracy": scores, "calibration_error": [0.05] * seeds, "nll": [0.61] * seeds},
                    selection="after the last epoch", train_rows=2000, dev_rows=rows, baseline=0.5,
                    settings={"learning_rate": RATE, "epochs": 5, "batch": 16}, labels=["no", "yes"],
                    hardware="CPU, 1 thread", seconds=6.0,
                )
            )  # fmt: skip
        kept = [one for one in old if (one["task"], one["model"]) not in {(r.task, r.model) for r in results}]
        write_json(run.results, [*kept, *map(to_dict, results)])
        return folder

    return write


def buckets(ends: list[int], top: float) -> list[BucketScore]:
    """Ranges up to these ends, the last one open, ever less often right."""
    starts = [1, *(end + 1 for end in ends)]
    return [
        BucketScore(
            first=first, last=last, count=500, accuracy=top / (place + 1), low=top / (place + 1) - 0.02,
            high=top / (place + 1) + 0.03, loss=2.0 + place,
        )
        for place, (first, last) in enumerate(zip(starts, [*ends, None]))
    ]  # fmt: skip


def fake_probes(lift: float = 0.0) -> Probes:
    return Probes(
        model_name="mini",
        layer_count=4,
        layer_probes=[
            LayerProbe(
                task=task, kind="classification", metric="accuracy", constant=0.5, train_rows=2000, dev_rows=872,
                layers=[LayerScore(layer=n, score=0.55 + lift + step * min(n, 3)) for n in range(5)],
            )
            for task, step in (("sst2", 0.05), ("rte", 0.01))
        ],
        similarity=[
            SimilarityProbe(
                task="stsb", pairs=1500,
                layers=[SimilarityScore(layer=n, spearman=0.4 + lift - 0.02 * n, centred=0.5) for n in range(5)],
            )
        ],
        masked_words=MaskedWords(
            text="the held-out split of 'data'", tokens=60_000, trained_length=128, ranks_from="training text",
            constant=0.05, frequency=buckets([10, 100, 1000, 10_000], 0.5 + lift),
            lengths=[
                RowLength(
                    length=128 * times, times_trained=times, count=4000, accuracy=0.215 - 0.02 * times, low=0.2,
                    high=0.23, loss=4.6, positions=buckets([8, 32, 127, 255][: 2 + times], 0.3 + lift),
                )
                for times in (1, 2)
            ],
            calibration=[
                CalibrationBin(low=n / 15, high=(n + 1) / 15, count=300, confidence=(n + 0.5) / 15, accuracy=n / 16)
                for n in range(15)
            ],
            calibration_error=0.034,
        ),
        seconds=12.0,
    )  # fmt: skip


@pytest.fixture
def write_probes() -> Callable[..., None]:
    """Return ``write(folder, lift)``: it adds probes to a folder, better by ``lift``."""

    def write(folder: Path, lift: float = 0.0) -> None:
        write_json(RunFolder(folder).probes, fake_probes(lift))

    return write
