"""Load of other processes on this machine, which can invalidate a measurement."""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from daybreak.core.files import read_json_lines
from daybreak.schemas.studies import MachineLoad

BUSY = 0.5
"""A one-minute load this far above the number of cores invalidates a measurement (RULES.md)."""
QUIET = 0.1
"""Cores: other processes below this use do not disturb, and a high load comes from the measured process itself."""


def load() -> list[float]:
    """Mean number of busy processes over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def busy_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Processor seconds of all processes since the machine started, on the cores that this process may use.

    None if the system does not report it.
    """
    try:
        allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        ticks_used = 0
        for line in stat.read_text(encoding="ascii").splitlines():
            name, *ticks = line.split()
            if name in allowed:
                # user nice system idle iowait irq softirq ... (proc(5)); time as a guest is within that of users.
                user, nice, system, _, _, irq, softirq = map(int, ticks[:7])
                ticks_used += user + nice + system + irq + softirq
        return ticks_used / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def own_seconds() -> float:
    """Processor seconds of this process and of all its ended children."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


class OtherProcesses:
    """Measures the processor use of other processes (not this one and its children), from its creation on."""

    def __init__(self) -> None:
        self._begun, self._busy, self._own = time.monotonic(), busy_seconds(), own_seconds()

    def cores(self) -> float | None:
        """Average number of cores that other processes used; None if the system does not report it."""
        now = busy_seconds()
        if self._busy is None or now is None:
            return None
        used = max(0.0, now - self._busy - (own_seconds() - self._own))
        return round(used / (time.monotonic() - self._begun), 3)


def why_void(turn: MachineLoad, *, cores: int, threads: int) -> str:
    """Reason why a measurement with ``threads`` threads is invalid; empty if it is valid.

    The load includes the measured process itself. Its threads stay within the cores, so only other processes raise the
    load above cores + BUSY. If the processor time of other processes is known, the rule is refined in two ways. A load
    that no other process explains comes from the measured process (threads that wait for the disk, the clean process of
    the parity check) and is accepted. And because a one-minute mean is slow, a short measurement is invalid if other
    processes used a core in it.
    """
    peak = max([turn.before[0], turn.most, *turn.after[:1]])
    machine = "1 core" if cores == 1 else f"{cores} cores"
    high_load = f"the load was {peak:.1f} on {machine}"
    if turn.others is None:
        return high_load if peak > cores + BUSY else ""
    if turn.others + threads > cores + QUIET:
        return f"others used {turn.others:.1f} of {machine}"
    return high_load if peak > cores + BUSY and turn.others > QUIET else ""


# ---------------------------------------------------------------- what was seen, a line at a time


def note(path: Path, event: str, **more: Any) -> None:
    """Append the current load to a .jsonl file, so that a killed process leaves its readings.

    Args:
        event: ``start``, ``look`` (during it) or ``end`` of a measured process.
    """
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps({"event": event, "load": load(), **more}) + "\n")


def read_loads(path: Path) -> list[MachineLoad]:
    """One record for each process of a cell; empty if the load was not recorded."""
    groups: list[list[dict[str, Any]]] = []
    for line in read_json_lines(path, skip_damaged=True):
        if line["event"] == "start" or not groups:
            groups.append([])
        groups[-1].append(line)
    turns = []
    for lines in groups:
        peaks = [line["load"][0] for line in lines]
        last = lines[-1] if lines[-1]["event"] == "end" else {}
        turns.append(
            MachineLoad(
                before=lines[0]["load"],
                most=max(peaks),
                mean=round(sum(peaks) / len(peaks), 2),
                after=last.get("load", []),
                seconds=last.get("seconds"),
                others=last.get("others"),
            )
        )
    return turns
