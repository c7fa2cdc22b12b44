"""The measurements that a GPU machine is needed for, each mode one command of at most nine minutes.

    python benchmarks/gpu.py --mode measure  --out gpu.json
    python benchmarks/gpu.py --mode train    --recipe base --corpus TEXT --budget 7m --work WORK --out train.json
    python benchmarks/gpu.py --mode electra  --data WORK/data --budget 7m --work WORK --out electra.json
    python benchmarks/gpu.py --mode evaluate --task-dir GLUE --work WORK --out evaluate.json
    python benchmarks/gpu.py --mode evaluate --of electra --task-dir GLUE --work WORK --out evaluate-electra.json
    python benchmarks/gpu.py --dry-run       every mode with toy shapes, also on a CPU: shows that the script works

measure: the device against the CPU, kill -9 with resume and verify, and tokens a second beside transformers' Trainer.
train: a run of the flagship from raw text or prepared data, left in WORK/run. evaluate: fine-tunes what train left,
and the same shape from random weights. electra: a small ELECTRA (electra.py) on the same data for the same time, which
evaluate fine-tunes in the same way with --of electra. Each mode writes one JSON file that grows as it goes on, so that
a machine that is taken away keeps what was measured; no mode reaches the network. Needs torch, transformers with
accelerate, and Daybreak's other dependencies; Daybreak itself is taken from this checkout.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import device_parity
import measure
import throughput
import torch
import toy
from kills import kill_and_verify

from daybreak.base.files import read_json, read_json_lines
from daybreak.base.run_folder import RunFolder
from daybreak.recipe import load_recipe
from daybreak.training import probe

CURVE_POINTS = 300
TOY_RUN = "--model.layers 1 --model.width 32 --model.heads 2 --model.inner 64 --batch 4 --length 32"


class Deadline:
    """What is left of a command's minutes."""

    def __init__(self, minutes: float):
        self.at = time.monotonic() + 60 * minutes

    def left(self) -> float:
        return max(1.0, self.at - time.monotonic())


def measure_mode(chosen: argparse.Namespace, work: Path, deadline: Deadline, tell: Callable[..., None]) -> None:
    """Parity, then kill and verify, then throughput for as long as there is time."""
    device = probe.choose_device()
    layouts = ["mixed"] if chosen.dry_run else list(device_parity.LAYOUTS)

    def parity() -> None:
        found = device_parity.check_device(device, layouts)
        tell(parity=found)
        print(device_parity.render(found), flush=True)

    def kills() -> None:
        data, flags = chosen.data or toy.toy_data(work), TOY_RUN if chosen.dry_run else chosen.flags
        found = kill_and_verify(
            chosen.kill_recipe, data, work, budget=chosen.kill_budget, kills=chosen.kills, flags=flags
        )
        tell(kills=found)
        print(found["verify"]["said"], flush=True)

    def speed() -> None:
        cells = throughput.sweep(chosen, device, deadline.at, work / "log.txt", lambda cells: tell(cells=cells))
        print(throughput.render(cells), flush=True)

    failures: dict[str, str] = {}
    for part in (parity, kills, speed):
        try:
            part()
        except (Exception, SystemExit) as error:  # the machine is rare: what else can be measured shall be
            traceback.print_exc()
            failures[part.__name__] = f"{type(error).__name__}: {error}"
            tell(failures=failures)
    if failures:
        sys.exit(f"Failed: {', '.join(failures)}.")


def train_mode(chosen: argparse.Namespace, work: Path, deadline: Deadline, tell: Callable[..., None]) -> None:
    """Prepare where raw text is given, then one run; the record holds its curve, no text and no path."""
    log, run = work / "log.txt", work / "run"
    data = chosen.data
    if data is None:
        data = work / "data"
        vocabulary = str(load_recipe(chosen.recipe).tokenizer.vocabulary)
        text = chosen.corpus or [str(toy.toy_text(work))]
        prepare = measure.daybreak("prepare", *text, "--out", str(data), "--tokenizer.vocabulary", vocabulary)
        tell(prepare_seconds=measure.run(prepare, log, timeout=deadline.left()))
    flags = TOY_RUN if chosen.dry_run else chosen.flags
    command = measure.pretrain_command(chosen.recipe, data, run, chosen.budget, flags)
    began = measure.load()
    wall = measure.run(command, log, timeout=deadline.left())
    tell(**measure.run_facts(run), wall_seconds=wall, load_at_start=began, **curves(RunFolder(run)), **counts(run))
    print("\n".join(log.read_text(encoding="utf-8").splitlines()[-4:]))


def curves(run: RunFolder) -> dict[str, Any]:
    """Losses and speed over the run, thinned out to a few hundred points; every validation."""
    lines = list(read_json_lines(run.metrics))
    steps = [line for line in lines if line["type"] == "step"]
    return {
        "curve": steps[:: max(1, len(steps) // CURVE_POINTS)],
        "validations": [line for line in lines if line["type"] == "validation"],
    }


def counts(run: Path) -> dict[str, Any]:
    """How much text there was."""
    manifest = read_json(RunFolder(run).manifest)
    splits = {name: {key: manifest[name][key] for key in ("documents", "tokens")} for name in ("train", "heldout")}
    return {"data": {**splits, **{key: manifest[key] for key in ("characters", "vocabulary", "tokenizer", "seconds")}}}


def electra_mode(chosen: argparse.Namespace, work: Path, deadline: Deadline, tell: Callable[..., None]) -> None:
    """The published peer of low-compute GLUE, in a process of its own, left in WORK/electra."""
    data, told = chosen.data or work / "data", work / "electra.json"
    command = [sys.executable, str(Path(__file__).with_name("electra.py")), "--data", str(data)]
    command += ["--budget", chosen.budget, "--model", str(work / "electra"), "--out", str(told)]
    command += ["--short"] if chosen.dry_run else shlex.split(chosen.electra_flags)
    wall = measure.run(command, work / "log.txt", timeout=deadline.left())
    tell(electra=read_json(told), wall_seconds=wall)
    print("\n".join((work / "log.txt").read_text(encoding="utf-8").splitlines()[-1:]))


def evaluate_mode(chosen: argparse.Namespace, work: Path, deadline: Deadline, tell: Callable[..., None]) -> None:
    """Fine-tune the run, then the same shape untrained; what is done when the time is over is kept."""
    for of in ("run", "electra") if chosen.dry_run else (chosen.of,):
        evaluate_one(work / of, chosen, work, deadline, tell)


def evaluate_one(
    model: Path, chosen: argparse.Namespace, work: Path, deadline: Deadline, tell: Callable[..., None]
) -> None:
    """One model folder or run; both get the same protocol."""
    if not (model / "model").is_dir() and not (model / "config.json").is_file():
        sys.exit(f"There is no trained model in '{model}'. Give the --work that --mode train or electra was given.")
    log, results = work / "log.txt", model / "results.json"
    tasks = str(toy.toy_task(work)) if chosen.dry_run else chosen.tasks
    command = measure.daybreak("evaluate", str(model), "--tasks", tasks, "--seeds", str(chosen.seeds))
    if chosen.task_dir:
        command += ["--task-dir", str(chosen.task_dir)]
    told: dict[str, float | None] = {}
    for which, extra in (("pretrained", []), ("untrained", ["--untrained"])):
        try:
            told[which] = measure.run([*command, *extra], log, timeout=deadline.left())
        except subprocess.TimeoutExpired:
            told[which] = None
            print(f"No time left for all tasks of the {which} model.")
        tell(of=model.name, results=read_json(results) if results.exists() else [], evaluation_seconds=told)
    for result in read_json(results) if results.exists() else []:
        print(
            f"{result['task']} ({result['model']}): {result['metric']} {result['mean']:.3f} +- {result['spread']:.3f}"
        )


MODES = {"measure": measure_mode, "train": train_mode, "electra": electra_mode, "evaluate": evaluate_mode}


def parse() -> argparse.Namespace:
    parser = measure.parser(__doc__)
    parser.add_argument("--mode", choices=MODES, default="measure")
    parser.add_argument("--dry-run", action="store_true", help="every mode in turn on toy shapes; same as --short")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which nothing new is begun")
    parser.add_argument("--commit", default="", help="recorded as the commit, where the checkout has no git")
    parser.add_argument("--kill-budget", default="45s", help="measure: of the run that is killed")
    parser.add_argument("--kill-recipe", default="tiny")
    parser.add_argument("--kills", type=int, default=1)
    throughput.add_flags(parser)
    measure.add_run_flags(parser, recipe="base")
    parser.add_argument("--corpus", nargs="+", help="train: raw text, prepared first; else --data")
    parser.add_argument("--budget", default="8m", help="train: leave time for preparation and the parity gate")
    parser.add_argument("--electra-flags", default="", help="more flags for electra.py, in one string")
    parser.add_argument("--of", choices=("run", "electra"), default="run", help="evaluate: which was trained")
    parser.add_argument("--tasks", default="glue5", help="evaluate")
    parser.add_argument("--task-dir", type=Path, help="evaluate")
    parser.add_argument("--seeds", type=int, default=3, help="evaluate")
    chosen = parser.parse_args()
    chosen.dry_run = chosen.dry_run or chosen.short
    if chosen.dry_run:
        measure.use_one_thread()
        throughput.shorten(chosen)
        chosen.recipe, chosen.budget, chosen.kill_budget, chosen.seeds = "tiny", "30steps", "20s", 1
    elif not torch.cuda.is_available():
        parser.error("there is no GPU here that torch can use; --dry-run tries every mode on the CPU")
    elif chosen.mode == "train" and not (chosen.data or chosen.corpus):
        parser.error("--mode train needs --corpus or --data")
    elif chosen.mode == "electra" and not chosen.data:
        parser.error("--mode electra needs --data, the folder that the flagship was trained on")
    elif chosen.mode != "measure" and not chosen.work:
        parser.error(f"--mode {chosen.mode} needs --work, the folder in which train leaves its run for evaluate")
    return chosen


def main() -> None:
    chosen = parse()
    throughput.settle(chosen, probe.choose_device())
    settings = {
        name: getattr(chosen, name)
        for name in "mode dry_run recipe flags budget kill_recipe kill_budget kills electra_flags of tasks seeds "
        "recipes lengths vocabularies step_tokens seconds turns".split()
    }
    found = measure.record("gpu", settings)
    found["commit"] = chosen.commit or found["commit"]

    def tell(**facts: Any) -> None:
        found.update(facts)
        measure.finish(found, chosen.out)

    with measure.work_folder(chosen.work) as work:
        for mode in MODES if chosen.dry_run else [chosen.mode]:
            print(f"== {mode}", flush=True)
            MODES[mode](chosen, work, Deadline(chosen.minutes), tell)


if __name__ == "__main__":
    main()
