"""Telemetry does not block the run, and skips values that the driver does not report."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from daybreak.schemas.run import DeviceUse, MachineRecord
from daybreak.training.monitoring import telemetry
from daybreak.training.monitoring.telemetry import Accelerators, Telemetry

GIB = 2**30


class NVMLError(Exception):
    pass


class Card:
    """A card of the fake driver; a value that is an error is raised when it is read."""

    def __init__(self, uuid: str, **values: Any):
        self.values = {
            "Name": f"Card {uuid}",
            "UUID": f"GPU-{uuid}",
            "UtilizationRates": SimpleNamespace(gpu=75, memory=10),
            "MemoryInfo": SimpleNamespace(used=3 * GIB, total=8 * GIB, free=5 * GIB),
            "Temperature": 61,
            "PowerUsage": 200_000,
            "TotalEnergyConsumption": 1_000_000,
        } | values

    def __getitem__(self, name: str) -> Any:
        if isinstance(self.values[name], Exception):
            raise self.values[name]
        return self.values[name]


def fake_nvml(cards: list[Card]) -> Any:
    """The part of pynvml that is used, over ``cards``."""
    nvml: Any = ModuleType("pynvml")
    nvml.NVMLError = NVMLError
    nvml.NVML_TEMPERATURE_GPU = 0
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetCount = lambda: len(cards)
    nvml.nvmlDeviceGetHandleByIndex = lambda number: cards[number]
    for name in ("Name", "UUID", "UtilizationRates", "MemoryInfo", "PowerUsage", "TotalEnergyConsumption"):
        setattr(nvml, f"nvmlDeviceGet{name}", lambda card, name=name: card[name])

    def temperature(card: Card, sensor: int) -> int:
        assert sensor == nvml.NVML_TEMPERATURE_GPU
        return card["Temperature"]

    def by_uuid(uuid: str) -> Card:
        if uuid != "MIG-1":
            raise NVMLError("not found")
        return Card("slice")

    nvml.nvmlDeviceGetTemperature = temperature
    nvml.nvmlDeviceGetHandleByUUID = by_uuid
    return nvml


Install = Callable[..., Any]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a fake driver with some cards in the place of pynvml."""

    def put(*cards: Card, visible: str | None = None) -> Any:
        nvml = fake_nvml(list(cards))
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return nvml

    return put


def first_record(folder: Path, patience: float = 10.0) -> MachineRecord | None:
    """The first record within ``patience`` seconds, read as in the loop."""
    watching = Telemetry(folder, seconds=0.01)
    end = time.monotonic() + patience
    found = None
    while found is None and time.monotonic() < end and watching._thread.is_alive():
        found = watching.take(step=7, elapsed=1.5)
        time.sleep(0.01)
    watching.close()
    return found


def test_a_reading_has_the_machine_and_the_callers_step(tmp_path: Path, install: Install) -> None:
    install(Card("a"), Card("b", Temperature=NVMLError("lost"), PowerUsage=NVMLError("lost")))
    found = first_record(tmp_path)
    assert found is not None
    assert (found.step, found.elapsed) == (7, 1.5)
    assert 0 <= found.processor <= 1 and found.load >= 0
    disk = os.statvfs(tmp_path)
    assert found.disk_free == pytest.approx(disk.f_bavail * disk.f_frsize, rel=0.1)
    # This process holds Python and its libraries, and a machine that runs tests has memory left.
    assert 10 * 2**20 < found.memory < 100 * GIB and found.memory_free > 2**20
    sizes = {"memory": 3 * GIB, "memory_total": 8 * GIB}
    assert found.devices == [
        DeviceUse(name="Card a", utilisation=0.75, **sizes, temperature=61, watts=200.0),
        DeviceUse(name="Card b", utilisation=0.75, **sizes, temperature=None, watts=None),
    ]
    assert found.kilowatt_hours == 0.0  # the counters stand still


def test_a_machine_that_does_not_tell_gives_no_record(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    monkeypatch.setattr(telemetry.psutil, "virtual_memory", lambda: 1 / 0)
    assert first_record(tmp_path, patience=0.3) is None


def test_readings_that_fail_pass_by_and_later_ones_come(tmp_path: Path, install: Install) -> None:
    install()
    folder = tmp_path / "not there yet"
    watching = Telemetry(folder, seconds=0.01)
    time.sleep(0.3)
    assert watching.take(step=0, elapsed=0.0) is None
    folder.mkdir()
    end = time.monotonic() + 10
    while (found := watching.take(step=1, elapsed=0.0)) is None and time.monotonic() < end:
        time.sleep(0.01)
    watching.close()
    assert found is not None and found.step == 1


def test_the_end_brings_a_last_reading(tmp_path: Path, install: Install) -> None:
    install()
    watching = Telemetry(tmp_path)
    watching.close()
    assert watching.take(step=3, elapsed=2.0) is not None
    assert watching.take(step=3, elapsed=2.0) is None


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Shut until the test is over."""
    event = threading.Event()
    yield event
    event.set()


def test_a_card_that_hangs_stops_nobody(
    tmp_path: Path, install: Install, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = install(Card("a"))
    nvml.nvmlDeviceGetPowerUsage = lambda card: gate.wait(60)
    monkeypatch.setattr(telemetry, "LAST_SECONDS", 0.1)
    watching = Telemetry(tmp_path, seconds=0.01)
    time.sleep(0.2)
    assert watching.take(step=0, elapsed=0.0) is None
    watching.close()
    assert watching._thread.is_alive() and watching._thread.daemon


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, ["aa1", "aa2", "b"]),
        ("", []),
        ("-1", []),
        ("2,0", ["b", "aa1"]),
        ("1", ["aa2"]),
        ("GPU-b, GPU-aa2", ["b", "aa2"]),
        ("0,7,1", ["aa1"]),
        ("GPU-c,0", []),
        ("MIG-1", ["slice"]),
        ("MIG-2", []),
        ("nonsense", []),
    ],
)
def test_only_visible_cards_are_read_in_their_order(install: Install, visible: str | None, seen: list[str]) -> None:
    install(Card("aa1"), Card("aa2"), Card("b"), visible=visible)
    assert [use.name.removeprefix("Card ") for use in Accelerators().read()] == seen


def test_without_a_driver_there_are_no_cards(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = install(Card("a"))

    def no_driver() -> None:
        raise NVMLError("driver not loaded")

    nvml.nvmlInit = no_driver
    cards = Accelerators()
    assert (cards.read(), cards.kilowatt_hours()) == ([], None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    cards = Accelerators()
    assert (cards.read(), cards.kilowatt_hours()) == ([], None)


def test_a_card_that_hides_its_use_is_left_out_but_its_energy_counts(install: Install) -> None:
    slice_of_a_card = Card("a", UtilizationRates=NVMLError("not supported"))
    install(slice_of_a_card)
    cards = Accelerators()
    slice_of_a_card.values["TotalEnergyConsumption"] += 3_600_000
    assert cards.read() == []
    assert cards.kilowatt_hours() == pytest.approx(0.001)


def test_energy_is_the_counters_or_power_over_time(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: now))
    counting = Card("a")
    metered = Card("b", TotalEnergyConsumption=NVMLError("not supported"), PowerUsage=100_000)
    silent = Card("c", TotalEnergyConsumption=NVMLError("not supported"), PowerUsage=NVMLError("not supported"))
    install(silent)
    cards = Accelerators()
    assert [use.watts for use in cards.read()] == [None]
    assert cards.kilowatt_hours() is None
    install(counting, metered, silent)
    cards = Accelerators()
    now = 1800.0
    counting.values["TotalEnergyConsumption"] += 7_200_000  # 0.002 kWh
    metered.values["PowerUsage"] = 300_000  # 200 W for half an hour: 0.1 kWh
    cards.read()
    assert cards.kilowatt_hours() == pytest.approx(0.102)
    now = 3600.0
    counting.values["TotalEnergyConsumption"] = 5  # the driver was loaded anew: power helps out, 200 W
    metered.values["PowerUsage"] = NVMLError("lost")
    cards.read()
    assert cards.kilowatt_hours() == pytest.approx(0.202)
