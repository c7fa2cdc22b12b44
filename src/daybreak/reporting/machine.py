"""The machine of a run over time: processor, memory, accelerators, energy."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from daybreak.core.formatting import percent, significant
from daybreak.reporting.figures import Axis, Figure, colour
from daybreak.reporting.markup import Markup, figure, legend, section, table, tag
from daybreak.reporting.runs import RunRecords
from daybreak.reporting.sections import NOTHING, UNKNOWN, run_name
from daybreak.reporting.series import thinned
from daybreak.schemas.changes import DeviceUse, MachineRecord, MachineUse

GIB = 1 << 30
POINTS = 300
"""Of a curve in a small figure, at most."""
POINTS_PER_FIGURE = 2400
"""Of all its curves, however many runs and accelerators there are."""
HEIGHT = 200
DASHES = {"solid": "line", "dash": "dashed", "dot": "dotted"}
"""Of the first accelerators, with what the legend calls them; further ones begin again, and hovering names them."""

Reading = Callable[[MachineRecord], float | None]


@dataclass(frozen=True)
class Quantity:
    """One small figure: of a record, or of one accelerator in it. What has no value there is a gap."""

    title: str
    axis: str
    caption: str
    of_record: Reading | None = None
    of_device: Callable[[DeviceUse], float | None] | None = None


QUANTITIES = (
    Quantity("Processor", "% in use", "Share of all cores, whoever uses them.", lambda r: 100 * r.processor),
    Quantity("Load", "processes", "Processes that want to run.", lambda r: r.load),
    Quantity("Memory", "GiB", "Of the first process.", lambda r: r.memory / GIB),
    Quantity("Accelerator", "% in use", "Time in which it did anything.", None, lambda d: 100 * d.utilisation),
    Quantity("Accelerator memory", "GiB", "In use.", None, lambda d: d.memory / GIB),
    Quantity("Temperature", "degrees Celsius", "Of the accelerator.", None, lambda d: d.temperature),
    Quantity("Power", "watts", "Of the accelerator.", None, lambda d: d.watts),
)


def machine(runs: Sequence[RunRecords]) -> Markup:
    """Small figures over time and a row a run; nothing for runs that recorded no machine."""
    if not any(machine_use(run) for run in runs):
        return NOTHING
    plots = [
        figure(quantity.title, quantity.caption, plot, _dashes(runs) if quantity.of_device else "")
        for quantity in QUANTITIES
        if (plot := machine_figure(runs, quantity))["data"]
    ]
    grid = tag("div", *plots, class_="three") if plots else NOTHING
    return section("The machine", grid, _table(runs), caption="As the first process saw it, every half minute or so.")


def machine_use(run: RunRecords) -> MachineUse | None:
    """A run's machine in short: from its summary, or from what is recorded so far. None where nothing is."""
    if run.summary is not None and run.summary.machine is not None:
        return run.summary.machine
    if not run.machine:
        return None
    return MachineUse.of([*run.machine, *(record for record in run.lost if isinstance(record, MachineRecord))])


def _mean(values: Iterator[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else None


def machine_figure(runs: Sequence[RunRecords], quantity: Quantity) -> Figure:
    """One quantity over elapsed time: a curve a run, or one for each of its accelerators."""
    axis = Axis(runs, "time")
    curves = [(number, *curve) for number, run in enumerate(runs) for curve in _curves(run, quantity)]
    most = max(2, min(POINTS, POINTS_PER_FIGURE // max(1, len(curves))))
    data = []
    for number, name, dash, value in curves:
        told = [record for record in runs[number].machine if _is_number(value(record))]
        line = {"color": colour(number), "width": 1.5, "dash": dash}
        words = " ".join(filter(None, [html.escape(name), quantity.axis]))
        data += [axis.trace(runs, number, thinned(told, most), words, value, line=line)] if told else []
    layout = axis.layout(quantity.axis)
    layout |= {"height": HEIGHT, "hovermode": "closest" if axis.crowded else "x unified"}
    layout["yaxis"]["rangemode"] = "tozero"
    return {"data": data, "layout": layout}


def _curves(run: RunRecords, quantity: Quantity) -> Iterator[tuple[str, str, Reading]]:
    """(name, dash, how to read a value from a record) of what may be a curve."""
    if quantity.of_record is not None:
        yield "", "solid", quantity.of_record
    if quantity.of_device is not None:
        names = {place: device.name for record in run.machine for place, device in enumerate(record.devices)}
        for place, name in names.items():
            yield f"{name} {place}", list(DASHES)[place % len(DASHES)], _reading(quantity.of_device, place)


def _reading(of_device: Callable[[DeviceUse], float | None], place: int) -> Reading:
    """The value of the accelerator at ``place``; None where the record has none there."""
    return lambda record: of_device(record.devices[place]) if place < len(record.devices) else None


def _dashes(runs: Sequence[RunRecords]) -> Markup:
    """Which accelerator is which; of a single one nothing need be said."""
    most = max((len(record.devices) for run in runs for record in run.machine), default=0)
    entries = [(style, "var(--ink)", str(place)) for place, style in enumerate(list(DASHES.values())[:most])]
    return legend(*entries) if 1 < most <= len(DASHES) else NOTHING


def _table(runs: Sequence[RunRecords]) -> Markup:
    told = [(number, use) for number, run in enumerate(runs) if (use := machine_use(run))]
    cells = [_cells(use) for _, use in told]
    names = [name for name in cells[0] if any(row[name] != UNKNOWN for row in cells)]
    rows = [[run_name(runs, number), *(row[name] for name in names)] for (number, _), row in zip(told, cells)]
    return table(("Run", *names), rows)


def _cells(use: MachineUse) -> dict[str, str]:
    return {
        "Processor, mean": _told(use.processor, percent),
        "Load, mean": _told(use.load, significant),
        "Memory, most": gibibytes(use.memory),
        "Accelerators, mean": _told(use.utilisation, percent),
        "Their memory, most": UNKNOWN if use.device_memory is None else gibibytes(use.device_memory),
        "Hottest": _told(use.temperature, lambda value: f"{value:.0f} C"),
        "Energy of accelerators": _told(use.kilowatt_hours, lambda value: f"{significant(value)} kWh"),
        "Cost, at the price given": _told(use.cost, lambda value: f"{value:,.2f}"),
    }


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _told(value: float | None, words: Callable[[float], str]) -> str:
    return words(value) if value is not None and math.isfinite(value) else UNKNOWN


def gibibytes(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB"


def machine_words(record: MachineRecord) -> str:
    """One record in one line, for a terminal; several accelerators together."""
    words = (
        f"processor {record.processor:.0%}, load {record.load:.1f}, memory {gibibytes(record.memory)}, "
        f"{gibibytes(record.memory_free)} free; disk {gibibytes(record.disk_free)} free"
    )
    devices = record.devices
    if not devices:
        return words
    name = f"{len(devices)} x {devices[0].name}" if len(devices) > 1 else devices[0].name
    busy = _mean(device.utilisation for device in devices)
    fullest = max(devices, key=lambda device: device.memory)
    heat = [device.temperature for device in devices if device.temperature is not None]
    watts = [device.watts for device in devices if device.watts is not None]
    told = [
        f"{busy:.0%} busy" if busy is not None else "",
        f"{fullest.memory / GIB:.1f} of {gibibytes(fullest.memory_total)}",
        f"{max(heat):.0f} C" if heat else "",
        f"{sum(watts):.0f} W" if watts else "",
    ]
    return f"{words}; {name} {', '.join(filter(None, told))}"
