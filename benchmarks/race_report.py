"""Report a race that race.py recorded: final losses, and ratios of the time to several losses.

    python benchmarks/race_report.py race.json

The time to a loss is interpolated on the curve of a run. The time of a side is the median over its seeds, and is given
only if all its runs reach the loss. If the reference does not reach a loss within its budget, the ratio is its budget
divided by Daybreak's time, a lower bound. Schedules are fitted to budgets, so the last table gives for each side and
budget the time to the final loss of the reference at its longest budget.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measure

from daybreak.core.files import read_json

REFERENCE = "reference"
STEP = 0.25
"""Nats between the losses that times are told for, counted down from the unigram baseline."""


def time_to(curve: Sequence[dict[str, Any]], loss: float) -> float | None:
    """Seconds until the held-out loss of a run is at or below ``loss``; None if it never is."""
    before: dict[str, Any] | None = None
    for point in curve:
        if point["loss"] <= loss:
            if before is None:
                return float(point["seconds"])
            share = (before["loss"] - loss) / (before["loss"] - point["loss"])
            return float(before["seconds"] + share * (point["seconds"] - before["seconds"]))
        before = point
    return None


def median_time(runs: Sequence[dict[str, Any]], loss: float) -> float | None:
    times = [time_to(run["curve"], loss) for run in runs]
    return None if None in times else statistics.median(times)  # type: ignore[type-var]


def summarize(tuned: list[dict[str, Any]], raced: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize the valid runs of a race: the tuning and each budget.

    Raises:
        SystemExit: not all runs were judged on the same positions.
    """
    if len({run["positions"] for run in [*tuned, *raced]}) != 1:
        sys.exit("These runs were evaluated on different positions and cannot be compared.")
    found: dict[str, Any] = {"tuning": [line_of(run["setting"], [run]) for run in tuned], "budgets": []}
    for seconds in sorted({run["seconds"] for run in raced}):
        found["budgets"].append(budget_of([run for run in raced if run["seconds"] == seconds]))
    found["reached"] = reached(raced)
    return found


def sides_of(runs: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Runs of each side; each setting of the reference is a side."""
    sides: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        name = f"{REFERENCE} {run['setting']}" if run["variant"] == REFERENCE else run["variant"]
        sides.setdefault(name, []).append(run)
    return sides


def reached(raced: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Times at which each side reaches the reference's loss at its longest budget; None without a reference."""
    theirs = [run for run in raced if run["variant"] == REFERENCE]
    if not theirs:
        return None
    longest = max(run["seconds"] for run in theirs)
    ends = {
        side: statistics.fmean(run["curve"][-1]["loss"] for run in runs)
        for side, runs in sides_of([run for run in theirs if run["seconds"] == longest]).items()
    }
    best = min(ends, key=lambda side: ends[side])
    lines = []
    for seconds in sorted({run["seconds"] for run in raced}):
        for side, runs in sides_of([run for run in raced if run["seconds"] == seconds]).items():
            if not side.startswith(REFERENCE):
                at = median_time(runs, ends[best])
                lines.append({**line_of(side, runs), "seconds": seconds, "at": at, "ratio": at and longest / at})
    return {"reference": best, "seconds": longest, "loss": ends[best], "sides": lines}


def line_of(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One side: its final losses and facts."""
    losses = [run["curve"][-1]["loss"] for run in runs]
    mean, spread = measure.mean_and_spread(losses)
    return {
        "side": name,
        "runs": len(runs),
        "seeds": [run["seed"] for run in runs],
        "void": sum(run["void"] for run in runs),
        "loss": mean,
        "spread": spread,
        "below_unigram": runs[0]["unigram_loss"] - mean,
        "parameters": runs[0]["parameters"],
        "tokens": statistics.fmean(run["tokens"] for run in runs),
        "first_step_seconds": statistics.median(run["curve"][0]["seconds"] for run in runs),
    }


def budget_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One budget: all sides, and their times to several losses."""
    sides = sides_of(runs)
    lines = sorted((line_of(name, own) for name, own in sides.items()), key=lambda line: line["loss"])
    best = next((line["side"] for line in lines if line["side"].startswith(REFERENCE)), None)
    unigram, lowest = runs[0]["unigram_loss"], lines[0]["loss"]
    levels = {f"{STEP * n:g} below word frequencies": unigram - STEP * n for n in range(1, 40)}
    levels = {name: level for name, level in levels.items() if level >= lowest}
    if best:
        levels = {"the reference's end": statistics.fmean(r["curve"][-1]["loss"] for r in sides[best]), **levels}
    times = [
        {"loss": level, "what": name, "seconds": {side: median_time(own, level) for side, own in sides.items()}}
        for name, level in levels.items()
    ]
    for line in times:
        line["ratios"] = ratios(line["seconds"], best, runs[0]["seconds"])
    return {"seconds": runs[0]["seconds"], "reference": best, "sides": lines, "times": times}


def ratios(times: dict[str, float | None], best: str | None, budget: float) -> dict[str, Any]:
    """Time of the best reference divided by the time of each side."""
    if best is None:
        return {}
    theirs = times[best]
    return {
        side: {"ratio": (theirs or budget) / own, "at_least": theirs is None}
        for side, own in times.items()
        if own is not None and not side.startswith(REFERENCE)
    }


def render(summary: dict[str, Any]) -> str:
    """The tables."""
    blocks = [_sides("tuning of the reference", summary["tuning"])]
    for budget in summary["budgets"]:
        blocks.append(_sides(f"{budget['seconds']:g} s", budget["sides"]))
        names = [line["side"] for line in budget["sides"]]
        rows = []
        for line in budget["times"]:
            cells = []
            for name in names:
                seconds, ratio = line["seconds"][name], line["ratios"].get(name)
                told = "-" if seconds is None else f"{seconds:.0f} s"
                cells.append(told + (f" ({'>' if ratio['at_least'] else ''}{ratio['ratio']:.1f}x)" if ratio else ""))
            rows.append([f"{line['loss']:.2f} ({line['what']})", *cells])
        blocks.append(measure.table(["time to a loss of", *names], rows))
    if end := summary["reached"]:
        rows = [
            [f"{line['side']}, {line['seconds']:g} s", f"{line['loss']:.3f} +- {line['spread']:.3f}", str(line["runs"]),
             f"{line['at']:.0f} s" if line["at"] else "-", f"{line['ratio']:.1f}x" if line["at"] else "-"]
            for line in end["sides"]
        ]  # fmt: skip
        what = f"the {end['loss']:.3f} of {end['reference']} after {end['seconds']:g} s"
        blocks.append(measure.table([what, "held-out loss at the end", "runs", "reached after", "ratio"], rows))
    return "\n\n".join(blocks)


def _sides(title: str, lines: Sequence[dict[str, Any]]) -> str:
    rows = [
        [line["side"], f"{line['loss']:.3f} +- {line['spread']:.3f}", f"{line['below_unigram']:.2f}", str(line["runs"]),
         str(line["void"]), f"{line['parameters']:,}", f"{line['tokens'] / 1e6:.2f}M",
         f"{line['first_step_seconds']:.1f}"]
        for line in lines
    ]  # fmt: skip
    head = [title, "held-out loss", "below frequencies", "runs", "void", "parameters", "tokens", "first step, s"]
    return measure.table(head, rows)


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("record", nargs="?", type=Path, help="written by race.py; an invented one with --short")
    chosen = parser.parse_args()
    if chosen.record:
        found = read_json(chosen.record)
        print(render(summarize(found["tuning"], found["race"])))
        return
    if not chosen.short:
        sys.exit("Name a record that race.py wrote, or use --short.")
    print(render(summarize([invented(REFERENCE, 1.0)], [invented(REFERENCE, 1.0), invented("ours", 3.0)])))


def invented(side: str, speed: float) -> dict[str, Any]:
    """A synthetic run whose loss falls by ``speed`` nats in 60 seconds."""
    points = [{"seconds": at, "loss": 7.0 - speed * at / 60} for at in range(0, 61, 10)]
    facts = {"variant": side, "setting": "", "seconds": 60.0, "seed": 0, "positions": "", "unigram_loss": 7.0}
    return {**facts, "curve": points, "parameters": 1, "tokens": 1, "void": False}


if __name__ == "__main__":
    main()
