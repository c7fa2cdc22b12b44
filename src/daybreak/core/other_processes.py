"""Who else is using this machine: the load, and the processor time that others take. What makes a measurement void."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daybreak.schemas.studies import MachineLoad

BUSY = 0.5
"""A one-minute load this far above the number of cores voids a measurement (RULES.md)."""
QUIET = 0.1
"""Cores: others who use less are no neighbours, and a high load is the measured process' own."""


def load() -> list[float]:
    """Mean number of busy processes over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def busy_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds of processor time spent by all processes since the machine started, on the cores that we may use.

    None where the system does not tell.
    """
    try:
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        found = 0
        for line in stat.read_text(encoding="ascii").splitlines():
            name, *ticks = line.split()
            if name in ours:
                # user nice system idle iowait irq softirq ... (proc(5)); time as a guest is within that of users.
                user, nice, system, _, _, irq, softirq = map(int, ticks[:7])
                found += user + nice + system + irq + softirq
        return found / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None


def own_seconds() -> float:
    """Seconds of processor time of this process and of all below it that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


class OtherProcesses:
    """The processes of this machine that are neither this one nor started by it, from now on."""

    def __init__(self) -> None:
        self._begun, self._busy, self._own = time.monotonic(), busy_seconds(), own_seconds()

    def cores(self) -> float | None:
        """How many cores they have used since, on average; None where the system does not tell."""
        now = busy_seconds()
        if self._busy is None or now is None:
            return None
        used = max(0.0, now - self._busy - (own_seconds() - self._own))
        return round(used / (time.monotonic() - self._begun), 3)


def why_void(turn: MachineLoad, *, cores: int, threads: int) -> str:
    """Say in words who disturbed a process that computed with ``threads`` threads; empty if nobody did.

    Load counts whoever computes, the measured process as well: its threads stay within the cores, so only others lift
    a load above cores + BUSY. Where the system tells how much time the others had, two faults of that rule are mended.
    A load that no other process explains is the process' own (threads that wait for the disk, the clean process of the
    parity gate). And a one-minute mean is slow: in a cell of seconds it hides a neighbour who takes a core away.
    """
    peak = max([turn.before[0], turn.most, *turn.after[:1]])
    told = f"the load was {peak:.1f} on {cores} cores"
    if turn.others is None:
        return told if peak > cores + BUSY else ""
    if turn.others + threads > cores + BUSY:
        return f"others used {turn.others:.1f} of {cores} cores"
    return told if peak > cores + BUSY and turn.others > QUIET else ""


# ---------------------------------------------------------------- what was seen, a line at a time


def note(path: Path, event: str, **more: Any) -> None:
    """Append the load of this moment to a .jsonl file: what a kill leaves still tells of the time before.

    Args:
        event: start, look or end, of a process.
    """
    torn = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps({"event": event, "load": load(), **more}) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):  # torn by a full disk or a power cut
            yield json.loads(text)


def read_loads(path: Path) -> list[MachineLoad]:
    """One for each process that a cell took; empty where nobody watched."""
    groups: list[list[dict[str, Any]]] = []
    for line in _lines(path):
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
