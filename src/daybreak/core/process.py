"""This process: its start time, so that a budget includes its imports, its memory, and the cores that it may use."""

from __future__ import annotations

import os
import platform
import resource
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

WATCH_SECONDS = 1.0
"""Seconds between checks of the parent process."""
WORKERS = threading.RLock()
"""Held by the thread that uses this process's pool of workers: loky has one for all threads, and ends it for all."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Holds the limit of a container's memory, or ``max``."""
DRIVER = Path("/proc/driver/nvidia/version")
DRIVER_OF_WINDOWS = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""Exists under WSL if Windows has an NVIDIA driver."""


def uptime() -> float:
    """Return seconds since the machine started, the time in which it was suspended included: the clock of a budget.

    Linux and macOS stop ``time.monotonic()`` while the machine is suspended, so it serves only where there is no other
    clock. CLOCK_MONOTONIC stops on Linux and continues on macOS, which has no CLOCK_BOOTTIME.
    """
    try:
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    except (OSError, AttributeError):
        return time.monotonic()


def process_started() -> float:
    """Return the ``uptime()`` of this process' start; the current one if the system does not report it."""
    now = uptime()
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = int(fields[19])  # field 22 of proc(5), counted after the command's name
        return min(now, ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        import psutil  # local import: Linux does not need it

        with suppress(psutil.Error):
            return min(now, now - (time.time() - psutil.Process().create_time()))
        return now


def status_bytes(name: str) -> int | None:
    """An entry of this process' proc(5) status in bytes: VmRSS, the current memory; VmHWM, the peak memory.

    Unlike ``ru_maxrss`` it does not start with the memory of the parent process. None if the system does not report it.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


def peak_bytes() -> int:
    """The peak memory of this process."""
    return status_bytes("VmHWM") or most_resident(resource.RUSAGE_SELF)


def most_resident(who: int) -> int:
    """``ru_maxrss`` of getrusage(2) in bytes; macOS counts it in bytes, other systems in KiB."""
    most = resource.getrusage(who).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def machine_memory() -> tuple[int, int]:
    """Return total and available bytes, within the limit of the container."""
    import psutil

    memory = psutil.virtual_memory()
    try:
        limit = int(CGROUP_LIMIT.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return memory.total, memory.available
    return min(memory.total, limit), min(memory.available, limit)


def address_space_limit() -> int | None:
    """The largest address space of this process in bytes (``ulimit -v``); None if it is not limited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus_are_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides all GPUs: it is empty, or begins with -1, which ends the list as in CUDA."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed is not None and listed.split(",")[0].strip() in ("", "-1")


def nvidia_driver() -> str:
    """Return a line that names the NVIDIA driver; empty without one. Under WSL it is the driver of Windows."""
    try:
        return DRIVER.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return "the driver of Windows" if DRIVER_OF_WINDOWS.exists() else ""


def processor_name() -> str:
    """The processor's model name on Linux, elsewhere the name that Python reports."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def end_with(parent: int) -> None:
    """End this process as soon as its parent process has ended, even by kill -9."""

    def watch() -> None:
        while os.getppid() == parent:  # the kernel gives an orphan a new parent immediately
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    if os.getppid() != parent:
        os._exit(1)

    threading.Thread(target=watch, name="watch the parent", daemon=True).start()
