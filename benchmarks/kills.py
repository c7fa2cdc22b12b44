"""Does a run survive kill -9? It is killed at random moments and given the same command again, then replayed whole.

    python benchmarks/kills.py --data DATA --out kills.json

Shown is that the weights at the end equal those of one unbroken replay of the recorded trace byte for byte, that the
kills did not stretch the budget (a clock outside, stopped while no process runs), that no line of the metrics was
lost, and what each kill cost. A process is killed at its moment, or at its first step where that comes later.
"""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import measure
import toy
from safetensors.torch import load_file

from daybreak.base.files import read_json, read_json_lines
from daybreak.base.run_folder import RunFolder


def kill_moments(seconds: float, kills: int, seed: int) -> list[float]:
    """Sorted random moments between 10 % and 90 % of the budget, in seconds of running time."""
    chance = random.Random(seed)
    return sorted(seconds * chance.uniform(0.1, 0.9) for _ in range(kills))


def last_elapsed(run: RunFolder) -> float | None:
    """The charged time at the last step of the trace, or None before the first."""
    return max((line["elapsed"] for line in read_json_lines(run.trace)), default=None)


def metric_lines(run: RunFolder) -> Counter[str]:
    """Every complete line of the metrics, those of lost steps too, whatever the order of their keys."""
    lines = [*read_json_lines(run.metrics), *read_json_lines(run.lost_metrics)]
    return Counter(json.dumps(line, sort_keys=True) for line in lines)


def cost_of_kill(run: RunFolder, running: float) -> dict[str, Any]:
    """What is on disk after a kill that came when processes had run for ``running`` seconds in all."""
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
        "lost_seconds": round(charged - kept["elapsed"], 3),
    }


def kill_at(process: subprocess.Popen[bytes], run: RunFolder, wait: float) -> bool:
    """Kill after ``wait`` seconds, or at the first step of this process; False when it ended by itself."""
    before = last_elapsed(run)
    until = time.monotonic() + wait
    while process.poll() is None:
        if time.monotonic() >= until and last_elapsed(run) != before:
            process.send_signal(signal.SIGKILL)
            return process.wait() == -signal.SIGKILL
        time.sleep(measure.POLL_SECONDS)
    return False


def run_with_kills(command: list[str], out: Path, moments: list[float], log: Path) -> dict[str, Any]:
    """Give ``command`` again and again, killing it at ``moments``, until it has ended."""
    run = RunFolder(out)
    running, kills = 0.0, []
    seen_lines: Counter[str] = Counter()
    for moment in moments:
        begun = time.monotonic()
        process = measure.start(command, log)
        killed = kill_at(process, run, moment - running)
        if not killed:
            measure.check_ended(process, log)
            break
        running += time.monotonic() - begun
        kills.append(cost_of_kill(run, running))
        seen_lines |= metric_lines(run)
        print(
            f"killed at {running:.1f} s, step {kills[-1]['steps']}: {kills[-1]['lost_steps']} steps "
            f"({kills[-1]['lost_seconds']:.1f} s) to do again",
            flush=True,
        )
    begun = time.monotonic()
    process = measure.start(command, log)
    seen = measure.wait_for_model(process, out)
    measure.check_ended(process, log)
    if seen is not None:
        running += seen - begun
    lost_lines = seen_lines - metric_lines(run)
    return {
        "kills": kills,
        "outside_seconds": round(running, 3),
        "metric_lines_lost": sum(lost_lines.values()),
        **measure.run_facts(out),
    }


def compare_weights(left: Path, right: Path) -> dict[str, Any]:
    """Two model folders: the same bytes, or how far apart the weights are."""
    files = [folder / "model.safetensors" for folder in (left, right)]
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    ours, theirs = map(load_file, files)
    apart = {name: (ours[name] - theirs[name]).abs().max().item() for name in ours}
    worst = max(apart, key=lambda name: apart[name])
    return {
        "equal": hashes[0] == hashes[1],
        "sha256": hashes,
        "tensors": len(apart),
        "tensors_that_differ": sum(value > 0 for value in apart.values()),
        "largest_difference": apart[worst],
        "largest_weight": max(tensor.abs().max().item() for tensor in ours.values()),
        "where": worst if apart[worst] else None,
    }


def kill_and_replay(
    recipe: str, data: Path, work: Path, *, budget: str, kills: int, seed: int = 0, flags: str = ""
) -> dict[str, Any]:
    """The whole measurement: kills, end, replay in a fresh folder, comparison."""
    seconds = measure.budget_seconds(budget)
    out, again, log = work / "killed", work / "replayed", work / "log.txt"
    command = measure.pretrain_command(recipe, data, out, budget, flags)
    found = run_with_kills(command, out, kill_moments(seconds, kills, seed), log)
    replay = measure.daybreak("pretrain", "--replay", str(out), "--data", str(data), "--out", str(again))
    found["replay_seconds"] = round(measure.run(replay, log), 3)
    found["weights"] = compare_weights(out / "model", again / "model")
    allowed, summary = measure.tolerance(seconds), found["summary"]
    found["budget_seconds"] = seconds
    found["off_by_seconds"] = round(found["outside_seconds"] - seconds, 3)
    found["uncharged_seconds"] = round(found["outside_seconds"] - summary["elapsed"], 3)
    found["verdict"] = {
        "killed_as_asked": len(found["kills"]) == kills == summary["resumes"],
        "weights_equal_replay": found["weights"]["equal"],
        "budget_held": abs(found["off_by_seconds"]) <= allowed and abs(summary["elapsed"] - seconds) <= allowed,
        "no_metric_line_lost": found["metric_lines_lost"] == 0,
    }
    return found


def main() -> None:
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser)
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.flags = chosen.flags or measure.SHORT_FLAGS
        chosen.budget, chosen.kills = "25s", 1
    settings = {name: getattr(chosen, name) for name in ("recipe", "flags", "budget", "kills", "seed")}
    found = measure.record("kills", settings)
    with measure.work_folder(chosen.work) as work:
        found |= kill_and_replay(
            chosen.recipe, toy.data_folder(chosen, work), work,
            budget=chosen.budget, kills=chosen.kills, seed=chosen.seed, flags=chosen.flags,
        )  # fmt: skip
    measure.finish(found, chosen.out)
    found["void"] = measure.is_busy(found["load_before"], found["load_after"])
    measure.finish(found, chosen.out)
    print(
        f"{found['outside_seconds']:.2f} s of running for a budget of {chosen.budget} "
        f"({found['uncharged_seconds']:+.2f} s not charged), {found['summary']['spent']['lost']:.1f} s of work lost."
    )
    for what, holds in found["verdict"].items():
        print(f"{'yes' if holds else 'NO ':3} {what.replace('_', ' ')}")
    if found["void"]:
        print("The machine was busy with something else: the budget's part is void.")


if __name__ == "__main__":
    main()
