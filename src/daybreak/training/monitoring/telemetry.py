"""What the machine is doing, read beside the training and never in its way; and a run's machine use in short."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from daybreak.schemas.changes import DeviceUse, MachineRecord

SECONDS = 30.0
FIRST_SECONDS = 1.0
"""The first reading comes early: a short run has one too, and where its kilowatt hours begin anew is plain to see."""
LAST_SECONDS = 1.0
"""How long the end waits for a last reading."""
JOULES_PER_KILOWATT_HOUR = 3.6e6


class Telemetry:
    """Reads the machine every SECONDS in a thread of its own, until ``close``. Only the first rank needs one.

    A card that fell off the bus can make a call to its driver wait for ever. So nothing waits for this thread: the
    loop takes what is there, and the process ends without it. Where the machine does not tell, no record comes.

    Args:
        folder: of the run.
        seconds: between two readings.
    """

    def __init__(self, folder: Path, *, seconds: float = SECONDS):
        self._folder = folder
        self._seconds = seconds
        self._readings: deque[MachineRecord] = deque(maxlen=1)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Have a last reading made, for ``take``; wait for it a second at most."""
        self._leaving.set()
        self._thread.join(LAST_SECONDS)

    def take(self, *, step: int, elapsed: float) -> MachineRecord | None:
        """Return the newest reading that was not taken yet, if there is one, with the caller's step and clock."""
        if not self._readings:
            return None
        return replace(self._readings.popleft(), step=step, elapsed=elapsed)

    def _watch(self) -> None:
        machine = find_machine()
        if machine is None:
            return
        accelerators = Accelerators()
        wait = min(FIRST_SECONDS, self._seconds)
        while True:
            leaving = self._leaving.wait(wait)
            wait = self._seconds
            # What does not tell this time may tell the next; no fault of a reading is worth a word in a run.
            with contextlib.suppress(Exception):
                self._readings.append(self._read(machine, accelerators))
            if leaving:
                return

    def _read(self, machine: Machine, accelerators: Accelerators) -> MachineRecord:
        processor, memory, memory_free = machine.read()
        devices = accelerators.read()
        return MachineRecord(
            step=0,
            elapsed=0.0,
            processor=round(processor, 3),
            load=round(os.getloadavg()[0], 2),
            memory=memory,
            memory_free=memory_free,
            disk_free=shutil.disk_usage(self._folder).free,
            devices=devices,
            kilowatt_hours=accelerators.kilowatt_hours(),
        )


class Machine(Protocol):
    def read(self) -> tuple[float, int, int]:
        """Return the share of all cores in use since the last call, this process' bytes and the free bytes."""


def find_machine() -> Machine | None:
    """Return a way to read this machine: psutil, else Linux' own files, else none."""
    try:
        return PsutilMachine()
    except ImportError:
        pass
    try:
        return LinuxMachine()
    except OSError:
        return None


class PsutilMachine:
    """As psutil tells, on any system."""

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._process = psutil.Process()
        psutil.cpu_percent()  # the share is of the time since the call before

    def read(self) -> tuple[float, int, int]:
        processor = self._psutil.cpu_percent() / 100
        return processor, self._process.memory_info().rss, self._psutil.virtual_memory().available


class LinuxMachine:
    """As proc(5) tells.

    Raises:
        OSError: there is no such thing here.
    """

    def __init__(self) -> None:
        self._before = self._ticks()

    def read(self) -> tuple[float, int, int]:
        before, self._before = self._before, self._ticks()
        busy, whole = (now - then for now, then in zip(self._before, before))
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        return busy / max(1, whole), pages * os.sysconf("SC_PAGE_SIZE"), free

    def _ticks(self) -> tuple[int, int]:
        """Of all cores since the system's start: busy, and all."""
        with Path("/proc/stat").open(encoding="ascii") as file:
            # user, nice, system, idle, iowait, irq, softirq, steal; guests, which follow, are in user already
            ticks = [int(field) for field in file.readline().split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


class Accelerators:
    """The NVIDIA cards that this process sees, as NVML tells: none where there is no NVML, as on ROCm.

    The energy is the card's own counter, or its power summed over time where it has none (before Volta).
    """

    def __init__(self) -> None:
        self._cards: list[tuple[Any, _Meter]] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            handles = visible_handles(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
        except Exception:  # ImportError, NVMLError, or a driver's library that does not fit: no cards to read
            return
        self._nvml: ModuleType = pynvml
        self._cards = [(handle, _Meter()) for handle in handles]
        self.read()

    def read(self) -> list[DeviceUse]:
        """Read each card that tells at least its utilisation and memory, and count the energy of all."""
        uses = [self._read(handle, meter) for handle, meter in self._cards]
        return [use for use in uses if use is not None]

    def kilowatt_hours(self) -> float | None:
        """Of all cards up to the last reading; None where none tells."""
        told = [meter.joules for _, meter in self._cards if meter.joules is not None]
        return round(sum(told) / JOULES_PER_KILOWATT_HOUR, 6) if told else None

    def _read(self, handle: Any, meter: _Meter) -> DeviceUse | None:
        nvml = self._nvml
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        watts = None if milliwatts is None else milliwatts / 1000
        meter.count(self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), watts, time.monotonic())
        name = self._ask(nvml.nvmlDeviceGetName, handle)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        celsius = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        if rates is None or memory is None:
            return None
        return DeviceUse(
            name=name or "NVIDIA card",
            utilisation=rates.gpu / 100,
            memory=memory.used,
            memory_total=memory.total,
            temperature=celsius,
            watts=watts,
        )

    def _ask(self, function: Any, *arguments: Any) -> Any:
        """What NVML answers; None where it cannot: not every card knows everything, and a card may be lost."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


@dataclass
class _Meter:
    """The energy of one card, in joules; None until it tells."""

    joules: float | None = None
    _counter: int | None = None
    _watts: float | None = None
    _at: float = 0.0

    def count(self, counter: int | None, watts: float | None, now: float) -> None:
        """Add what was used since the call before.

        Args:
            counter: millijoules since the driver was loaded.
            watts: at this moment.
        """
        used = None
        if counter is not None and self._counter is not None and counter >= self._counter:
            used = (counter - self._counter) / 1000
        elif watts is not None and self._watts is not None:
            used = (watts + self._watts) / 2 * (now - self._at)
        if used is not None:
            self.joules = (self.joules or 0.0) + used
        self._counter, self._watts, self._at = counter, watts, now


def visible_handles(nvml: Any, visible: str | None) -> list[Any]:
    """Return the cards of CUDA_VISIBLE_DEVICES, in its order.

    Numbers are those of the bus, as with CUDA_DEVICE_ORDER=PCI_BUS_ID and wherever all cards are alike. An entry that
    is no card ends the list, as it does for CUDA (CUDA C++ Programming Guide, environment variables).

    Args:
        visible: numbers, or beginnings of UUIDs (``GPU-...``), or ``MIG-...``; None where it is not set.
    """
    try:
        cards = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        if visible is None:
            return cards
        found = []
        for entry in visible.split(","):
            handle = _card(nvml, cards, entry.strip())
            if handle is None:
                break
            found.append(handle)
        return found
    except nvml.NVMLError:
        return []


def _card(nvml: Any, cards: list[Any], entry: str) -> Any:
    if entry.isdecimal():
        return cards[int(entry)] if int(entry) < len(cards) else None
    if entry.startswith("GPU-"):
        return next((card for card in cards if nvml.nvmlDeviceGetUUID(card).startswith(entry)), None)
    return nvml.nvmlDeviceGetHandleByUUID(entry) if entry.startswith("MIG-") else None
