"""Hardware use of a run over time: processor, memory, accelerators, energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from daybreak.core.formatting import percent, significant
from daybreak.reporting.blocks import Block, Inline, figure, grid, records_table, run_name, section
from daybreak.reporting.charts import DASHES, Figure, is_number
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.training import Axis
from daybreak.schemas.run import DeviceUse, MachineRecord, MachineUse

GIB = 1 << 30
POINTS = 300
"""Most points of a curve."""
POINTS_PER_FIGURE = 2400
"""Most points of all curves of a figure."""
Reading = Callable[[MachineRecord], float | None]


@dataclass(frozen=True)
class Quantity:
    """One figure: a value of each record, or of each accelerator in it; None is a gap."""

    title: str
    axis: str
    caption: str
    of_record: Reading | None = None
    of_device: Callable[[DeviceUse], float | None] | None = None


QUANTITIES = (
    Quantity("Processor", "% in use", "Fraction of all cores, over all processes.", lambda r: 100 * r.processor),
    Quantity("Load", "processes", "Runnable processes.", lambda r: r.load),
    Quantity("Memory", "GiB", "Memory of the first process.", lambda r: r.memory / GIB),
    Quantity("Accelerator", "% in use", "Fraction of the time in use.", None, lambda d: 100 * d.utilisation),
    Quantity("Accelerator memory", "GiB", "Memory in use.", None, lambda d: d.memory / GIB),
    Quantity("Temperature", "degrees Celsius", "Temperature of the accelerator.", None, lambda d: d.temperature),
    Quantity("Power", "watts", "Power of the accelerator.", None, lambda d: d.watts),
)


def machine(runs: Sequence[RunRecords]) -> Block | None:
    """Figures over time and a table with one row per run; nothing if no run recorded its machine."""
    rows = [_cells(runs, number, use) for number, run in enumerate(runs) if (use := machine_use(run))]
    if not rows:
        return None
    plots = [
        figure(quantity.title, quantity.caption, plot)
        for quantity in QUANTITIES
        if (plot := machine_figure(runs, quantity))["data"]
    ]
    caption = "Recorded by the first process about every 30 seconds."
    return section("Hardware use", grid(*plots, columns="three"), records_table(rows), caption=caption)


def machine_use(run: RunRecords) -> MachineUse | None:
    """The summary of a run's hardware use, from its summary or from the records so far; None without records."""
    if run.summary is not None and run.summary.machine is not None:
        return run.summary.machine
    if not run.machine:
        return None
    return MachineUse.of([*run.machine, *(record for record in run.lost if isinstance(record, MachineRecord))])


def machine_figure(runs: Sequence[RunRecords], quantity: Quantity) -> Figure:
    """One quantity over elapsed time: one curve per run, or one per accelerator."""
    axis = Axis(runs, "time")
    curves = [(number, *curve) for number, run in enumerate(runs) for curve in _curves(run, quantity)]
    most = max(2, min(POINTS, POINTS_PER_FIGURE // max(1, len(curves))))
    data = []
    for number, name, dash, value in curves:
        records = [record for record in runs[number].machine if is_number(value(record))]
        words = f"{name} {quantity.axis}".strip()
        data += [axis.trace(number, records, words, value, most, width=1.5, dash=dash)] if records else []
    layout = axis.layout(quantity.axis)
    layout["height"] = 200
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": data, "layout": layout}


def _curves(run: RunRecords, quantity: Quantity) -> Iterator[tuple[str, str, Reading]]:
    """(name, dash, value of a record) of each curve."""
    if quantity.of_record is not None:
        yield "", "solid", quantity.of_record
    if quantity.of_device is not None:
        names = {place: device.name for record in run.machine for place, device in enumerate(record.devices)}
        for place, name in names.items():
            yield f"{name} {place}", DASHES[place % len(DASHES)], _reading(quantity.of_device, place)


def _reading(of_device: Callable[[DeviceUse], float | None], place: int) -> Reading:
    """The value of accelerator ``place``; None if the record has no such accelerator."""
    return lambda record: of_device(record.devices[place]) if place < len(record.devices) else None


def _cells(runs: Sequence[RunRecords], number: int, use: MachineUse) -> dict[str, Inline | None]:
    run = runs[number]
    total = max((device.memory_total for record in run.machine for device in record.devices), default=0)
    memory = run.environment.memory_gib * GIB if run.environment else 0
    return {
        "Run": run_name(runs, number),
        "Processor, mean": _formatted(use.processor, percent),
        "Load, mean": _formatted(use.load, significant),
        "Memory, peak": memory_words(use.memory, memory),
        "Accelerators, mean": _formatted(use.utilisation, percent),
        "Accelerator memory, peak": _formatted(use.device_memory, lambda value: memory_words(value, total)),
        "Highest temperature": _formatted(use.temperature, lambda value: f"{value:.0f} C"),
        "Energy of accelerators": _formatted(use.kilowatt_hours, lambda value: f"{significant(value)} kWh"),
        "Cost at the given price": _formatted(use.cost, lambda value: f"{value:,.2f}"),
    }


def _formatted(value: float | None, words: Callable[[float], str]) -> str | None:
    return words(value) if value is not None and math.isfinite(value) else None


def gibibytes(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"


def memory_words(used: float, total: float) -> str:
    """``30.0 GiB (75 %)``; without the percentage if the total is unknown."""
    return gibibytes(used) + (f" ({100 * used / total:.0f} %)" if total > 0 else "")


def machine_words(record: MachineRecord) -> str:
    """One record in one line for a terminal; several accelerators together."""
    words = (
        f"processor {record.processor:.0%}, load {record.load:.1f}, memory {gibibytes(record.memory)}, "
        f"{gibibytes(record.memory_free)} free; disk {gibibytes(record.disk_free)} free"
    )
    devices = record.devices
    if not devices:
        return words
    name = f"{len(devices)} x {devices[0].name}" if len(devices) > 1 else devices[0].name
    busy = [device.utilisation for device in devices if math.isfinite(device.utilisation)]
    fullest = max(devices, key=lambda device: device.memory)
    temperatures = [device.temperature for device in devices if device.temperature is not None]
    watts = [device.watts for device in devices if device.watts is not None]
    parts = [
        f"{fmean(busy):.0%} busy" if busy else "",
        f"{fullest.memory / GIB:.1f} of {gibibytes(fullest.memory_total)}"
        + (f" ({100 * fullest.memory / fullest.memory_total:.0f} %)" if fullest.memory_total > 0 else ""),
        f"{max(temperatures):.0f} C" if temperatures else "",
        f"{sum(watts):.0f} W" if watts else "",
    ]
    return f"{words}; {name} {', '.join(filter(None, parts))}"
