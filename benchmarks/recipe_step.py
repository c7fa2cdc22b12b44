"""Time a training step of one recipe on this device, with a small batch, and measure its memory.

    python benchmarks/recipe_step.py --recipe crammed --data DATA --out step.json

gpu.py runs it once for each recipe, in a process of its own: a fault of the device spoils only that process.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.data.sequences.shards import open_shards
from daybreak.pretraining.planning import time_recipe
from daybreak.recipe import Recipe, load_recipe
from daybreak.training.phases import SecondPhase
from daybreak.training.schedule import Ramp

ROWS = 8
SHORT_LENGTH = 32


def small(name: str, short: bool) -> Recipe:
    """The recipe with ROWS sequences a step, in one phase, not compiled; ``short``: with a toy model."""
    recipe = load_recipe(name)
    devices = replace(recipe.devices, batch=0)
    recipe = replace(
        recipe, batch=ROWS, microbatch=ROWS, devices=devices, ramp=Ramp(), phase2=SecondPhase(), compile="off"
    )
    if short:
        shape: dict[str, Any] = {"layers": 1, "hidden_size": 32, "heads": 2, "intermediate_size": 64}
        recipe = replace(recipe, length=SHORT_LENGTH, model=replace(recipe.model, **shape))
    return recipe


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--data", type=Path, help="folder made by daybreak prepare")
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        speed = time_recipe(small(chosen.recipe, chosen.short), open_shards(data), data)
    found = {"recipe": chosen.recipe, "step_seconds": round(speed.step, 4), "memory": speed.memory}
    print(found)
    if chosen.out:
        measure.write_json(chosen.out, found)


if __name__ == "__main__":
    main()
