"""Test the rule for the peak learning rate: sweep rates around it at several shapes and lengths of training.

    python benchmarks/rates.py --data DATA --runs 2x128:1200steps,3x192:800steps,4x256:600steps --out rates.json

The rule is the flagship's (recipes/daybreak_*.py): heads of 64 channels, an intermediate size of twice the hidden size
D, an initial standard deviation of 1 / sqrt(D), and a peak rate proportional to 1 / sqrt(D), 3e-3 at 256 (for Muon;
other parameters have a fixed multiple of it), independent of the number of steps. Each run is LAYERSxWIDTH:BUDGET.
Budgets in steps are the same work on any machine, so several calls can share --work. The best factor on the rule's rate
is the vertex of a parabola in the logarithm of the rate, through the best rate and its neighbours.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import measure
import numpy as np
import toy

from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder

RATE, WIDTH = 3e-3, 256
"""Of ``mini``, from which the rule goes on."""
HEAD = 64


def rule(layers: int, width: int, factor: float) -> str:
    """Flags that give ``mini`` the shape and ``factor`` times the learning rate of the rule."""
    values = {
        "layers": layers,
        "hidden-size": width,
        "heads": max(1, width // HEAD),
        "intermediate-size": 2 * width,
        "init-std": f"{1 / math.sqrt(width):.4g}",
    }
    shape = " ".join(f"--model.{name} {value}" for name, value in values.items())
    return f"{shape} --optimizer.lr {factor * rule_rate(width):.4g}"


def rule_rate(width: int) -> float:
    return RATE * math.sqrt(WIDTH / width)


def shape_of(asked: str) -> tuple[int, int]:
    """Layers and hidden size of LAYERSxWIDTH:BUDGET."""
    layers, width = asked.split(":")[0].split("x")
    return int(layers), int(width)


def best_factor(losses: dict[float, float]) -> float | None:
    """Factor with the lowest loss by a parabola in its logarithm; None if the best is at an end.

    Args:
        losses: loss by factor, two or more.
    """
    factors = sorted(losses)
    at = factors.index(min(losses, key=lambda factor: losses[factor]))
    if not 0 < at < len(factors) - 1:
        return None
    near = factors[at - 1 : at + 2]
    curve, slope, _ = np.polyfit([math.log(factor) for factor in near], [losses[factor] for factor in near], 2)
    return float(math.exp(-slope / (2 * curve))) if curve > 0 else factors[at]


def made(asked: str, factor: float, seed: int, chosen: argparse.Namespace, data: Path, work: Path) -> float:
    """Held-out loss of one run; run it now if there is none."""
    name = f"{asked.replace(':', '-')}-rate-x{factor:g}-seed-{seed}"
    run = RunFolder(work / name)
    if not run.summary.exists():
        flags = f"{rule(*shape_of(asked), factor)} --seed {seed} {chosen.flags}"
        command = measure.pretrain_command("mini", data, run.path, asked.split(":")[1], flags)
        measure.run(command, work / f"{name}.log")
        print(f"{name}: {read_json(run.summary)['validation']['loss']:.3f}", flush=True)
    return float(read_json(run.summary)["validation"]["loss"])


def sweep(asked: str, chosen: argparse.Namespace, data: Path, work: Path) -> dict[str, Any]:
    """Losses of one shape and budget at all factors, by seed, and the best factor."""
    factors = [float(factor) for factor in chosen.factors.split(",")]
    losses = {factor: [made(asked, factor, seed, chosen, data, work) for seed in chosen.seeds] for factor in factors}
    best = best_factor({factor: statistics.fmean(each) for factor, each in losses.items()})
    return {
        "run": asked,
        "rule_rate": rule_rate(shape_of(asked)[1]),
        "losses": {f"{factor:g}": each for factor, each in losses.items()},
        "best_factor": best,
    }


def spread_of(found: list[dict[str, Any]]) -> float | None:
    """Ratio of the largest to the smallest best factor; None if one is outside the tried range."""
    best = [one["best_factor"] for one in found]
    return max(best) / min(best) if all(best) else None


def render(found: list[dict[str, Any]]) -> str:
    """One line per shape and budget."""
    factors = list(found[0]["losses"])
    rows = [
        [
            one["run"],
            f"{one['rule_rate']:.2g}",
            *(f"{statistics.fmean(one['losses'][factor]):.3f}" for factor in factors),
            f"x {one['best_factor']:.2f}" if one["best_factor"] else "outside",
        ]
        for one in found
    ]
    return measure.table(["run", "rule", *(f"x {factor}" for factor in factors), "best"], rows)


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder made by daybreak prepare; toy data with --short")
    parser.add_argument("--flags", default="", help="more flags for daybreak pretrain, in one string")
    parser.add_argument("--runs", default="2x128:1200steps,3x192:800steps,4x256:600steps")
    parser.add_argument("--factors", default="0.25,0.5,1,2", help="on the rule's rate")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.runs, chosen.factors, chosen.flags = "1x32:20steps,1x64:20steps", "0.5,1,2", measure.SHORT_FLAGS
    settings = {name: getattr(chosen, name) for name in ("runs", "factors", "seeds", "flags")}
    found = measure.record("rates", settings) | {"sweeps": []}
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        for asked in chosen.runs.split(","):
            found["sweeps"].append(sweep(asked, chosen, data, work))
            found["spread_of_best_factors"] = spread_of(found["sweeps"])
            measure.finish(found, chosen.out)
    print(render(found["sweeps"]))


if __name__ == "__main__":
    main()
