"""Measure the time of a run outside training: monitors, checkpoints, the shared clock and waiting for data.

    python benchmarks/overheads.py RUN --out overheads.json
    python benchmarks/overheads.py --data DATA --recipe tiny --budget 2m --out overheads.json

The fractions refer to the time charged to the run, from the start of its process to the exported model, as summary.json
reports it. Each should be under 1 %. Without RUN a new run is trained. The start, the validations and the time lost by
kills are reported as well; communication is the time in which a process waits for others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import measure
import toy

LIMIT = 0.01
"""Of the uses in WATCHED."""
WATCHED = ("monitor", "checkpoint", "clock", "data")
TOLD = ("start", "train", "communicate", "validate", "export", "lost")


def shares(summary: dict[str, Any]) -> dict[str, float]:
    """Fraction of the charged wall time by category."""
    return {use: summary["time_by_category"].get(use, 0.0) / summary["elapsed"] for use in (*WATCHED, *TOLD)}


def verdict(found: dict[str, float]) -> dict[str, bool]:
    return {f"{use}_under_limit": found[use] < LIMIT for use in WATCHED}


def main() -> None:
    parser = measure.parser(__doc__)
    measure.add_run_flags(parser)
    parser.add_argument("run", nargs="?", type=Path, help="a finished run; without it one is trained")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--processes", type=int, default=1, help="several are started through torchrun")
    chosen = parser.parse_args()
    if chosen.short:
        measure.use_one_thread()
        chosen.flags, chosen.budget = chosen.flags or measure.SHORT_FLAGS, "40steps"
    settings = {name: getattr(chosen, name) for name in ("recipe", "flags", "budget", "processes")}
    found = measure.record("overheads", settings if chosen.run is None else {})
    with measure.work_folder(chosen.work) as work:
        run = chosen.run
        if run is None:
            data, run, log = toy.data_folder(chosen, work), work / "run", work / "log.txt"
            command = measure.pretrain_command(
                chosen.recipe, data, run, chosen.budget, chosen.flags, processes=chosen.processes
            )
            measure.run(command, log)
        found |= measure.run_facts(run)
    found["shares"] = shares(found["summary"])
    found["verdict"] = verdict(found["shares"])
    measure.finish(found, chosen.out)
    rows = [(use, f"{share:.2%}", "under 1 %" if use in WATCHED else "") for use, share in found["shares"].items()]
    print(measure.table(("use", "share of wall time", "asked"), rows))
    for what, holds in found["verdict"].items():
        print(f"{'yes' if holds else 'NO ':3} {what.replace('_', ' ')}")


if __name__ == "__main__":
    main()
