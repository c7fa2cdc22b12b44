"""Measure the time to the help text, to the first training step and to the first step after a resume.

    python benchmarks/startup.py --data DATA --recipe mini --turns 5 --out startup.json

Daybreak is timed from outside, from before its process starts, in turns. Its first step is done when its trace has a
second line, that of a resumed run when the trace has two more lines; the run is then stopped. The comparison is
reference.py: the imports of transformers' Trainer, the same prepared data, one step of as many tokens; it measures its
own time from the start of its process to the end of the step. Nothing is downloaded. The first turn, with a cold file
cache, is excluded. Daybreak's time includes its measurements of the machine before the first step.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measure
import toy
from processes import last_step

from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.recipe import load_recipe

BUDGET = "10m"
"""Of runs that are stopped after their first step."""


class Started:
    """One run of Daybreak that is stopped after its first step and then resumed."""

    def __init__(self, chosen: argparse.Namespace, data: Path, out: Path, log: Path):
        self._words = measure.pretrain_command(chosen.recipe, data, out, BUDGET, chosen.flags)
        self._run, self._log = RunFolder(out), log

    def begin(self) -> float:
        """Seconds until the first step of a new or resumed run; the run is then stopped."""
        before = last_step(self._run)
        begun = time.monotonic()
        process = measure.start(self._words, self._log)
        try:
            while last_step(self._run) < before + 2:  # a line is written before its step: the next one tells it is over
                if process.poll() is not None:
                    measure.check_ended(process, self._log)
                    sys.exit("The run ended before its first step.")
                time.sleep(measure.POLL_SECONDS)
            seconds = time.monotonic() - begun
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            process.kill()
            raise
        return seconds


def turn(chosen: argparse.Namespace, data: Path, work: Path, number: int) -> dict[str, float]:
    """One measurement of each, in alternating order."""
    log, place = work / "log.txt", work / f"turn-{number}"
    ours = Started(chosen, data, place, log)

    def trainer() -> float:
        words = [sys.executable, str(Path(__file__).with_name("reference.py")), "--data", str(data)]
        words += ["--recipe", chosen.recipe, "--budget", BUDGET, "--steps", "1", "--marks", "0"]
        told = work / f"trainer-{number}.json"
        measure.run([*words, "--length", str(chosen.length), "--batch", str(chosen.batch), "--out", str(told)], log)
        return float(read_json(told)["elapsed"])

    sides = [
        ("daybreak --help", lambda: measure.run(measure.daybreak("--help"), log)),
        ("transformers Trainer, start to first step", trainer),
        ("daybreak pretrain, start to first step", ours.begin),
    ]
    found = {name: call() for name, call in (sides if number % 2 else sides[::-1])}
    return {**found, "daybreak pretrain, resume to first step": ours.begin()}


def summarise(turns: list[dict[str, float]]) -> dict[str, Any]:
    """Medians and spread over the turns."""
    found = {}
    for name in turns[0]:
        seconds = [each[name] for each in turns]
        spread = measure.mean_and_spread(seconds)[1]
        found[name] = {
            "median": statistics.median(seconds), "spread": spread, "least": min(seconds), "most": max(seconds),
        }  # fmt: skip
    return found


def main() -> None:
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser)
    parser.add_argument("--turns", type=int, default=5, help="that count; one more goes before")
    chosen = parser.parse_args()
    recipe = load_recipe(chosen.recipe)
    chosen.length, chosen.batch = recipe.length, recipe.batch
    if chosen.short:
        measure.use_one_thread()
        chosen.turns, chosen.length, chosen.batch = 1, 32, 4
        chosen.flags = chosen.flags or f"{measure.SHORT_FLAGS} --length 32"
    found = measure.record("startup", {name: getattr(chosen, name) for name in ("recipe", "flags", "turns")})
    found |= {"environment": measure.thread_settings(), "turns": []}
    watch = measure.Watch()
    with measure.work_folder(chosen.work) as work:
        data = toy.data_folder(chosen, work)
        for number in range(0 if chosen.short else -1, chosen.turns):
            seconds = turn(chosen, data, work, number)
            if number < 0:
                continue
            found["turns"].append(seconds)
            found["summary"] = summarise(found["turns"])
            measure.finish(found, None)
            found |= watch.facts(found["environment"]["threads"])
            measure.finish(found, chosen.out)
    rows = [
        [name, *(f"{seen[column]:.2f}" for column in ("median", "spread", "least", "most"))]
        for name, seen in found["summary"].items()
    ]
    print(measure.table(["seconds", "median", "spread", "least", "most"], rows))
    if found["void"]:
        print("The machine was busy: void.")


if __name__ == "__main__":
    main()
