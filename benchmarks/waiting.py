"""Measure what another busy process costs a two-thread training step, by the waiting policy of OpenMP threads.

    python benchmarks/waiting.py --out waiting.json

Each setting runs in its own process, in turn, first alone and then with one process that only counts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import Any

import measure

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "short spins": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
"""'short spins' is what the command line sets."""

STEPS = """
import sys, time, torch
from daybreak.core.batch import Batch
from daybreak.recipe import load_recipe
torch.set_num_threads(2)
recipe = load_recipe("tiny")
model = recipe.model.build(8192)
optimizer = recipe.optimizer.build(model)
ids = torch.randint(5, 8192, (recipe.batch, recipe.length))
ids[:, 0] = 2
for step in range(int(sys.argv[1]) + 3):
    begun = time.perf_counter()
    recipe.objective.loss(model, Batch(ids=ids), seed=0, position=step * recipe.batch, progress=0.9).sum.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step >= 3:
        print(time.perf_counter() - begun)
"""


def step_seconds(settings: dict[str, str], steps: int) -> list[float]:
    """Seconds of each step of the tiny recipe in a new process."""
    environment = {**os.environ, **settings}
    command = [sys.executable, "-c", STEPS, str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def rounds(count: int, steps: int) -> list[dict[str, Any]]:
    """Every setting alone and with a busy process, ``count`` times."""
    found = []
    for number in range(count):
        for busy in (False, True):
            neighbour = measure.busy_process() if busy else None
            try:
                for name, settings in SETTINGS.items():
                    seconds = step_seconds(settings, steps)
                    found.append(
                        {
                            "round": number,
                            "neighbour": busy,
                            "setting": name,
                            "median_seconds": statistics.median(seconds),
                            "mean_seconds": statistics.fmean(seconds),
                            "load": measure.load(),
                        }
                    )
            finally:
                if neighbour is not None:
                    neighbour.kill()
                    neighbour.wait()
    return found


def summarise(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median over rounds of the mean milliseconds of a step, by setting."""
    return {
        name: {
            where: round(
                1000
                * statistics.median(
                    run["mean_seconds"] for run in runs if run["setting"] == name and run["neighbour"] == busy
                ),
                1,
            )
            for where, busy in (("alone_ms", False), ("neighbour_ms", True))
        }
        for name in SETTINGS
    }


def table(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (name, f"{row['alone_ms']:.0f} ms", f"{row['neighbour_ms']:.0f} ms") for name, row in found["summary"].items()
    ]


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    count, steps = (1, 5) if options.short else (options.rounds, options.steps)
    found = {**measure.record("waiting", {"rounds": count, "steps": steps}), "runs": rounds(count, steps)}
    found["summary"] = summarise(found["runs"])
    measure.finish(found, options.out)
    print(measure.table(("threads wait by", "alone", "beside a neighbour"), [list(row) for row in table(found)]))


if __name__ == "__main__":
    main()
