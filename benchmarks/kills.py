"""Kill runs with kill -9 at random moments, resume them with the same command, and verify the result.

    OMP_NUM_THREADS=1 python benchmarks/kills.py --data DATA --budget 5m --kills 25 --out kills-1.json
    OMP_NUM_THREADS=1 python benchmarks/kills.py --data DATA --budget 5m --kills 25 --processes 2 --out kills-2.json
    python benchmarks/kills.py --data DATA --budget 4m --kills 0 --stop 60 --out stop.json

It checks that the result equals the replay of its final trace bit for bit (daybreak verify, with as many processes),
that kills do not stretch the budget (by an outside clock that stops while no process runs), that no line of the metrics
is lost, and what each kill costs. A run is killed at its random time, or at its first step if that is later. With
several processes, started by torchrun, either all are killed or one worker at random; the others then save a checkpoint
and exit. The time that torchrun takes to start a process is not part of the budget and is recorded separately. --stop
sends SIGSTOP to all processes in the middle of the budget and SIGCONT that many seconds later, and checks that the time
is charged and no step is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.core.files import read_json, read_json_lines
from daybreak.core.run_folder import RunFolder
from daybreak.schemas.records import tolerance

PATIENCE = 120.0
"""Seconds in which the processes that are left must have ended after one was killed."""


def kill_moments(seconds: float, kills: int, seed: int) -> list[float]:
    """Sorted random times between 10 % and 90 % of the budget, in seconds of running time."""
    chance = random.Random(seed)
    return sorted(seconds * chance.uniform(0.1, 0.9) for _ in range(kills))


def last_elapsed(run: RunFolder) -> float | None:
    """Charged time at the last step of the trace; None before the first."""
    return max((line["elapsed"] for line in read_json_lines(run.trace)), default=None)


def metric_lines(run: RunFolder) -> Counter[str]:
    """All complete lines of the metrics, including those of lost steps, independent of key order."""
    lines = [*read_json_lines(run.metrics), *read_json_lines(run.lost_metrics)]
    return Counter(json.dumps(line, sort_keys=True) for line in lines)


def cost_of_kill(run: RunFolder, running: float) -> dict[str, Any]:
    """State on disk after a kill when the processes had run for ``running`` seconds in total."""
    kept = max((read_json(path) for path in run.checkpoints.glob("step-*/progress.json")), key=lambda one: one["step"])
    trace = list(read_json_lines(run.trace))
    charged = max(line["elapsed"] for line in trace)
    return {
        "running_seconds": round(running, 3),
        "charged_seconds": round(charged, 3),
        "uncharged_seconds": round(running - charged, 3),
        "steps": len(trace),
        "kept_step": kept["step"],
        "lost_steps": sum(line["step"] >= kept["step"] for line in trace),
        "lost_seconds": round(max(0.0, charged - kept["elapsed"]), 3),
    }


def workers(torchrun: int) -> list[int]:
    """Process ids of the workers of a torchrun, in order of rank."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = re.search(r"^PPid:\t(\d+)$", (folder / "status").read_text(), re.MULTILINE)
            rank = re.search(rb"\0RANK=(\d+)\0", (folder / "environ").read_bytes())
            if parent and int(parent[1]) == torchrun and rank:
                found.append((int(rank[1]), int(folder.name)))
        except OSError:  # it has just ended
            continue
    return [process for _, process in sorted(found)]


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def all_gone(processes: list[int]) -> bool:
    """Wait until all have ended; return False if they do not."""
    until = time.monotonic() + PATIENCE
    while not all(map(is_gone, processes)):
        if time.monotonic() > until:
            return False
        time.sleep(measure.POLL_SECONDS)
    return True


class Start:
    """A running command and its start time; torchrun takes some seconds to start a process."""

    def __init__(self, command: list[str], log: Path, run: RunFolder, processes: int):
        self.run, self.before = run, last_elapsed(run)
        self.processes = processes
        self.launched = time.monotonic()
        self.process = measure.start(command, log)
        while processes > 1 and not workers(self.process.pid) and self.process.poll() is None:
            time.sleep(measure.POLL_SECONDS)
        self.begun = time.monotonic() if processes > 1 else self.launched

    def ranks(self) -> list[int]:
        return workers(self.process.pid) if self.processes > 1 else [self.process.pid]

    def wait_for_step(self, until: float) -> bool:
        """Wait until ``until`` (monotonic) and the first step; return False if the run ended."""
        while self.process.poll() is None:
            if time.monotonic() >= until and last_elapsed(self.run) != self.before:
                return True
            time.sleep(measure.POLL_SECONDS)
        return False

    def kill(self, chance: random.Random) -> tuple[str, float]:
        """Kill all processes or one worker; return which, and how long the first process (the clock) lived."""
        ranks, alone = self.ranks(), self.processes > 1 and chance.random() < 0.5
        for victim in [chance.choice(ranks)] if alone else [self.process.pid, *ranks]:
            os.kill(victim, signal.SIGKILL)
        first_left = all_gone(ranks[:1])
        ended = time.monotonic()
        if not first_left or not all_gone(ranks):
            sys.exit("A worker was killed, and the others do not end.")
        self.process.wait(PATIENCE)
        for rank in ranks:
            with contextlib.suppress(ChildProcessError):  # torchrun, where it lived, has waited for it
                os.waitpid(rank, 0)
        return "one worker" if alone else "all processes", ended - self.begun

    def stop(self, seconds: float) -> dict[str, Any]:
        """Stop all processes for ``seconds``; return what the trace shows after steps continue."""
        stopped = [self.process.pid, *self.ranks()]
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        self.before = last_elapsed(self.run)
        time.sleep(seconds)
        for process in stopped:
            os.kill(process, signal.SIGCONT)
        self.wait_for_step(time.monotonic() + 1.0)
        trace = list(read_json_lines(self.run.trace))
        gaps = [later["elapsed"] - earlier["elapsed"] for earlier, later in pairwise(trace)]
        whole = [line["step"] for line in trace] == list(range(len(trace)))
        return {"seconds": seconds, "charged_seconds": round(max(gaps), 3), "no_step_lost": whole}


def run_with_kills(
    command: list[str],
    out: Path,
    moments: list[float],
    log: Path,
    *,
    processes: int,
    stop: tuple[float, float],
    chance: random.Random,
) -> dict[str, Any]:
    """Repeat ``command``, killing it at ``moments``, until it ends by itself.

    Args:
        moments: in seconds of running time.
        stop: the moment of a SIGSTOP, and for how long; 0 seconds for none.
        chance: of which process is killed.
    """
    run, going = RunFolder(out), None
    running, launching, kills, seen_lines = 0.0, 0.0, [], Counter[str]()
    facts: dict[str, Any] = {}
    for moment, what in sorted([(moment, "kill") for moment in moments] + [(stop[0], "stop")] * (stop[1] > 0)):
        if going is None:
            going = Start(command, log, run, processes)
            launching += going.begun - going.launched
        if not going.wait_for_step(going.begun + moment - running):
            break
        if what == "stop":
            facts["stop"] = going.stop(stop[1])
            continue
        killed, lived = going.kill(chance)
        going, running = None, running + lived
        kills.append({"killed": killed, **cost_of_kill(run, running)})
        seen_lines |= metric_lines(run)
        print(
            f"killed {killed} at {running:.1f} s, step {kills[-1]['steps']}: {kills[-1]['lost_steps']} steps "
            f"({kills[-1]['lost_seconds']:.1f} s) to do again",
            flush=True,
        )
    if going is None:
        going = Start(command, log, run, processes)
        launching += going.begun - going.launched
    seen = measure.wait_for_model(going.process, out)
    measure.check_ended(going.process, log)
    if seen is not None:
        running += seen - going.begun
    return {
        **facts,
        "kills": kills,
        "outside_seconds": round(running, 3),
        "launching_seconds": round(launching, 3),
        "metric_lines_lost": sum((seen_lines - metric_lines(run)).values()),
        **measure.run_facts(out),
    }


def verify(run: Path, data: Path, log: Path, processes: int) -> dict[str, Any]:
    """Result of ``daybreak verify``, its time, and its last message without paths."""
    begun, told = time.monotonic(), log.with_name("verify.txt")
    command = measure.daybreak("verify", str(run), "--data", str(data), processes=processes)
    code = measure.start(command, told).wait()
    lines = told.read_text(encoding="utf-8", errors="replace").splitlines()
    spoken = [line for line in lines if line.startswith(("Verified", "daybreak:"))] or lines[-1:]
    said = " ".join(spoken).replace(str(run), "the run").replace(str(data), "the data")
    return {"equal": code == 0, "seconds": round(time.monotonic() - begun, 3), "said": said}


def kill_and_verify(
    recipe: str,
    data: Path,
    work: Path,
    *,
    budget: str,
    kills: int,
    seed: int = 0,
    flags: str = "",
    processes: int = 1,
    stop: float = 0.0,
) -> dict[str, Any]:
    """The whole measurement: kills, end, verification."""
    seconds = measure.budget_seconds(budget)
    out, log, chance = work / "killed", work / "log.txt", random.Random(seed + 1)
    command = measure.pretrain_command(recipe, data, out, budget, flags, processes=processes)
    moments = kill_moments(seconds, kills, seed)
    found = run_with_kills(command, out, moments, log, processes=processes, stop=(seconds / 2, stop), chance=chance)
    found["verify"] = verify(out, data, log, processes)
    allowed, summary = tolerance(seconds), found["summary"]
    found["budget_seconds"] = seconds
    found["off_by_seconds"] = round(found["outside_seconds"] - seconds, 3)
    found["uncharged_seconds"] = round(found["outside_seconds"] - summary["elapsed"], 3)
    if lost := [kill["lost_seconds"] for kill in found["kills"]]:
        found["lost_seconds_per_kill"] = {"mean": round(sum(lost) / len(lost), 3), "most": max(lost)}
    found["verdict"] = {
        "killed_as_asked": len(found["kills"]) == kills == summary["resumes"],
        "equal_to_its_replay": found["verify"]["equal"],
        "budget_held": abs(found["off_by_seconds"]) <= allowed and abs(summary["elapsed"] - seconds) <= allowed,
        "no_metric_line_lost": found["metric_lines_lost"] == 0,
    }
    if stop:
        told = found.get("stop", {"charged_seconds": 0.0, "no_step_lost": False})
        found["verdict"]["stop_charged"] = told["charged_seconds"] >= stop
        found["verdict"]["no_step_lost_by_the_stop"] = told["no_step_lost"]
    return found


def main() -> None:
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser)
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1, help="several are started through torchrun")
    parser.add_argument("--stop", type=float, default=0.0, help="seconds of SIGSTOP in the middle")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.flags = chosen.flags or measure.SHORT_FLAGS
        chosen.budget, chosen.kills, chosen.stop = "40s", 1, min(chosen.stop, 3.0)
    settings = {
        name: getattr(chosen, name) for name in ("recipe", "flags", "budget", "kills", "seed", "processes", "stop")
    }
    measure.adopt_orphans()
    found, watch = measure.record("kills", settings), measure.Watch()
    with measure.work_folder(chosen.work, fresh=True) as work:
        found |= kill_and_verify(
            chosen.recipe, toy.data_folder(chosen, work), work,
            budget=chosen.budget, kills=chosen.kills, seed=chosen.seed, flags=chosen.flags,
            processes=chosen.processes, stop=chosen.stop,
        )  # fmt: skip
    found |= watch.facts(chosen.processes * found["decisions"]["threads"])
    measure.finish(found, chosen.out)
    lost = found["summary"]["time_by_category"]["lost"]
    told = f"({found['uncharged_seconds']:+.2f} s not charged), {lost:.1f} s of work lost."
    print(f"{found['outside_seconds']:.2f} s of running for a budget of {chosen.budget} {told}")
    print(found["verify"]["said"])
    for what, holds in found["verdict"].items():
        print(f"{'yes' if holds else 'NO ':3} {what.replace('_', ' ')}")
    if found["void"]:
        print("The machine was busy: the budget's part is void.")


if __name__ == "__main__":
    main()
