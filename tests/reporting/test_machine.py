"""The machine's figures and numbers are those of the records."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from fake_corpus import html_of, words
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.reporting.blocks import Block
from daybreak.reporting.machine import (
    POINTS_PER_FIGURE,
    QUANTITIES,
    machine,
    machine_figure,
    machine_use,
    machine_words,
)
from daybreak.reporting.runs import RunRecords, read_run
from daybreak.schemas.run import DeviceUse, MachineRecord, MachineUse

GIB = 1 << 30


def device(**changes) -> DeviceUse:
    plain = {"name": "Some GPU", "utilisation": 0.9, "memory": 30 * GIB, "memory_total": 40 * GIB}
    return DeviceUse(**(plain | {"temperature": 61.0, "watts": 300.0} | changes))


def record(place: int, **changes) -> MachineRecord:
    plain = {"step": 10 * place, "elapsed": 30.0 * place, "processor": 0.25, "load": 2.0, "memory": 3 * GIB}
    return MachineRecord(**(plain | {"memory_free": 5 * GIB, "disk_free": 50 * GIB} | changes))


def run_of(records: list[MachineRecord], lost: list[MachineRecord] | None = None) -> RunRecords:
    return RunRecords(path=Path("run"), label="run", recipe={"name": "run"}, machine=records, lost=lost or [])


def drawn(runs: list[RunRecords]) -> dict[str, list]:
    return {one.title: figure["data"] for one in QUANTITIES if (figure := machine_figure(runs, one))["data"]}


def cells(block: Block) -> dict[str, str]:
    page = html_of(block)
    head = re.findall(r'<th class="[wn]" scope="col">(.*?)</th>', page)
    row = re.findall(r'<t[dh] class="[wn]"(?: scope="row")?>(.*?)</t[dh]>', page)
    return dict(zip(head, row, strict=True))


def test_curves_are_the_records():
    records = [record(place, processor=place / 10, memory=place * GIB, devices=[device()]) for place in range(5)]
    found = drawn([run_of(records)])
    assert found["Processor"][0]["x"] == [0.0, 30.0, 60.0, 90.0, 120.0]
    assert found["Processor"][0]["y"] == pytest.approx([0, 10, 20, 30, 40])
    assert found["Memory"][0]["y"] == [0, 1, 2, 3, 4]
    assert found["Temperature"][0]["y"] == [61.0] * 5 and found["Power"][0]["y"] == [300.0] * 5


def test_only_what_has_records_is_drawn():
    assert list(drawn([run_of([record(1)])])) == ["Processor", "Load", "Memory"]
    mute = run_of([record(1, devices=[device(temperature=None, watts=None)])])
    assert list(drawn([mute])) == [one.title for one in QUANTITIES[:5]]
    assert "Highest temperature" not in words(machine([mute])) and "Energy" not in words(machine([mute]))
    assert machine([run_of([])]) is None


def test_each_accelerator_is_a_curve_and_a_gap_is_a_gap():
    records = [record(1, devices=[device()]), record(2, devices=[device(), device(watts=None)]), record(3)]
    found = drawn([run_of(records)])
    assert [len(trace["x"]) for trace in found["Accelerator"]] == [2, 1] and len(found["Power"]) == 1
    assert len({trace["line"]["dash"] for trace in found["Accelerator"]}) == 2


def test_long_nights_are_thinned():
    assert len(drawn([run_of([record(place) for place in range(5000)])])["Load"][0]["x"]) == 300


def test_energy_counts_every_process_and_what_lost_work_drew():
    kept = [record(place, kilowatt_hours=energy) for place, energy in ((1, 0.1), (2, 0.2), (5, 0.05), (6, 0.1))]
    lost = [record(place, kilowatt_hours=energy) for place, energy in ((3, 0.3), (4, 0.4))]
    assert machine_use(run_of(kept, lost)).kilowatt_hours == pytest.approx(0.4 + 0.1)
    assert machine_use(run_of([record(1)])).kilowatt_hours is None


def test_the_summary_has_the_last_word(write_run):
    path = write_run()
    folder = RunFolder(path)
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"type": "machine"} | to_dict(record(1, devices=[device()]))) + "\n")
    so_far = cells(machine([read_run(path)]))
    assert so_far["Processor, mean"] == "25.0 %" and so_far["Highest temperature"] == "61 C"
    assert so_far["Accelerators, mean"] == "90.0 %" and so_far["Accelerator memory, peak"] == "30.0 GiB (75 %)"
    use = MachineUse(processor=0.5, load=3.0, memory=4 * GIB, kilowatt_hours=2.613, cost=12.4)
    write_json(folder.summary, read_json(folder.summary) | {"machine": to_dict(use)})
    found = cells(machine([read_run(path)]))
    assert found["Processor, mean"] == "50.0 %" and found["Memory, peak"] == "4.0 GiB (52 %)"
    assert found["Energy of accelerators"] == "2.61 kWh" and found["Cost at the given price"] == "12.40"
    assert "Highest temperature" not in found


def test_one_line_for_a_terminal():
    assert machine_words(record(1)) == ("processor 25%, load 2.0, memory 3.0 GiB, 5.0 GiB free; disk 50.0 GiB free")
    two = machine_words(record(1, devices=[device(), device(temperature=70.0, utilisation=0.7)]))
    assert two.endswith("; 2 x Some GPU 80% busy, 30.0 of 40.0 GiB (75 %), 70 C, 600 W")
    mute = machine_words(record(1, devices=[device(temperature=None, watts=None)]))
    assert mute.endswith("; Some GPU 90% busy, 30.0 of 40.0 GiB (75 %)")


NUMBER = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, -math.inf])
SIZE = st.integers(0, 1 << 50)
DEVICES = st.builds(
    DeviceUse, name=st.text(max_size=5), utilisation=NUMBER, memory=SIZE, memory_total=SIZE,
    temperature=st.none() | NUMBER, watts=st.none() | NUMBER,
)  # fmt: skip
RECORDS = st.builds(
    MachineRecord, step=st.integers(0), elapsed=st.floats(0, 1e9), processor=NUMBER, load=NUMBER, memory=SIZE,
    memory_free=SIZE, disk_free=SIZE, devices=st.lists(DEVICES, max_size=3), kilowatt_hours=st.none() | NUMBER,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(RECORDS, max_size=3), st.lists(RECORDS, max_size=2))
def test_wild_records_make_a_sound_page(records, lost):
    run = run_of(records, lost)
    assert bool(machine([run])) == bool(records)
    page = html_of(machine([run]))
    for text in re.findall(r'<script type="application/json">(.*?)</script>', page):
        json.loads(text, parse_constant=lambda name: pytest.fail(name))
    table = page[page.index("<table>") :] if page else ""
    assert not re.search(r"\b(nan|inf|None)\b", table)
    for one in records:
        assert machine_words(one)


def test_many_runs_and_accelerators_share_the_points():
    records = [record(place, devices=[device(utilisation=place / 2000)] * 8) for place in range(2000)]
    found = drawn([run_of(records) for _ in range(8)])
    for curves in found.values():
        assert sum(len(curve["x"]) for curve in curves) <= POINTS_PER_FIGURE
    assert len(found["Accelerator"]) == 64 and found["Accelerator"][0]["x"][-1] == found["Load"][0]["x"][-1]
