"""Compare the forecasts of runs with their final losses, for runs that the scaling law was not fitted to.

    python benchmarks/forecasts.py --data DATA --runs tiny:3m,mini:5m,mini:10m --work runs/foreseen --out f.json

The runs are those of daybreak pretrain, in turns, with seeds that the law was not fitted to. The forecasts at the start
and at a tenth of the run come from the current law and the facts known then: the expected number of tokens and the
training loss. Finished runs are kept in --work, so that an interrupted measurement resumes and a new law can be
evaluated on them. The next call repeats a run during which the machine was too busy, because its speed changed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import measure
import torch
import toy

from daybreak.core.budget import Budget
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.forecasting.law import SPEED_SPREAD, RunSpec, correct, predict_loss, shipped_law
from daybreak.forecasting.runs import law_run
from daybreak.reporting.forecast import EARLY
from daybreak.schemas.forecast import Forecast, ForecastLog

MOMENTS = ("start", "tenth")


def foreseen(forecast: Forecast, loss: float) -> dict[str, Any]:
    """A forecast with the result."""
    return {
        "tokens": forecast.tokens,
        "loss": forecast.loss,
        "low": forecast.low,
        "high": forecast.high,
        "inside": forecast.low <= loss <= forecast.high,
        "error": forecast.loss / loss - 1.0,
        "beyond": forecast.beyond,
    }


def judged(out: Path) -> dict[str, Any]:
    """Result of a finished run, and its forecasts."""
    law, run, outlook = shipped_law(), RunFolder(out), read_json(RunFolder(out).forecast, ForecastLog)
    facts = law_run(run, out.name, outlook.compression)
    timed = Budget.parse(read_json(run.recipe)["budget"]).unit == "seconds"
    begun = RunSpec(
        inner=facts.inner, tokens=outlook.forecasts[0].tokens, unique=facts.unique, unigram_loss=facts.unigram_loss,
        compression=facts.compression, speed_spread=SPEED_SPREAD if timed else 0.0,
    )  # fmt: skip
    mark, seen = next((mark, seen) for mark, seen in zip(law.usual, facts.course) if mark.at >= EARLY - 1e-9)
    early = next(one for one in outlook.forecasts if one.made_at >= mark.at - 1e-9)
    later = replace(begun, tokens=early.tokens, speed_spread=begun.speed_spread * (1.0 - mark.at))
    return {
        "loss": facts.loss,
        "unigram_loss": facts.unigram_loss,
        "tokens": facts.tokens,
        "parameters": read_json(run.summary)["parameters"],
        "start": foreseen(predict_loss(law, begun), facts.loss),
        "tenth": foreseen(correct(law, later, mark, seen), facts.loss),
    }


def made(asked: str, seed: int, chosen: argparse.Namespace, data: Path, work: Path) -> dict[str, Any]:
    """Result of one run; run it now if there is no valid result."""
    recipe, budget = asked.split(":")
    name = f"{recipe}-{budget}-seed-{seed}"
    path, out = work / f"{name}.json", work / name
    if path.exists() and (chosen.short or not read_json(path)["void"]):
        return dict(read_json(path)) | judged(out)
    shutil.rmtree(out, ignore_errors=True)
    watch = measure.Watch()
    flags = f"--seed {seed} {chosen.flags}"
    measure.run(measure.pretrain_command(recipe, data, out, budget, flags), work / "log.txt")
    found = {"run": name, "recipe": recipe, "budget": budget, "seed": seed, **judged(out)}
    found |= watch.facts(torch.get_num_threads())
    write_json(path, found)
    void = ", machine busy: void" if found["void"] else ""
    print(f"{name}: {found['loss']:.3f}, forecast {found['start']['loss']:.3f}{void}", flush=True)
    return found


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Coverage of the 90 % interval and mean error at both points; invalid runs are not counted."""
    counted = [run for run in runs if not run["void"]]
    return {
        moment: {
            "runs": len(counted),
            "inside": sum(run[moment]["inside"] for run in counted),
            "mean_error": statistics.fmean(abs(run[moment]["error"]) for run in counted) if counted else None,
            "worst_error": max((abs(run[moment]["error"]) for run in counted), default=None),
        }
        for moment in MOMENTS
    }


def render(runs: list[dict[str, Any]], summary: dict[str, Any]) -> str:
    """One line per run and one per point."""
    rows = []
    for run in runs:
        told = [f"{run[at]['loss']:.3f} ({run[at]['low']:.2f} to {run[at]['high']:.2f})" for at in MOMENTS]
        missed = [f"{run[at]['error']:+.1%}{'' if run[at]['inside'] else ' outside'}" for at in MOMENTS]
        rows.append([run["run"] + (" (void)" if run["void"] else ""), f"{run['loss']:.3f}", *told, *missed])
    lines = [measure.table(["run", "reached", "at the start", "at a tenth", "off", "off"], rows)]
    for moment, one in summary.items():
        if one["runs"]:
            lines.append(
                f"{moment}: {one['inside']} of {one['runs']} inside, mean error {one['mean_error']:.1%}, worst "
                f"{one['worst_error']:.1%}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser)
    parser.add_argument("--runs", default="tiny:3m,tiny:6m,mini:5m,mini:10m", help="RECIPE:BUDGET, one after another")
    parser.add_argument("--seeds", type=int, default=2, help="of each of them")
    parser.add_argument("--first-seed", type=int, default=100, help="the lowest one")
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.runs, chosen.seeds = "tiny:20s", 1  # a shorter step would be a recipe that the law does not know
    law = shipped_law()
    settings = {name: getattr(chosen, name) for name in ("runs", "seeds", "first_seed", "flags")}
    found = measure.record("forecasts", settings)
    found |= {"law": {"intermediate_size": law.inner, "tokens": law.tokens, "runs": len(law.residuals)}, "results": []}
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            for asked in chosen.runs.split(","):
                found["results"].append(made(asked, seed, chosen, data, work))
                found["summary"] = summarise(found["results"])
                measure.finish(found, chosen.out)
    print(render(found["results"], found["summary"]))


if __name__ == "__main__":
    main()
