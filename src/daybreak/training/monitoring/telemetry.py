"""Telemetry: reads processor, memory, disk and accelerators in a thread beside the training."""

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
from typing import Any

import psutil

from daybreak.schemas.run import DeviceUse, MachineRecord

SECONDS = 30.0
FIRST_SECONDS = 1.0
"""The first reading comes early, so that short runs have one and a restart of the energy counter is visible."""
LAST_SECONDS = 1.0
"""Maximum wait for a last reading at the end."""
JOULES_PER_KILOWATT_HOUR = 3.6e6


class Telemetry:
    """Reads the machine every SECONDS in a thread of its own, until ``close``. Only the first rank needs one.

    A call to the driver of a failed card can block forever, so nothing waits for this thread: the loop takes what is
    there, and the process ends without it. A failed reading gives no record.

    Args:
        folder: folder of the run.
        seconds: interval between two readings.
    """

    def __init__(self, folder: Path, *, seconds: float = SECONDS):
        self._folder = folder
        self._seconds = seconds
        self._readings: deque[MachineRecord] = deque(maxlen=1)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Request a last reading for ``take``; wait for it at most LAST_SECONDS."""
        self._stopping.set()
        self._thread.join(LAST_SECONDS)

    def take(self, *, step: int, elapsed: float) -> MachineRecord | None:
        """Return the newest reading that was not returned yet, or None, with the caller's step and clock."""
        if not self._readings:
            return None
        return replace(self._readings.popleft(), step=step, elapsed=elapsed)

    def _watch(self) -> None:
        psutil.cpu_percent()  # each call reports the time since the call before
        accelerators = Accelerators()
        wait = min(FIRST_SECONDS, self._seconds)
        while True:
            stopping = self._stopping.wait(wait)
            wait = self._seconds
            # A later reading may succeed; a failed one must not disturb the run.
            with contextlib.suppress(Exception):
                self._readings.append(self._read(accelerators))
            if stopping:
                return

    def _read(self, accelerators: Accelerators) -> MachineRecord:
        devices = accelerators.read()
        return MachineRecord(
            step=0,
            elapsed=0.0,
            processor=round(psutil.cpu_percent() / 100, 3),
            load=round(os.getloadavg()[0], 2),
            memory=psutil.Process().memory_info().rss,
            memory_free=psutil.virtual_memory().available,
            disk_free=shutil.disk_usage(self._folder).free,
            devices=devices,
            kilowatt_hours=accelerators.kilowatt_hours(),
        )


class Accelerators:
    """The NVIDIA cards that this process sees, read by NVML; empty without NVML, as on ROCm.

    The energy is the card's own counter, or its power integrated over time if it has none (before Volta).
    """

    def __init__(self) -> None:
        self._cards: list[tuple[Any, _EnergyMeter]] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            handles = visible_handles(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
        except Exception:  # ImportError, NVMLError, or a driver's library that does not fit: no cards to read
            return
        self._nvml: ModuleType = pynvml
        self._cards = [(handle, _EnergyMeter()) for handle in handles]
        self.read()

    def read(self) -> list[DeviceUse]:
        """Read each card that reports at least its utilization and memory, and add up the energy of all."""
        uses = [self._read(handle, meter) for handle, meter in self._cards]
        return [use for use in uses if use is not None]

    def kilowatt_hours(self) -> float | None:
        """Energy of all cards up to the last reading; None if no card reports it."""
        joules = [meter.joules for _, meter in self._cards if meter.joules is not None]
        return round(sum(joules) / JOULES_PER_KILOWATT_HOUR, 6) if joules else None

    def _read(self, handle: Any, meter: _EnergyMeter) -> DeviceUse | None:
        nvml = self._nvml
        milliwatts = self._query(nvml.nvmlDeviceGetPowerUsage, handle)
        watts = None if milliwatts is None else milliwatts / 1000
        meter.count(self._query(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), watts, time.monotonic())
        name = self._query(nvml.nvmlDeviceGetName, handle)
        rates = self._query(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo, handle)
        celsius = self._query(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
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

    def _query(self, function: Any, *arguments: Any) -> Any:
        """The answer of NVML; None if the card does not support the call or is lost."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


@dataclass
class _EnergyMeter:
    """Energy of one card in joules; None until the first measurement."""

    joules: float | None = None
    _counter: int | None = None
    _watts: float | None = None
    _at: float = 0.0

    def count(self, counter: int | None, watts: float | None, now: float) -> None:
        """Add the energy since the last call.

        Args:
            counter: millijoules since the driver was loaded.
            watts: current power.
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

    Numbers are those of the bus, as with CUDA_DEVICE_ORDER=PCI_BUS_ID and on machines with equal cards. An invalid
    entry ends the list, as in CUDA (CUDA C++ Programming Guide, environment variables).

    Args:
        visible: numbers, or prefixes of UUIDs (``GPU-...``), or ``MIG-...``; None if the variable is not set.
    """
    try:
        cards = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        if visible is None:
            return cards
        handles = []
        for entry in visible.split(","):
            handle = _card(nvml, cards, entry.strip())
            if handle is None:
                break
            handles.append(handle)
        return handles
    except nvml.NVMLError:
        return []


def _card(nvml: Any, cards: list[Any], entry: str) -> Any:
    if entry.isdecimal():
        return cards[int(entry)] if int(entry) < len(cards) else None
    if entry.startswith("GPU-"):
        return next((card for card in cards if nvml.nvmlDeviceGetUUID(card).startswith(entry)), None)
    return nvml.nvmlDeviceGetHandleByUUID(entry) if entry.startswith("MIG-") else None
