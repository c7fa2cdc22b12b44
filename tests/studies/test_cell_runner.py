"""Cells that take turns: in what order, on what threads, beside whom, and what a signal or a failure does."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_runs import WriteRun
from fake_studies import QUIET, fake_cells
from hypothesis import given
from hypothesis import strategies as st

from daybreak.core import other_processes as neighbours
from daybreak.core.errors import Interrupted, UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.schemas.run import Summary
from daybreak.studies import cell_runner as turns
from daybreak.studies import experiment
from daybreak.studies.cell_runner import Cell, StudyFolder

# ---------------------------------------------------------------- turns


@given(st.lists(st.text("abc", min_size=1), min_size=2, max_size=5, unique=True), st.integers(1, 6))
def test_every_seed_takes_everybody_and_the_next_one_goes_back(names: list[str], seeds: int) -> None:
    found = experiment.interleaved(names, seeds)
    for seed in range(seeds):
        own = [name for number, name in found if number == seed]
        assert own == (names if seed % 2 == 0 else names[::-1])
    assert [seed for seed, _ in found] == sorted(seed for seed, _ in found)


# ---------------------------------------------------------------- the void rule


@pytest.mark.parametrize(
    ("turn", "void"),
    [
        ({}, False),
        ({"most": 2.6, "others": 0.5}, True),  # above cores + 0.5, and somebody else was there
        ({"before": [2.6, 1, 1], "others": 0.5}, True),
        ({"after": [2.6, 1, 1], "others": 0.5}, True),
        ({"most": 2.6, "others": 0.05}, False),  # nobody else used the processor: it was the cell's own load
        ({"most": 2.6, "others": None}, True),  # where that is not known, the load decides
        ({"most": 2.4, "others": None, "after": []}, False),
        ({"most": 1.0, "others": 0.2}, True),  # a neighbour of seconds, whom the mean of a minute hides
        ({"most": 1.0, "others": 0.05}, False),
    ],
)
def test_only_other_processes_void_a_cell(turn: dict[str, Any], void: bool) -> None:
    assert bool(neighbours.why_void(replace(QUIET, **turn), cores=2, threads=2)) is void


def test_a_refused_model_is_refused_also_on_a_busy_machine(write_run: WriteRun, tmp_path: Path) -> None:
    """A cell with another reason would be fine-tuned, and its scores counted."""
    place = StudyFolder(out=tmp_path, budget="3m", threads=1)
    busy = [replace(QUIET, most=99.0, others=9.0)]
    for passed, wanted in ((False, experiment.REFUSED), (True, "others used 9.0 of")):
        summary = read_json(RunFolder(write_run(f"passed-{passed}", passed=passed)).summary, Summary)
        assert experiment._void(summary, busy, place).startswith(wanted)


def test_a_budget_in_steps_is_not_void_on_a_busy_machine(write_run: WriteRun, tmp_path: Path) -> None:
    """Other processes change how long its steps take, not what they give."""
    place = StudyFolder(out=tmp_path, budget="1000steps", threads=1)
    summary = read_json(RunFolder(write_run()).summary, Summary)
    assert experiment._void(summary, [replace(QUIET, most=99.0, others=9.0)], place) == ""


def test_the_time_of_all_processes_is_counted_on_our_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    stat = tmp_path / "stat"
    lines = ["cpu 9 9 9 9 9 9 9 9", *(f"cpu{n} {n + 1}00 20 30 999 888 4 5 6 7 8" for n in range(4)), "intr 1 2"]
    stat.write_text("\n".join(lines))
    assert neighbours.busy_seconds(stat) == (100 + 59 + 400 + 59) / os.sysconf("SC_CLK_TCK")
    assert neighbours.busy_seconds(tmp_path / "none") is None


def test_a_process_that_was_killed_leaves_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([[1.0, 0, 0], [3.0, 0, 0], [2.0, 0, 0], [1.0, 0, 0]])
    monkeypatch.setattr(neighbours, "load", lambda: next(loads))
    path = tmp_path / "cell.load.jsonl"
    for event in ("start", "look"):
        neighbours.note(path, event)
    neighbours.note(path, "start")
    neighbours.note(path, "end", seconds=9.0, others=0.2)
    first, second = neighbours.read_loads(path)
    assert (first.before[0], first.most, first.mean, first.after, first.others) == (1.0, 3.0, 2.0, [], None)
    assert (second.before[0], second.most, second.after[0], second.seconds, second.others) == (2.0, 2.0, 1.0, 9.0, 0.2)
    assert neighbours.read_loads(tmp_path / "none") == []


# ---------------------------------------------------------------- cells that only pretend


@pytest.fixture
def place(tmp_path: Path) -> StudyFolder:
    return StudyFolder(out=tmp_path / "out", budget="60s", threads=1)


def test_void_cells_are_repeated_once_and_after_all_others(place: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = fake_cells(place, monkeypatch, {"a-seed-0": "busy", "b-seed-1": "busy", "b-seed-1-again": "busy"})
    cells = [
        Cell(variant=name, seed=seed, words=("tiny",), data=Path("d")) for seed, name in experiment.interleaved("ab", 2)
    ]
    seen: list[int] = []
    with turns.lock_study(place.out) as lock:
        plain = experiment.run_cells(cells, place, lock, repeat_void=False, done=lambda done: seen.append(len(done)))
        assert ran == ["a-seed-0", "b-seed-0", "b-seed-1", "a-seed-1"] and seen == [0, 1, 2, 3, 4]
        assert [one.void for one in plain] == ["busy", "", "busy", ""]
        again = experiment.run_cells(cells, place, lock, repeat_void=True, done=lambda _: None)
        assert ran[4:] == ["a-seed-0-again", "b-seed-1-again"]
        assert [(one.attempt, one.void) for one in again] == [(1, ""), (0, ""), (1, "busy"), (0, "")]
        assert (
            experiment.run_cells(cells, place, lock, repeat_void=False, done=lambda _: None) == again and len(ran) == 6
        )


@pytest.fixture
def dummy(place: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return ``run(code)``: a cell whose process runs that Python code."""
    monkeypatch.setattr(turns, "SAMPLE_SECONDS", 0.1)
    monkeypatch.setattr(turns, "POLL_SECONDS", 0.02)

    def run(code: str) -> None:
        monkeypatch.setattr(turns, "command", lambda *_: [sys.executable, "-c", code])
        with turns.lock_study(place.out) as lock:
            turns.train_cell(Cell(variant="a", seed=0, words=(), data=Path("d")), place, lock)

    return run


def test_a_cell_has_its_threads_its_log_and_its_load(
    dummy: Callable[[str], None], place: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    dummy("import os, time; print(os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS']); time.sleep(0.6)")
    assert (place.out / "cells" / "a-seed-0.log").read_text() == "1 1\n"
    lines = [json.loads(line) for line in (place.out / "cells" / "a-seed-0.load.jsonl").read_text().splitlines()]
    assert [lines[0]["event"], lines[1]["event"], lines[-1]["event"]] == ["start", "look", "end"]
    assert lines[-1]["seconds"] >= 0.3 and all(len(line["load"]) == 3 for line in lines)


def test_the_load_of_a_cell_that_was_deleted_does_not_void_the_next_one(
    dummy: Callable[[str], None], place: StudyFolder
) -> None:
    run = place.out / "cells" / "a-seed-0"
    make = f"import pathlib; pathlib.Path({str(run)!r}).mkdir(parents=True, exist_ok=True)"

    def turns_seen() -> int:
        return len(neighbours.read_loads(run.with_name("a-seed-0.load.jsonl")))

    dummy(make)
    dummy(make)  # resumed: both of its processes count
    assert turns_seen() == 2
    run.rmdir()
    dummy(make)
    assert turns_seen() == 1


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (
            "print('daybreak: The text is gone. Look.'); exit(2)",
            UserError,
            "The text is gone. Look. Then run the same",
        ),
        ("print('Traceback'); exit(1)", RuntimeError, "Traceback"),
        ("import os; os.kill(os.getpid(), 9)", UserError, "stopped from outside"),
    ],
)
def test_a_cell_that_fails_says_why(
    code: str, error: type[Exception], words: str, dummy: Callable[[str], None]
) -> None:
    with pytest.raises(error, match=words):
        dummy(code)


@pytest.mark.parametrize("code", [1, 2])
def test_a_cell_whose_log_lies_on_a_full_disk_is_one_sentence(
    code: int, dummy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(UserError, match=r"is full\. Free disk space") as refused:
        dummy(f"exit({code})")
    assert f"ended with {code}" in refused.value.sentence


def test_a_signal_reaches_the_cell_which_may_save_itself(dummy: Callable[[str], None], place: StudyFolder) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(143)))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    log = place.out / "cells" / "a-seed-0.log"

    def stop() -> None:
        while not log.exists() or "ready" not in log.read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(Interrupted) as left:
        dummy(code)
    assert left.value.exit_code == 143 and log.read_text() == "ready\nsaved\n"


def test_a_folder_of_other_files_is_no_place_for_a_study(tmp_path: Path) -> None:
    (tmp_path / "study.md").write_text("my notes")
    with pytest.raises(UserError, match="is not empty and holds no study"), turns.lock_study(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["study.md"]


def test_two_studies_do_not_share_a_folder(place: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.0)
    with turns.lock_study(place.out), pytest.raises(UserError, match="is using"), turns.lock_study(place.out):
        pass
