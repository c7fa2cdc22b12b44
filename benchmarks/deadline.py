"""Check that the report of ``daybreak run --deadline`` exists at the deadline.

    python benchmarks/deadline.py --corpus TEXT --minutes 10 --slowed 2 --out deadline.json

Each run starts from text; its deadline is the first full minute that is at least --minutes ahead. In the runs named in
--slowed, two busy processes per core start after a third of the time and stay until the end. Runs are sequential. Only
the wall clock counts, so other processes do not invalidate a run.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import measure
import toy

from daybreak.core.files import read_json
from daybreak.core.process import usable_cores
from daybreak.core.run_folder import RunFolder

ONWARD = 1 / 3
"""Share of the time after which a machine is slowed."""
CROWD = 2
"""Busy processes for each core."""


def deadline_after(minutes: float) -> datetime.datetime:
    """First full minute that is at least ``minutes`` ahead."""
    wanted = datetime.datetime.now() + datetime.timedelta(minutes=minutes)
    full = wanted.replace(second=0, microsecond=0)
    return full if full == wanted else full + datetime.timedelta(minutes=1)


def crowd() -> list[subprocess.Popen[bytes]]:
    """Busy processes that slow the machine."""
    return [measure.busy_process() for _ in range(CROWD * usable_cores())]


def one(number: int, corpus: Path, minutes: float, slowed: bool, flags: list[str], work: Path) -> dict[str, Any]:
    """Run once; return the seconds between the finished report and the deadline (negative if late)."""
    out, log, due = work / f"run-{number}", work / f"log-{number}.txt", deadline_after(minutes)
    begun = time.time()
    told = ["--corpus", str(corpus), "--deadline", f"{due:%Y-%m-%d %H:%M}", "--out", str(out), *flags]
    process = measure.start(measure.daybreak("run", *told), log)
    busy: list[subprocess.Popen[bytes]] = []
    try:
        while process.poll() is None:
            if slowed and not busy and time.time() - begun > ONWARD * (due.timestamp() - begun):
                busy = crowd()
            time.sleep(measure.POLL_SECONDS)
        ended = time.time()
    finally:
        process.kill()
        for other in busy:
            other.kill()
            other.wait()
    measure.check_ended(process, log)
    folder = RunFolder(out)
    summary = read_json(folder.summary)
    results = read_json(folder.results) if folder.results.exists() else []
    return {
        "run": number,
        "slowed": slowed,
        "given_seconds": round(due.timestamp() - begun, 1),
        "budget": read_json(folder.recipe)["budget"],
        "pretraining_seconds": summary["elapsed"],
        "loss": summary["validation"]["loss"],
        "results": [{name: item[name] for name in ("task", "model", "seeds")} for item in results],
        "report_before": round(due.timestamp() - folder.report.stat().st_mtime, 1),
        "end_before": round(due.timestamp() - ended, 1),
    }


def render(runs: list[dict[str, Any]]) -> str:
    rows = [
        [
            f"{run['run']}{' (slowed)' if run['slowed'] else ''}",
            *(f"{run[name]:.0f} s" for name in ("given_seconds", "pretraining_seconds")),
            str(sum(len(item["seeds"]) for item in run["results"])),
            f"{run['report_before']:.0f} s",
            f"{run['end_before']:.0f} s",
        ]
        for run in runs
    ]
    return measure.table(["run", "given", "pretraining", "fine-tunings", "report before", "end before"], rows)


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--corpus", type=Path, help="text; toy text with --short")
    parser.add_argument("--minutes", type=float, default=10.0, help="how far ahead, at least")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--slowed", type=int, nargs="*", default=[2], help="numbers of the runs on a slowed machine")
    parser.add_argument("--tasks", default="", help="to fine-tune on afterwards, by comma")
    parser.add_argument("--task-dir", type=Path, help="their files")
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.minutes, chosen.runs, chosen.slowed = 0.5, 1, []
    elif not chosen.corpus:
        sys.exit("Name text with --corpus, or use --short.")
    flags = f"--tokenizer.vocabulary 1024 {measure.SHORT_FLAGS}".split() if chosen.short else []
    if chosen.tasks:
        flags += ["--tasks", chosen.tasks, "--task-dir", str(chosen.task_dir.resolve())]
    settings = {name: getattr(chosen, name) for name in ("minutes", "runs", "slowed", "tasks")}
    found = measure.record("deadline", settings) | {"results": []}
    with measure.work_folder(chosen.work) as work:
        corpus = chosen.corpus.resolve() if chosen.corpus else toy.toy_text(work)
        for number in range(chosen.runs):
            run = one(number, corpus, chosen.minutes, number in chosen.slowed, flags, work)
            found["results"].append(run)
            measure.finish(found, chosen.out)
    print(render(found["results"]))


if __name__ == "__main__":
    main()
