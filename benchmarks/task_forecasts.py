"""Fit the forecasts of task scores on finished and evaluated runs, and measure their error on runs left out.

    python benchmarks/task_forecasts.py --data data/wiki --runs runs/a runs/b --keep records/DATE-task-runs-rate.json
    python benchmarks/task_forecasts.py --records records --table src/daybreak/forecasting/tasks.json --out tasks.json

The first form writes the loss gap and the scores of each run folder. The second fits all such records
(*task-runs*.json), writes the table that ships with the package, and forecasts each run from the others.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measure
import numpy as np
from law import heldout

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict
from daybreak.forecasting.tasks import forecast_tasks
from daybreak.schemas.forecast import Forecast, TaskLine, TaskTable
from daybreak.schemas.tasks import TaskResult

FEWEST = 4
"""Fewest runs of a line; three leave one degree of freedom, which makes the interval useless."""
PROTOCOL = "small"
AVERAGED = ("cola", "sst2", "mrpc", "stsb", "rte")
AVERAGE = "glue5"
"""Name of the mean over AVERAGED, for runs that have all of them."""
UNIGRAM = 100.0
"""A baseline far above all gaps, for forecasts from a known gap."""


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """A finished and evaluated run as input to the fit of task forecasts."""

    name: str
    gap: float
    """Unigram baseline minus final held-out loss, nats."""
    scores: dict[str, float]
    """Mean headline metric over fine-tunings, by task."""


def scores_of(results: Sequence[TaskResult]) -> dict[str, float]:
    """The mean scores of a run by task, without results of other protocols and of untrained models."""
    scores = {one.task: one.mean for one in results if one.protocol == PROTOCOL and one.model == "pretrained"}
    if all(task in scores for task in AVERAGED):
        scores[AVERAGE] = statistics.fmean(scores[task] for task in AVERAGED)
    return {task: round(score, 5) for task, score in scores.items()}


def fit_tasks(runs: Sequence[TaskRun]) -> TaskTable:
    """Fit a line for each task that at least FEWEST runs have."""
    lines = []
    for task in dict.fromkeys(task for run in runs for task in run.scores):
        known = [run for run in runs if task in run.scores]
        if len(known) >= FEWEST and len({run.gap for run in known}) > 1:
            lines.append(_line(task, known))
    if not lines:
        raise UserError(f"No task has scores of {FEWEST} runs.", "Evaluate more runs.")
    return TaskTable(protocol=PROTOCOL, lines=lines)


def _line(task: str, runs: Sequence[TaskRun]) -> TaskLine:
    """Fit a line by ordinary least squares."""
    gaps, scores = np.array([run.gap for run in runs]), np.array([run.scores[task] for run in runs])
    centre = float(gaps.mean())
    squares = float(((gaps - centre) ** 2).sum())
    slope = float((gaps - centre) @ (scores - scores.mean())) / squares
    apart = scores - scores.mean() - slope * (gaps - centre)
    return TaskLine(
        task=task,
        runs=[run.name for run in runs],
        gaps=(float(gaps.min()), float(gaps.max())),
        centre=round(centre, 6),
        squares=round(squares, 6),
        score=round(float(scores.mean()), 6),
        slope=round(slope, 6),
        spread=round(math.sqrt(float(apart @ apart) / (len(runs) - 2)), 6),
    )


def runs_in(folders: list[Path], data: Path) -> list[TaskRun]:
    """The finished and evaluated runs on ``data``."""
    found = []
    for folder in folders:
        run = RunFolder(folder)
        if missing := [path.name for path in (run.summary, run.results) if not path.is_file()]:
            print(f"{folder.name}: passed over, it has no {missing[0]}")
        elif not (scores := scores_of(read_json(run.results, list[TaskResult]))):
            print(f"{folder.name}: passed over, it has no score under the protocol")
        else:
            loss, unigram = heldout(run, data)
            found.append(TaskRun(name=folder.resolve().name, gap=round(unigram - loss, 5), scores=scores))
    return found


def left_out(runs: list[TaskRun]) -> dict[str, Any]:
    """Forecast each run from the others: per task the runs inside the interval and the mean error."""
    seen: dict[str, list[tuple[bool, float]]] = {}
    for run in runs:
        try:
            table = fit_tasks([other for other in runs if other != run])
        except UserError:
            continue
        known = Forecast(made_at=1.0, tokens=0, loss=UNIGRAM - run.gap, low=UNIGRAM - run.gap, high=UNIGRAM - run.gap)
        for one in forecast_tasks(table, known, UNIGRAM):
            if one.score is not None and one.low is not None and one.high is not None and one.task in run.scores:
                score = run.scores[one.task]
                seen.setdefault(one.task, []).append((one.low <= score <= one.high, abs(one.score - score)))
    return {
        task: {
            "runs": len(found),
            "inside": sum(inside for inside, _ in found),
            "mean_error": float(np.mean([error for _, error in found])),
        }
        for task, found in seen.items()
    }


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--runs", type=Path, nargs="+", default=[], help="run folders, finished and evaluated")
    parser.add_argument("--data", type=Path, help="folder made by daybreak prepare that they were trained on")
    parser.add_argument("--keep", type=Path, default=Path("task-runs.json"), help="where the runs are kept")
    parser.add_argument("--records", type=Path, help="folder of records to fit on")
    parser.add_argument("--table", type=Path, help="where the table goes that the package carries")
    chosen = parser.parse_args()
    if chosen.short:
        chosen.records = measure.ROOT / "records"
    if chosen.runs and not chosen.data:
        parser.error("name the text of the runs with --data")
    kept = runs_in(chosen.runs, chosen.data)
    if kept:
        write_json(chosen.keep, {**measure.record("task runs", {}), "runs": kept})
        print(f"{len(kept)} runs kept")
    if not chosen.records:
        return
    paths = sorted(chosen.records.glob("*task-runs*.json"))
    runs = [from_dict(TaskRun, run) for path in paths for run in read_json(path)["runs"]]
    try:
        table = fit_tasks(runs)
    except UserError as error:
        sys.exit(f"{chosen.records}: {error}")
    apart = left_out(runs)
    measure.finish(
        {**measure.record("task forecasts", {}), "runs": runs, "left_out": apart, "table": table}, chosen.out
    )
    if chosen.table:
        write_json(chosen.table, table)
    rows = [
        [line.task, str(len(line.runs)), f"{line.gaps[0]:.2f} to "
         f"{line.gaps[1]:.2f}", f"{line.score:.3f}", f"{line.slope:+.3f}", f"{line.spread:.3f}"]
        for line in table.lines
    ]  # fmt: skip
    head = ["task", "runs", "gap", "mean score", "a nat", "spread"]
    print(measure.table(head, rows))
    for task, seen in apart.items():
        print(f"{task}: {seen['inside']} of {seen['runs']} runs inside the interval of the others, "
              f"mean error {seen['mean_error']:.3f}.")  # fmt: skip


if __name__ == "__main__":
    main()
