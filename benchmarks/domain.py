"""Compare an own vocabulary, a general model and a continued model on tasks of a domain, as SciBERT does.

    python benchmarks/domain.py --models scratch=RUN general=RUN continued=RUN --task-dir SCIBERT \\
        --tasks sci-cite,citation_intent --tuning "--epochs 4 --rate 2e-4" --sweep continued:citation_intent \\
        --parallel 2 --out domain.json

Each model is fine-tuned on each task with one setting and several seeds. One model and task may be swept over SciBERT's
sixteen settings, selected on dev and reported on test.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.core.files import read_json

KEPT = (
    "protocol", "task", "metric", "mean", "spread", "seeds", "scores", "train_rows", "dev_rows", "test_rows",
    "baseline", "settings", "selection", "settings_tried", "seconds",
)  # fmt: skip


def tuned(name: str, run: Path, task: str, flags: list[str], work: Path) -> dict[str, Any]:
    """Fine-tune one model on one task; return its line of the record."""
    out = work / f"{name}-{Path(task).stem}-{len(flags)}"
    measure.run(
        measure.daybreak("evaluate", str(run), "--tasks", task, "--out", str(out), *flags), work / f"{out.name}.log"
    )
    result = read_json(out / "results.json")[0]
    line = {"model": name, **{key: result[key] for key in KEPT if key in result}}
    print(json.dumps({key: line[key] for key in ("model", "task", "protocol", "metric", "mean", "spread")}), flush=True)
    return line


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=[], help="NAME=RUN; a toy run with --short")
    parser.add_argument("--tasks", default="sci-cite,citation_intent")
    parser.add_argument("--task-dir", type=Path, help="SciBERT's data folder, or another with the tasks' files")
    parser.add_argument("--tuning", default="--epochs 4 --rate 2e-4", help="the one stated setting")
    parser.add_argument("--protocol", default="scibert")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sweep", default="", help="NAME:TASK to sweep as well")
    parser.add_argument("--parallel", type=int, default=1, help="fine-tunings at a time, one thread each")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with measure.work_folder(chosen.work) as work:
        tasks, places = chosen.tasks.split(","), ["--task-dir", str(chosen.task_dir)] if chosen.task_dir else []
        models = dict(each.split("=", 1) for each in chosen.models)
        if chosen.short:
            run = work / "toy"
            command = measure.pretrain_command("tiny", toy.toy_data(work), run, "20steps", measure.SHORT_FLAGS)
            measure.run(command, work / "log.txt")
            models, tasks, places = {"toy": str(run)}, [str(toy.toy_task(work))], []
            chosen.tuning, chosen.protocol, chosen.seeds = "--epochs 1 --rate 1e-3", "quick", 1
        if not models:
            sys.exit("Name models with --models NAME=RUN, or use --short.")
        flags = ["--protocol", chosen.protocol, "--seeds", str(chosen.seeds), *places]
        cells = [
            (name, run, task, [*flags, *shlex.split(chosen.tuning)]) for task in tasks for name, run in models.items()
        ]
        if chosen.sweep:
            name, task = chosen.sweep.split(":", 1)
            cells.append((name, models[name], task, flags))
        settings = {"tuning": chosen.tuning, "protocol": chosen.protocol, "seeds": chosen.seeds, "sweep": chosen.sweep}
        found = measure.record("domain", settings | {"models": sorted(models)})
        found["pretraining"] = {name: measure.run_facts(Path(run))["summary"] for name, run in models.items()}
        with ThreadPoolExecutor(max(1, chosen.parallel)) as pool:
            waiting = [pool.submit(tuned, name, Path(run), task, more, work) for name, run, task, more in cells]
            for line in waiting:
                found.setdefault("results", []).append(line.result())
                measure.finish(found, chosen.out)
        measure.finish(found, chosen.out)


if __name__ == "__main__":
    main()
