"""Check that 1, 2 and 4 processes train the same model: compare the loss of every step, for AdamW and Muon.

    python benchmarks/processes.py --data DATA --out processes.json

All runs take the same steps in float32 on CPUs, one thread each: a causal stage first, a batch that grows from 6 to 18
sequences (4 processes have 4, 5, 4 and 5 of these), and sequences twice as long in the second half. Another run on 2
processes is stopped by SIGTERM half way and resumed with 1. Only the order of summation differs, so losses must agree
up to rounding. The effect of rounding alone is measured with one process and half the microbatch: it grows to about
1e-5 within 200 steps for AdamW at 3e-3, and stays near 1e-6 at 1e-3. Nothing is timed, so load does not matter.

The runs are those of daybreak pretrain, with a line in metrics.jsonl for every step and without the end of a run.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak import cli
from daybreak.commands import pretrain
from daybreak.core.files import read_json, read_json_lines, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.recipe import Recipe, load_recipe, resolved
from daybreak.training import loop
from daybreak.training.optim.muon import Muon
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.phases import SecondPhase
from daybreak.training.ramp import Ramp

TOLERANCE = 1e-5
"""Nats that the losses of a step may differ by."""
OPTIMIZERS = {
    "AdamW at 1e-3": AdamW(lr=1e-3),
    "AdamW at 3e-3": AdamW(lr=3e-3),
    "Muon at 3e-3": Muon(lr=3e-3, adam_lr=3e-3),
}
"""Muon's Newton-Schulz is in float32."""
MICROBATCH = 4
WORKER = "worker"
SHORT = "--length 32 --phase2.length 64 --model.layers 1 --model.hidden-size 32 --model.intermediate-size 32"


def recipe_of(name: str, optimizer: str, steps: int) -> Recipe:
    """The recipe, with every feature that the number of processes could affect."""
    return dataclasses.replace(
        load_recipe(name),
        optimizer=OPTIMIZERS[optimizer],
        length=64,
        batch=18,
        microbatch=MICROBATCH,
        ramp=Ramp(fraction=0.3, batch_multiple=6),
        phase2=SecondPhase(start=0.5, length=128),
        precision="float32",
        compile="off",
        budget=f"{steps}steps",
    )


# ---------------------------------------------------------------- what each process does


@contextmanager
def every_step() -> Iterator[None]:
    """Patch pretraining to log every step and to skip what follows the last one."""
    fit, finish = pretrain.fit, pretrain.finish
    pretrain.fit = lambda training, progress: loop.fit(dataclasses.replace(training, record_seconds=0.0), progress)
    pretrain.finish = lambda *_: None  # type: ignore[assignment]
    try:
        yield
    finally:
        pretrain.fit, pretrain.finish = fit, finish


# ---------------------------------------------------------------- runs, from outside


def launch(processes: int, *program: str) -> list[str]:
    """Command that starts a Python program in this many processes."""
    if processes == 1:
        return [sys.executable, *program]
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node"
    return [sys.executable, *torchrun.split(), str(processes), *program]


def command(recipe: Path, data: Path, out: Path, processes: int, flags: str = "") -> list[str]:
    """Command of one run that logs every step."""
    words = ["pretrain", str(recipe), "--data", str(data), "--out", str(out), *shlex.split(flags)]
    return launch(processes, __file__, WORKER, *words)


def stop_at(words: list[str], out: Path, step: int, log: Path) -> int:
    """Start a run and stop it at ``step``; return the step of its checkpoint."""
    run = RunFolder(out)
    process = measure.start(words, log)
    try:
        while last_step(run) < step:
            if process.poll() is not None:
                measure.check_ended(process, log)
                sys.exit(f"The run ended before step {step}, at which it was to be stopped.")
            time.sleep(measure.POLL_SECONDS)
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        raise
    saved = max((read_json(path)["step"] for path in run.checkpoints.glob("step-*/progress.json")), default=0)
    if not saved or saved != last_step(run) + 1:
        sys.exit(f"The run was stopped after step {last_step(run)}, and its checkpoint is of step {saved}.")
    return int(saved)


def last_step(run: RunFolder) -> int:
    return max((line["step"] for line in read_json_lines(run.trace)), default=-1) if run.trace.exists() else -1


def steps_of(out: Path) -> list[dict[str, Any]]:
    """Logged records of each step of a run."""
    return [line for line in read_json_lines(RunFolder(out).metrics) if line["type"] == "step"]


# ---------------------------------------------------------------- what comes out


def facts(out: Path) -> dict[str, Any]:
    """Facts of a run for the record."""
    lines = steps_of(out)
    read = [now["tokens"] - before["tokens"] for before, now in zip([{"tokens": 0}, *lines], lines)]
    decisions = read_json(RunFolder(out).decisions)
    return {
        "world_size": decisions["world_size"],
        "microbatch": decisions["microbatch"],
        "changes": decisions["changes"],
        "steps": len(lines),
        "tokens_a_step": list(dict.fromkeys(read)),
        "stages": list(dict.fromkeys(line["stage"] for line in lines)),
        "dropped": lines[-1]["dropped"],
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
    }


def apart(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> dict[str, Any]:
    """Differences between two runs, from their logged steps."""
    exact = ("step", "progress", "tokens", "targets", "stage", "learning_rate")
    same = len(left) == len(right) and all(
        one[name] == other[name] for one, other in zip(left, right) for name in exact
    )
    losses = [abs(one["loss"] - other["loss"]) for one, other in zip(left, right)]
    norms = [abs(one["gradient_norm"] / other["gradient_norm"] - 1) for one, other in zip(left, right)]
    found = {
        "same_steps": same,
        "loss": max(losses),
        "loss_at_step": left[losses.index(max(losses))]["step"],
        "loss_in_first_half": max(losses[: len(losses) // 2]),
        "gradient_norm_relative": max(norms),
    }
    return {**found, "agree": same and found["loss"] <= TOLERANCE}


def compare(
    recipe: Recipe, data: Path, work: Path, *, sizes: tuple[int, ...], stop: int, flags: str = ""
) -> dict[str, Any]:
    """Train with each number of processes of ``sizes``, and once with 2 and then 1; compare all pairs.

    ``rounding_alone`` compares two runs on one process, of which one handles half as many rows at a time.
    """
    work.mkdir(parents=True, exist_ok=True)
    file, log = work / "recipe.json", work / "log.txt"
    write_json(file, resolved(recipe))
    outs = {str(size): work / f"on-{size}" for size in sizes}
    for size in sizes:
        measure.run(command(file, data, outs[str(size)], size, flags), log)
        print(f"{size} processes: done", flush=True)
    outs["2 then 1"] = work / "on-2-then-1"
    saved = stop_at(command(file, data, outs["2 then 1"], 2, flags), outs["2 then 1"], stop, log)
    measure.run(command(file, data, outs["2 then 1"], 1, flags), log)
    print(f"2 processes, stopped at step {saved}, then 1: done", flush=True)
    half = work / "half"
    measure.run(command(file, data, half, 1, f"{flags} --microbatch {MICROBATCH // 2}"), log)
    lines = {name: steps_of(out) for name, out in outs.items()}
    names = list(outs)
    pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    return {
        "recipe": read_json(RunFolder(outs[names[0]]).recipe),
        "stopped_at": saved,
        "runs": {name: facts(out) for name, out in outs.items()},
        "pairs": {f"{one} and {other}": apart(lines[one], lines[other]) for one, other in pairs},
        "rounding_alone": apart(lines["1"], steps_of(half)),
    }


def main() -> None:
    if sys.argv[1:2] == [WORKER]:
        with every_step():
            cli.main(sys.argv[2:])
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4], help="numbers of processes beside 1")
    chosen = parser.parse_args()
    measure.use_one_thread()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if chosen.short:
        chosen.flags, chosen.sizes, chosen.steps = chosen.flags or SHORT, [2], 300
    names = ("recipe", "flags", "steps", "sizes")
    found = measure.record("processes", {name: getattr(chosen, name) for name in names} | {"tolerance": TOLERANCE})
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        for name in OPTIMIZERS:
            print(name, flush=True)
            found[name] = compare(
                recipe_of(chosen.recipe, name, chosen.steps), data, work / name,
                sizes=(1, *chosen.sizes), stop=chosen.steps // 2, flags=chosen.flags,
            )  # fmt: skip
            measure.finish(found, chosen.out)
    cases = {name: [*found[name]["pairs"].values()] for name in OPTIMIZERS}
    found["verdict"] = {name: all(each["agree"] for each in pairs) for name, pairs in cases.items()}
    measure.finish(found, chosen.out)
    rows = [
        [f"{name}: {pair}", f"{each['loss']:.2g}", str(each["loss_at_step"]), f"{each['gradient_norm_relative']:.2g}",
         "yes" if each["agree"] else "NO"]
        for name in OPTIMIZERS
        for pair, each in {**found[name]["pairs"], "rounding alone": found[name]["rounding_alone"]}.items()
    ]  # fmt: skip
    print(measure.table(["processes", "loss apart", "at step", "norm apart", "agree"], rows))


if __name__ == "__main__":
    main()
