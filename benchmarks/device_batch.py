"""Test a claim of BERT-GPU at a small scale: more devices at the same rate and steps give the same results.

    python benchmarks/device_batch.py --data DATA --budget 2000steps --task-dir GLUE --tasks mrpc,sst2 --out claim.json

The original compares one GPU with a global batch of 100 with four GPUs and 400, at one learning rate and 1,000,000
steps, and reports downstream differences below 0.1 %. Here batches of 8 and 32 are compared at one rate and number of
steps, over several seeds of pretraining and fine-tuning. Several devices compute the same step as one device with
their whole batch (tests/test_systems.py), so one device runs both.
"""

from __future__ import annotations

import math
import os
import shlex
import statistics
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.core.files import read_json

BATCHES = (8, 32)


def pretrained(chosen: Any, data: Path, work: Path, batch: int, seed: int) -> Path:
    """Train one model with this global batch on one device."""
    out = work / f"batch-{batch}-seed-{seed}"
    flags = f"--size tiny --devices.batch {batch} --seed {seed} {chosen.flags}"
    measure.run(measure.pretrain_command("bert-gpu", data, out, chosen.budget, flags), work / f"{out.name}.log")
    return out


def fine_tuned(chosen: Any, run: Path, tasks: list[str], task_dir: list[str], work: Path) -> dict[str, float]:
    """Headline metric by task, mean over fine-tuning seeds."""
    flags = ["--tasks", ",".join(tasks), "--seeds", str(chosen.tuning_seeds), *task_dir, *shlex.split(chosen.tuning)]
    measure.run(measure.daybreak("evaluate", str(run), *flags), work / f"{run.name}.log")
    return {result["task"]: result["mean"] for result in read_json(run / "results.json")}


def verdict(scores: dict[int, list[dict[str, float]]]) -> dict[str, Any]:
    """By task: means, spreads over pretraining seeds, and whether the difference exceeds two standard errors."""
    found = {}
    for task in scores[BATCHES[0]][0]:
        few, many = ([each[task] for each in scores[batch]] for batch in BATCHES)
        difference = statistics.fmean(many) - statistics.fmean(few)
        spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (few, many)]
        error = math.sqrt(sum(each**2 for each in spread) / len(few))
        found[task] = {
            "mean": {str(batch): round(statistics.fmean(values), 4) for batch, values in zip(BATCHES, (few, many))},
            "spread": {str(batch): round(each, 4) for batch, each in zip(BATCHES, spread)},
            "difference": round(difference, 4),
            "standard_error": round(error, 4),
            "differs": abs(difference) > 2 * error > 0,
        }
    return found


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument(
        "--data", type=Path, help="folder made by daybreak prepare with sentences; toy data with --short"
    )
    parser.add_argument("--budget", default="2000steps")
    parser.add_argument("--seeds", type=int, default=3, help="pretrainings of each batch")
    parser.add_argument("--tasks", default="mrpc,sst2")
    parser.add_argument("--task-dir", type=Path, help="folder of the tasks' files")
    parser.add_argument("--tuning-seeds", type=int, default=3, help="fine-tunings of each model and task")
    parser.add_argument("--tuning", default="", help="more flags for daybreak evaluate, in one string")
    parser.add_argument("--flags", default="", help="more flags for daybreak pretrain, in one string")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with measure.work_folder(chosen.work) as work:
        tasks, task_dir = chosen.tasks.split(","), ["--task-dir", str(chosen.task_dir)] if chosen.task_dir else []
        data = chosen.data
        if chosen.short:
            chosen.budget, chosen.seeds, chosen.tuning_seeds, chosen.tuning = "20steps", 1, 1, "--epochs 1"
            chosen.flags = "--length 32 --model.layers 1 --model.positions 32"
            tasks, task_dir = [str(toy.toy_task(work))], []
            data = work / "pairs"
            text = ["--out", str(data), "--split-sentences", "--tokenizer.vocabulary", "1024"]
            measure.run(measure.daybreak("prepare", str(toy.toy_text(work)), *text), work / "log.txt")
        settings = {"budget": chosen.budget, "batches": BATCHES, "seeds": chosen.seeds, "flags": chosen.flags}
        found = measure.record(
            "device_batch", settings | {"tuning": chosen.tuning, "tuning_seeds": chosen.tuning_seeds}
        )
        scores: dict[int, list[dict[str, float]]] = {batch: [] for batch in BATCHES}
        for seed in range(chosen.seeds):
            for batch in BATCHES:
                run = pretrained(chosen, data, work, batch, seed)
                scores[batch].append(fine_tuned(chosen, run, tasks, task_dir, work))
                seen = measure.run_facts(run)["summary"]
                told = {name: seen["validation"][name] for name in ("loss", "unigram_loss", "accuracy")}
                line = {"batch": batch, "seed": seed, "steps": seen["steps"], "tokens": seen["tokens"], **told}
                found.setdefault("runs", []).append({**line, "scores": scores[batch][-1]})
                print(found["runs"][-1], flush=True)
                measure.finish(found, chosen.out)
        found["verdict"] = verdict(scores)
        print(found["verdict"])
        measure.finish(found, chosen.out)


if __name__ == "__main__":
    main()
