"""This process: when it began, so that a budget can count its imports, and the cores that it may use."""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_started() -> float:
    """Return the ``time.monotonic()`` of this process' birth; now where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = int(fields[19])  # field 22 of proc(5), counted after the command's name
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - max(0.0, age)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.monotonic()


def usable_cores() -> int:
    """How many cores this process may use, of those that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
