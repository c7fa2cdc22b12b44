"""What happens to a run on its way, as it reaches disk: changes of course, and what the machine was doing.

Units: seconds, bytes, watts, degrees Celsius; shares in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean


@dataclass(frozen=True, kw_only=True)
class Change:
    """What was decided in mid-course: a line of ``Decisions.changes``. Each holds until the next one, whole."""

    step: int
    """The first step that it holds for."""
    why: str
    """In words, for people."""
    microbatch: int
    """Rows that one device handles at a time, in the first phase."""
    world_size: int
    threads: int
    rate: float = 1.0
    """What the peak learning rate is multiplied by."""
    compiled: bool = False
    """Whether the blocks run through torch.compile."""
    skip_to: int | None = None
    """Row from which the run reads on at ``step``, where rows were passed over; None where none were."""


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """One accelerator at one moment."""

    name: str
    utilisation: float
    """Share of the last second or so in which it did anything."""
    memory: int
    memory_total: int
    temperature: float | None = None
    watts: float | None = None


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    """A line of metrics.jsonl with ``type`` = machine: how the first process' machine is, every half minute or so."""

    step: int
    elapsed: float
    processor: float
    """Share of all cores that is in use, by whomever."""
    load: float
    """Processes that want to run, a mean over a minute."""
    memory: int
    """Of this process."""
    memory_free: int
    disk_free: int
    """Where the run folder lies."""
    devices: list[DeviceUse] = field(default_factory=list)
    kilowatt_hours: float | None = None
    """Of the accelerators since the start of this process, from their power; None where they do not tell."""


@dataclass(frozen=True, kw_only=True)
class MachineUse:
    """A run's machine in short, over all processes of the run: part of Summary."""

    processor: float
    """Mean share of all cores in use."""
    load: float
    """Mean."""
    memory: int
    """Most of the first process."""
    utilisation: float | None = None
    """Mean of the accelerators; None without any."""
    device_memory: int | None = None
    """Most of one accelerator."""
    temperature: float | None = None
    """Highest."""
    kilowatt_hours: float | None = None
    cost: float | None = None
    """Of all hours charged, at the price that was given."""

    @staticmethod
    def of(records: Iterable[MachineRecord], cost: float | None = None) -> MachineUse | None:
        """Return a run's machine use in short; None without records. What is no number is left out.

        Each process counts its kilowatt hours from zero. In the order of the clock, a value below the one before is the
        first of a new process.

        Args:
            records: of all processes, those that a resume cut away too: that work was done as well.
        """
        ordered = sorted(records, key=lambda record: record.elapsed)
        if not ordered:
            return None
        devices = [device for record in ordered for device in record.devices]
        counts = _numbers(record.kilowatt_hours for record in ordered)
        ends = [count for count, following in zip(counts, [*counts[1:], -math.inf]) if following < count]
        busy = _numbers(device.utilisation for device in devices)
        return MachineUse(
            processor=fmean(_numbers(record.processor for record in ordered) or [0.0]),
            load=fmean(_numbers(record.load for record in ordered) or [0.0]),
            memory=max(record.memory for record in ordered),
            utilisation=fmean(busy) if busy else None,
            device_memory=max((device.memory for device in devices), default=None),
            temperature=max(_numbers(device.temperature for device in devices), default=None),
            kilowatt_hours=sum(ends) if counts else None,
            cost=cost,
        )


def _numbers(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
