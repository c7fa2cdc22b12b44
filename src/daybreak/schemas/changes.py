"""Types for changes of a run's settings and for the utilization of its machine.

Units: seconds, bytes, watts, degrees Celsius; fractions in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of settings during a run: an entry of ``Decisions.changes``, valid until the next entry."""

    step: int
    """First step with these settings."""
    why: str
    """Reason, in words."""
    microbatch: int
    """Sequences that one device processes at a time in the first phase."""
    world_size: int
    threads: int
    rate: float = 1.0
    """Factor of the peak learning rate."""
    compiled: bool = False
    """Whether the blocks run through torch.compile."""
    skip_to: int | None = None
    """Sequence at which reading continues at ``step`` if sequences were skipped; None otherwise."""
    machine: str | None = None
    """Processor or accelerator, if it is no longer that of environment.json."""


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """State of one accelerator at one moment."""

    name: str
    utilisation: float
    """Fraction of about the last second in which it was busy."""
    memory: int
    memory_total: int
    temperature: float | None = None
    watts: float | None = None


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    """A line of metrics.jsonl with ``type`` = machine: state of the first process' machine about every half minute."""

    step: int
    elapsed: float
    processor: float
    """Fraction of all cores in use by any process."""
    load: float
    """Load average over one minute."""
    memory: int
    """Memory of this process."""
    memory_free: int
    disk_free: int
    """On the disk of the run folder."""
    devices: list[DeviceUse] = field(default_factory=list)
    kilowatt_hours: float | None = None
    """Energy of the accelerators since the start of this process; None if they do not report power."""


@dataclass(frozen=True, kw_only=True)
class MachineUse:
    """Machine utilization over all processes of a run: part of Summary."""

    processor: float
    """Mean fraction of all cores in use."""
    load: float
    """Mean load average."""
    memory: int
    """Peak memory of the first process."""
    utilisation: float | None = None
    """Mean over the accelerators; None without any."""
    device_memory: int | None = None
    """Peak memory of one accelerator."""
    temperature: float | None = None
    """Highest temperature of an accelerator."""
    kilowatt_hours: float | None = None
    cost: float | None = None
    """Cost of the charged hours at the given price."""

    @staticmethod
    def of(records: Iterable[MachineRecord], cost: float | None = None) -> MachineUse | None:
        """Summarize the records of a run; None without records. Values that are not finite are ignored.

        Each process counts its kilowatt hours from zero, so in order of time a value below the previous one is the
        first of a new process.

        Args:
            records: of all processes, including lines that a resume removed, because that work used the machine too.
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
