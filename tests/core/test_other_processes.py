"""A summary of a run's machine use against directly counted sums."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.schemas.run import DeviceUse, MachineRecord, MachineUse


def record(elapsed: float, kilowatt_hours: float | None = None, devices: tuple[DeviceUse, ...] = ()) -> MachineRecord:
    return MachineRecord(
        step=0,
        elapsed=elapsed,
        processor=elapsed % 1,
        load=elapsed,
        memory=int(elapsed * 100),
        memory_free=1,
        disk_free=1,
        devices=list(devices),
        kilowatt_hours=kilowatt_hours,
    )


@given(
    processes=st.lists(st.lists(st.integers(0, 1000), min_size=1, max_size=5), max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_the_energy_of_all_processes_is_added(processes: list[list[int]], order: Any) -> None:
    records, expected, elapsed = [], 0, 0
    for used in processes:
        meter = 0
        # The first reading of a process is too early for it to have used anything.
        for amount in [0, *used]:
            meter += amount
            records.append(record(elapsed, meter / 1000))
            records.append(record(elapsed + 0.5))
            elapsed += 1
        expected += meter
    order.shuffle(records)
    use = MachineUse.of(records)
    assert (use is None) == (not processes)
    if use is not None:
        assert use.kilowatt_hours == pytest.approx(expected / 1000)
        assert use.cost is None


device_uses = st.builds(
    DeviceUse,
    name=st.just("card"),
    utilisation=st.floats(0, 1),
    memory=st.integers(0, 10**12),
    memory_total=st.just(10**12),
    temperature=st.none() | st.floats(0, 100),
)


@given(st.lists(st.lists(device_uses, max_size=3), min_size=1, max_size=6), st.floats(0, 1000))
def test_a_summary_is_means_and_maxima(uses: list[list[DeviceUse]], cost: float) -> None:
    records = [record(place / 4, devices=tuple(devices)) for place, devices in enumerate(uses)]
    found = MachineUse.of(iter(records), cost=cost)
    assert found is not None
    number = len(records)
    assert found.processor == pytest.approx(sum(each.processor for each in records) / number)
    assert found.load == pytest.approx(sum(each.load for each in records) / number)
    assert found.memory == (number - 1) * 25
    flat = [use for devices in uses for use in devices]
    if flat:
        assert found.utilisation == pytest.approx(sum(use.utilisation for use in flat) / len(flat))
        assert found.device_memory == sorted(use.memory for use in flat)[-1]
    else:
        assert (found.utilisation, found.device_memory) == (None, None)
    temperatures = sorted(use.temperature for use in flat if use.temperature is not None)
    assert found.temperature == (temperatures[-1] if temperatures else None)
    assert found.kilowatt_hours is None
    assert found.cost == cost
