"""Check that runs end when their budget does: ten runs of a minute and one of ten minutes, timed from outside.

    python benchmarks/budget.py --data DATA --out budget.json

The clock starts before the process and stops when weights, configuration and tokenizer are on disk. The steps after
that (parity check, examples, card) are not part of the budget. RULES.md allows a difference of 1 % or 1 s, whichever is
larger, and invalidates measurements on a machine that is busy with other processes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.schemas.records import tolerance


def timed_run(command: list[str], out: Path, seconds: float, log: Path) -> dict[str, Any]:
    """Run once; measure the time until the model exists, and read the times that the run reports."""
    watch, started = measure.Watch(), time.monotonic()
    process = measure.start(command, log)
    seen = measure.wait_for_model(process, out)
    measure.check_ended(process, log)
    ended = time.monotonic()
    assert seen is not None
    facts = measure.run_facts(out)
    return {
        "budget_seconds": seconds,
        "outside_seconds": round(seen - started, 3),
        "inside_seconds": facts["summary"]["elapsed"],
        "after_budget_seconds": round(ended - seen, 3),
        **evaluate(seconds, seen - started, facts["summary"]["elapsed"]),
        "training_share": round(measure.training_share(facts["summary"]), 4),
        "time_by_category": facts["summary"]["time_by_category"],
        "steps": facts["summary"]["steps"],
        "tokens_per_second": facts["summary"]["tokens_per_second"],
        "decisions": facts["decisions"],
        **watch.facts(facts["decisions"]["threads"]),
    }


def evaluate(budget: float, outside: float, inside: float) -> dict[str, Any]:
    """Differences of both clocks from the budget, and whether they are within the tolerance."""
    allowed = tolerance(budget)
    return {
        "tolerance_seconds": allowed,
        "off_by_seconds": round(outside - budget, 3),
        "held": abs(outside - budget) <= allowed and abs(inside - budget) <= allowed,
    }


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One summary for each budget."""
    found = []
    for seconds in dict.fromkeys(run["budget_seconds"] for run in runs):
        same = [run for run in runs if run["budget_seconds"] == seconds]
        off = [run["off_by_seconds"] for run in same]
        mean, spread = measure.mean_and_spread(off)
        found.append(
            {
                "budget_seconds": seconds,
                "runs": len(same),
                "held": sum(run["held"] for run in same),
                "void": sum(run["void"] for run in same),
                "off_by_mean": round(mean, 3),
                "off_by_spread": round(spread, 3),
                "off_by_worst": max(off, key=abs),
                "training_share_least": min(run["training_share"] for run in same),
                "training_share_mean": round(measure.mean_and_spread([r["training_share"] for r in same])[0], 4),
            }
        )
    return found


def main() -> None:
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--long-runs", type=int, default=1)
    parser.add_argument("--long-budget", default="10m")
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.flags = chosen.flags or measure.SHORT_FLAGS
        chosen.runs, chosen.budget, chosen.long_runs = 1, "20s", 0
    plan = [chosen.budget] * chosen.runs + [chosen.long_budget] * chosen.long_runs
    seconds = {budget: measure.budget_seconds(budget) for budget in plan}
    settings = {"recipe": chosen.recipe, "flags": chosen.flags, "plan": plan}
    found: dict[str, Any] = {**measure.record("budget", settings), "runs": []}
    with measure.work_folder(chosen.work, fresh=True) as work:
        data = toy.data_folder(chosen, work)
        for number, budget in enumerate(plan):
            out = work / f"budget-{number}"
            command = measure.pretrain_command(chosen.recipe, data, out, budget, chosen.flags)
            run = timed_run(command, out, seconds[budget], work / "log.txt")
            found["runs"].append(run)
            found["summary"] = summarise(found["runs"])
            measure.finish(found, chosen.out)
            print(line(run), flush=True)
    print()
    for each in found["summary"]:
        print(
            f"{each['budget_seconds']:.0f} s: {each['held']} of {each['runs']} held ({each['void']} void), off by "
            f"{each['off_by_mean']:+.2f} +- {each['off_by_spread']:.2f} s, worst {each['off_by_worst']:+.2f} s; "
            f"at least {each['training_share_least']:.1%} of it training"
        )


def line(run: dict[str, Any]) -> str:
    verdict = "held" if run["held"] else "NOT HELD"
    busy = ", machine busy: void" if run["void"] else ""
    return (
        f"{run['budget_seconds']:.0f} s: {run['outside_seconds']:.2f} s from outside, {run['inside_seconds']:.2f} s "
        f"by its own clock, {run['training_share']:.1%} training, load {run['load_after'][0]}: {verdict}{busy}"
    )


if __name__ == "__main__":
    main()
