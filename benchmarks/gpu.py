"""Run all measurements that need a GPU in one call: make gpu, or on a machine without make

    python benchmarks/gpu.py --work WORK --minutes 60 [--corpus TEXT ...] [--task-dir GLUE] [--wheels FOLDER]
    python benchmarks/gpu.py --dry-run --work WORK        the same stages on a CPU with tiny shapes (make gpu-dry)

Stages run in order of importance; --only takes a list of them.

    parity      the device against the CPU and stock transformers, then some steps of every recipe
    flagship    base for six minutes and a half, from raw text: compiled, in half precision
    speed       tokens a second beside transformers' Trainer, at 128 and 512 tokens
    glue5       its five tasks, and those of the same shape untrained
    kills       kill -9 of a compiled run, resume, and a replay that must be equal bit for bit
    crammed     Cramming's own recipe for half an hour
    sizes       tokens a second of the smaller flagships

WORK/gpu.json is the record. It is written during and after each stage. When the time is over, the running stage is
stopped (a run saves a checkpoint), the record says so, and the exit status is 0. The same call again runs the missing
stages and resumes an interrupted run. A stage that fails is recorded with its error, the next one starts, and the exit
status is 1.

It needs Python 3.11, torch, transformers, scikit-learn (with scipy and joblib) and psutil, and uses Daybreak from this
checkout; the Trainer of the speed stages also needs accelerate. Packages of the command line (tyro and others) are used
if they are installed, or installed from --wheels; otherwise bare.py replaces them. Without
--corpus the text is the prose of installed Python packages. No stage uses the network.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # a bare machine has no Daybreak installed
if find_spec("torch") is None:
    print(
        f"{sys.executable} has no torch. Name a Python that has it: make gpu TORCH_PYTHON=python3.12.", file=sys.stderr
    )
    sys.exit(2)

import measure
import torch
import toy

from daybreak.core.files import read_json, read_json_lines
from daybreak.core.process import usable_cores
from daybreak.core.run_folder import RunFolder
from daybreak.training.hardware import probe

CURVE_POINTS = 300
GRACE = 30.0
"""Seconds in which what was asked to leave must have saved."""
STEP_TOKENS = ((100.0, 65_536), (40.0, 32_768), (20.0, 16_384), (0.0, 8_192))
"""Memory of the device in GiB, and the tokens of a step of base that fit into more than it.

The models of transformers keep the logits of all positions, and the other variants wait with their weights in memory.
"""
WORKER_GIB = 4.0
"""Memory of one fine-tuning of base, with its CUDA context."""
TOY_SHAPE = "--model.layers 1 --model.hidden-size 32 --model.heads 2 --model.intermediate-size 64"
TOY_RUN = f"{TOY_SHAPE} --batch 4 --length 32"


class OutOfTime(Exception):
    """The time of the call is over."""


@dataclass
class Call:
    """One call of this script: its arguments, remaining time and record."""

    chosen: argparse.Namespace
    work: Path
    found: dict[str, Any]
    until: float
    """``time.monotonic()`` at which everything must have ended."""
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.work / "log.txt"

    @property
    def dry(self) -> bool:
        return bool(self.chosen.dry_run)

    def left(self) -> float:
        return self.until - time.monotonic() - GRACE

    def tell(self, stage: str, **facts: Any) -> None:
        """Add to a stage's part of the record and write the record."""
        self.found["stages"].setdefault(stage, {}).update(facts)
        measure.finish(self.found, self.chosen.out)

    def run(self, command: list[str], log: Path | None = None) -> float:
        """Run a command and return its seconds; stop it when the time is over.

        Args:
            log: where its output goes, by default that of the call.

        Raises:
            OutOfTime: it could not end in time.
        """
        if self.left() <= 0:
            raise OutOfTime
        begun = time.monotonic()
        log = log or self.log
        process = measure.start(command, log)
        try:
            process.wait(self.left())
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            raise OutOfTime from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        measure.check_ended(process, log)
        return time.monotonic() - begun


def data_of(call: Call) -> Path:
    """Prepared data: --data, or --corpus or the prose of Python packages, prepared once."""
    if call.chosen.data:
        return Path(call.chosen.data)
    data = call.work / "data"
    if (data / "manifest.json").exists():
        return data
    vocabulary = 512 if call.dry else 32_768
    text = [str(one) for one in call.chosen.corpus or [corpus_of(call)]]
    words = [*text, "--out", str(data), "--split-sentences", "--tokenizer.vocabulary", str(vocabulary)]
    call.tell("data", seconds=call.run(measure.daybreak("prepare", *words)))
    return data


def corpus_of(call: Call) -> Path:
    """Text of installed Python packages."""
    if call.dry:
        return toy.toy_text(call.work)
    from daybreak.data.demo_corpus.docstrings import CORPUS, write_corpus

    write_corpus(call.work / "corpus")
    return call.work / "corpus" / CORPUS


def memory(call: Call) -> float:
    """Memory of the device in GiB, from the head of the record; infinite without a GPU."""
    return float(call.found["machine"].get("accelerator_gib", float("inf")))


def flags_of(call: Call) -> str:
    return TOY_RUN if call.dry else str(call.chosen.flags)


# ---------------------------------------------------------------- stages


def parity(call: Call) -> None:
    """Compare the device with the CPU; then run a few steps of every recipe. What an earlier call has stays."""
    import device_parity

    found = call.found["stages"].get("parity", {})
    if not found.get("passed"):
        found = measured(call, "device_parity.py")
        call.tell("parity", **{name: found[name] for name in ("device", "float32_products", "passed", "findings")})
        print(device_parity.render(found), flush=True)
    recipes(call)
    if not found["passed"]:
        raise RuntimeError("the device gives other numbers than the CPU")


def recipes(call: Call) -> None:
    """Seconds of a step of every shipped recipe with a small batch; errors are recorded.

    Several run at a time, because most of each is the start of a process; their seconds are upper bounds.
    """
    from daybreak.recipe import recipe_names

    data, before = data_of(call), call.found["stages"].get("parity", {}).get("recipes", {})
    steps = {name: step for name, step in before.items() if "error" not in step}
    names = [name for name in (["tiny", "bert-2018"] if call.dry else recipe_names()) if name not in steps]
    beside = 1 if call.dry else max(1, min(8, usable_cores() // 2, int(memory(call) / WORKER_GIB)))

    def one(name: str) -> dict[str, Any]:
        try:
            return measured(call, "recipe_step.py", "--recipe", name, "--data", str(data), label=f"step-{name}")
        except SystemExit as error:
            print(error, flush=True)
            return {"error": str(error)[-2000:]}

    with ThreadPoolExecutor(beside) as pool:
        for name, step in zip(names, pool.map(one, names), strict=True):
            steps[name] = step
            call.tell("parity", recipes=steps)
    if failed := [name for name, one in steps.items() if "error" in one]:
        raise RuntimeError(f"no step of {', '.join(failed)}")


def measured(call: Call, script: str, *arguments: str, label: str = "") -> dict[str, Any]:
    """Run another script of this folder and return its record.

    It has a process of its own: a fault of the device spoils only that, and its memory is free afterwards.

    Args:
        label: of its files, the record and what it prints; by default the name of the script.
    """
    out = call.work / f"{label or Path(script).stem}.json"
    out.unlink(missing_ok=True)
    short = ["--short"] if call.dry else []
    command = [sys.executable, str(Path(__file__).with_name(script)), "--out", str(out), *arguments, *short]
    call.run(command, out.with_suffix(".txt"))
    found: dict[str, Any] = read_json(out)
    return found


def pretrained(call: Call, stage: str, recipe: str, budget: str, flags: str) -> None:
    """One run in WORK/STAGE, resumed if it was interrupted; its curve and facts without text or paths."""
    data, out = data_of(call), call.work / stage
    wall = call.run(measure.pretrain_command(recipe, data, out, budget, flags))
    facts = measure.run_facts(out)
    call.tell(stage, **facts, wall_seconds=wall, **curves(RunFolder(out)), **counts(out))
    if not facts["summary"]["parity"]["passed"]:
        raise RuntimeError("the export did not pass its parity check")


def flagship(call: Call) -> None:
    pretrained(call, "flagship", call.chosen.recipe, call.chosen.budget, flags_of(call))


def crammed(call: Call) -> None:
    flags = f"{TOY_SHAPE} --batch 4 --length 32 --microbatch 4" if call.dry else ""
    pretrained(call, "crammed", "crammed", "20steps" if call.dry else "30m", flags)


def curves(run: RunFolder) -> dict[str, Any]:
    """Losses and speed along the run, thinned to a few hundred points, and every validation."""
    lines = list(read_json_lines(run.metrics))
    steps = [line for line in lines if line["type"] == "step"]
    return {
        "curve": steps[:: max(1, len(steps) // CURVE_POINTS)],
        "validations": [line for line in lines if line["type"] == "validation"],
    }


def counts(run: Path) -> dict[str, Any]:
    """Size of the text."""
    manifest = read_json(RunFolder(run).manifest)
    splits = {name: {key: manifest[name][key] for key in ("documents", "tokens")} for name in ("train", "heldout")}
    return {"data": {**splits, **{key: manifest[key] for key in ("characters", "vocabulary", "tokenizer", "seconds")}}}


def glue5(call: Call) -> None:
    """Fine-tune the flagship and the same shape untrained; finished cells are kept."""
    run = call.work / "flagship"
    if not (run / "model").is_dir():
        raise RuntimeError("there is no flagship yet")
    tasks = str(toy.toy_task(call.work)) if call.dry else call.chosen.tasks
    command = measure.daybreak("evaluate", str(run), "--tasks", tasks, "--seeds", str(call.chosen.seeds))
    command += ["--task-dir", str(call.chosen.task_dir)] if call.chosen.task_dir else []
    command += [] if call.dry else ["--workers", str(min(call.chosen.workers, max(1, int(memory(call) / WORKER_GIB))))]
    for which, extra in (("pretrained", []), ("untrained", ["--untrained"])):
        try:
            seconds = call.run([*command, *extra])
        finally:  # the tasks that ended before the time was over
            if (run / "results.json").exists():
                call.tell("glue5", results=read_json(run / "results.json"))
        call.tell("glue5", **{f"{which}_seconds": seconds})


def swept(call: Call, stage: str, names: str, lengths: str, step_tokens: int) -> None:
    import throughput

    chosen = argparse.Namespace(data=None, **dict.fromkeys(throughput.DEFAULTS["cuda"]))
    if call.dry:
        throughput.shorten(chosen)
        chosen.vocabularies = "512"
    else:
        chosen.recipes, chosen.lengths, chosen.step_tokens = names, lengths, step_tokens
    before = call.found["stages"].get(stage, {}).get("cells", [])
    cells = throughput.sweep(
        chosen, probe.choose_device(), call.until - GRACE, call.log, lambda cells: call.tell(stage, cells=cells), before
    )
    print(throughput.render(cells), flush=True)
    wanted = len(chosen.recipes.split(",")) * len(chosen.lengths.split(","))
    if len([cell for cell in cells if cell["complete"]]) < wanted:
        raise OutOfTime
    if failed := failures(cells):
        raise RuntimeError(f"no speed of {', '.join(failed)}")


def failures(cells: list[dict[str, Any]]) -> list[str]:
    """Variants of Daybreak that failed; a peer may lack a package and is recorded as failed only."""
    failed = {name for cell in cells for name, one in cell["variants"].items() if "failed" in one}
    return sorted(name for name in failed if name.startswith(("daybreak, ", "products, ")))


def speed(call: Call) -> None:
    # The whole step is one microbatch, on both sides.
    swept(
        call,
        "speed",
        "base",
        "128,512",
        step_tokens=next(tokens for least, tokens in STEP_TOKENS if memory(call) > least),
    )


def sizes(call: Call) -> None:
    swept(call, "sizes", "small,mini,tiny", "128", step_tokens=32 * 128)


def kills(call: Call) -> None:
    """Run the kill test, started again by every call."""
    import shutil

    from kills import kill_and_verify

    data, folder = data_of(call), call.work / "kills"
    seconds = measure.budget_seconds(call.chosen.kill_budget)
    if call.left() < 3 * seconds:  # the run, its export, its replay
        raise OutOfTime
    shutil.rmtree(folder, ignore_errors=True)
    flags = TOY_RUN if call.dry else "--compile on"
    found = kill_and_verify("tiny", data, folder, budget=call.chosen.kill_budget, kills=1, flags=flags)
    call.tell("kills", **found)
    if not found["verdict"]["equal_to_its_replay"]:
        raise RuntimeError("the run is not equal to its replay")
    if not any(kill["kept_step"] for kill in found["kills"]):
        raise RuntimeError("the run was killed before its first checkpoint: repeat with a longer --kill-budget")


STAGES: dict[str, Callable[[Call], None]] = {
    "parity": parity, "flagship": flagship, "speed": speed, "glue5": glue5, "kills": kills, "crammed": crammed,
    "sizes": sizes,
}  # fmt: skip


def perform(call: Call, stages: list[str]) -> int:
    """Run every unfinished stage until the time is over; return the exit status."""
    failed = False
    for name in stages:
        if call.found["stages"].get(name, {}).get("state") == "done":
            print(f"== {name}: done before", flush=True)
            continue
        if name == "glue5" and not (call.dry or call.chosen.task_dir):
            call.tell(name, state="left out: no --task-dir")
            continue
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        try:
            if call.left() <= 0:
                raise OutOfTime
            STAGES[name](call)
        except OutOfTime:
            call.tell(name, state="out of time")
            print(f"The time is over in {name}; the same call goes on from here.", flush=True)
            break
        except (Exception, SystemExit) as error:  # the machine is rare: what else can be measured shall be
            traceback.print_exc()
            call.tell(name, state="failed", error=f"{type(error).__name__}: {error}"[:2000])
            failed = True
        else:
            call.tell(name, state="done", error=None, stage_seconds=round(time.monotonic() - begun, 1))
    return 1 if failed else 0


def install(wheels: Path, work: Path) -> None:
    """Install missing packages from a folder of wheels."""
    site = work / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(wheels), "--target", str(site)]
    for module, package in {**NEEDED, **OPTIONAL}.items():
        if find_spec(module) is None:  # one by one: the folder may hold some of them only
            subprocess.run([*command, "--no-deps", package])
    sys.path.append(str(site))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(site)]))


NEEDED = {"psutil": "psutil", "scipy": "scipy", "sklearn": "scikit-learn", "joblib": "joblib"}
"""Modules that the stages import beside torch and transformers, and the packages that hold them."""
OPTIONAL = {
    "tyro": "tyro", "docstring_parser": "docstring_parser", "typeguard": "typeguard", "zstandard": "zstandard",
    "plotly": "plotly", "narwhals": "narwhals", "threadpoolctl": "threadpoolctl",
}  # fmt: skip
"""Modules of the command line and the report, and what they and NEEDED import in turn."""


def refuse_absent() -> None:
    """Exit if a package is missing without which no stage can run."""
    if absent := [package for module, package in NEEDED.items() if find_spec(module) is None]:
        sys.exit(f"This Python lacks {', '.join(absent)}. Install what is missing, or name a folder with --wheels.")


def parse() -> argparse.Namespace:
    parser = measure.parser(__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes, also on a CPU; same as --short")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which the call ends, whatever is running")
    parser.add_argument("--only", default=",".join(STAGES), help="stages, with commas between")
    parser.add_argument("--commit", default="", help="recorded as the commit, where the checkout has no git")
    measure.add_run_flags(parser, recipe="base")
    parser.add_argument("--corpus", nargs="+", help="raw text, prepared first; else --data, or installed packages")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels of missing packages")
    parser.add_argument("--budget", default="390s", help="of the flagship")
    parser.add_argument("--kill-budget", default="150s", help="of the run that is killed")
    parser.add_argument("--tasks", default="glue5")
    parser.add_argument("--task-dir", type=Path, help="files of the tasks; without them glue5 is left out")
    parser.add_argument("--seeds", type=int, default=3, help="of each fine-tuning")
    parser.add_argument("--workers", type=int, default=4, help="fine-tunings side by side, which launch small kernels")
    chosen = parser.parse_args()
    chosen.dry_run = chosen.dry_run or chosen.short
    if strange := set(chosen.only.split(",")) - STAGES.keys():
        parser.error(f"there is no stage {', '.join(sorted(strange))}")
    if chosen.dry_run:
        measure.use_one_thread()
        chosen.recipe, chosen.budget, chosen.kill_budget, chosen.seeds = "tiny", "30steps", "60s", 1
    elif not torch.cuda.is_available():
        parser.error("there is no GPU here that torch can use; --dry-run tries every stage on the CPU")
    elif not chosen.work:
        parser.error("name a folder with --work: the record and the runs stay there for a second call")
    return chosen


def main() -> None:
    begun = time.monotonic()
    chosen = parse()
    with measure.work_folder(chosen.work) as work:
        chosen.out = chosen.out or work / "gpu.json"
        if chosen.wheels:
            install(chosen.wheels, work)
        refuse_absent()
        settings = {
            name: getattr(chosen, name) for name in "dry_run recipe flags budget kill_budget tasks seeds".split()
        }
        found = measure.record("gpu", settings)
        found["commit"] = chosen.commit or found["commit"]
        found["stages"] = read_json(chosen.out)["stages"] if chosen.out.exists() else {}
        call = Call(chosen, work, found, begun + 60 * chosen.minutes)
        status = perform(call, [name for name in STAGES if name in chosen.only.split(",")])
        states = {name: call.found["stages"].get(name, {}).get("state", "not begun") for name in STAGES}
        print("\n".join(f"{name:10} {state}" for name, state in states.items()))
    sys.exit(status)


if __name__ == "__main__":
    main()
