"""Budgets, the agreed clock under a fake time, and the clock that repeats a recorded run."""

from __future__ import annotations

import types
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from daybreak.core import process
from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.world import World
from daybreak.schemas.run import TraceRecord
from daybreak.training.clock import MARGIN, BudgetClock, ReplayClock, Tick, read_trace, reserve_for


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("90s", 90, "seconds"),
        ("30m", 1_800, "seconds"),
        ("24h", 86_400, "seconds"),
        ("1.5d", 129_600, "seconds"),
        (".5h", 1_800, "seconds"),
        (" 3M ", 180, "seconds"),
        ("2e9tok", 2e9, "tokens"),
        ("1.5e6 tok", 1.5e6, "tokens"),
        ("10000steps", 10_000, "steps"),
    ],
)
def test_budgets_are_read(text: str, amount: float, unit: str) -> None:
    found = Budget.parse(text)
    assert (found.amount, found.unit, found.text) == (pytest.approx(amount), unit, text.strip())


@pytest.mark.parametrize(
    "text", ["", "soon", "10", "-5m", "0s", "0e3tok", "3 weeks", "5min", "1h30m", "nans", "infs", "1e400h"]
)
def test_other_texts_are_refused_with_examples(text: str) -> None:
    with pytest.raises(UserError) as error:
        Budget.parse(text)
    assert text in error.value.sentence and "90s" in error.value.remedy


class Time:
    """A clock that advances on request."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Deaf(World):
    """A rank other than the first: it hears the first rank's values, whatever its own."""

    messages = 0

    def add(self, vector: Tensor) -> Tensor:
        Deaf.messages += 1
        return vector + torch.tensor([50.0, 10.0, 1.0], dtype=torch.float64)


def test_a_time_budget_counts_from_the_start_and_progress_from_the_first_step() -> None:
    time = Time()
    clock = BudgetClock(Budget.parse("100s"), World(), started=990.0, reserve=20.0, now=time)
    assert clock.first_step_at is None
    assert clock.tick(0, 0) == Tick(10.0, 0.0) and clock.first_step_at == 10.0
    time.now += 35
    tick = clock.tick(5, 99)
    assert (tick.elapsed, tick.progress) == (45.0, 0.5)
    clock.keep_back(10.0)  # less than what is kept already
    assert clock.tick(5, 99).progress == 0.5
    clock.keep_back(40.0)
    assert clock.tick(5, 99).progress == 35 / 50 and clock.first_step_at == 10.0
    time.now += 1_000
    assert clock.tick(6, 99).progress == 1.0


@pytest.mark.parametrize("name", ["CLOCK_BOOTTIME", "CLOCK_MONOTONIC"])
def test_a_suspended_machine_is_charged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """time.monotonic() stops while the machine is suspended. The first clock continues on Linux, the second on macOS,
    which lacks the first."""
    now = {"monotonic": 500.0, "boot": 800.0}
    clocks = types.SimpleNamespace(
        CLOCK_MONOTONIC=6, monotonic=lambda: now["monotonic"], clock_gettime=lambda clock: {7: now["boot"]}[clock]
    )
    setattr(clocks, name, 7)
    monkeypatch.setattr(process, "time", clocks)
    clock = BudgetClock(Budget.parse("100s"), World(), started=process.uptime())
    assert clock.tick(0, 0) == Tick(0.0, 0.0)
    now["boot"] += 40.0
    assert clock.tick(1, 0) == Tick(40.0, 0.4)
    del clocks.CLOCK_MONOTONIC  # a system without such clocks
    vars(clocks).pop("CLOCK_BOOTTIME", None)
    assert process.uptime() == 500.0


def test_a_system_without_proc_tells_when_the_process_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the imports, which take seconds, are not charged on macOS."""
    clocks = types.SimpleNamespace(CLOCK_MONOTONIC=6, clock_gettime=lambda clock: 100.0, time=lambda: 5_000.0)
    monkeypatch.setattr(process, "time", clocks)
    monkeypatch.setattr(process, "Path", lambda name: Path("/nowhere"))
    monkeypatch.setattr(psutil, "Process", lambda: types.SimpleNamespace(create_time=lambda: 4_993.0))
    assert process.process_started() == 93.0


@pytest.mark.parametrize(("first_step_at", "progress"), [(None, 0.0), (20.0, 0.5), (0.0, 0.6)])
def test_the_time_of_earlier_processes_is_charged(first_step_at: float | None, progress: float) -> None:
    """None: no step of theirs was kept, so the schedule begins anew. 0: a run of an earlier version."""
    clock = BudgetClock(
        Budget.parse("100s"), World(), started=1_000.0, already=60.0, first_step_at=first_step_at, now=Time()
    )
    assert (clock.elapsed(), clock.tick(0, 0).progress) == (60.0, progress)


@pytest.mark.parametrize("reserve", [10.0, 20.0])
def test_a_budget_that_the_start_has_used_up_leaves_no_step(reserve: float) -> None:
    clock = BudgetClock(Budget.parse("100s"), World(), started=910.0, reserve=reserve, now=Time())
    assert clock.tick(0, 0).progress == 1.0


def test_the_reserve_is_a_validation_two_writes_and_half_a_step() -> None:
    assert MARGIN > 1 and reserve_for(validation=3.0, save=2.0, step=8.0) == pytest.approx(MARGIN * 7.0 + 4.0)


def test_progress_never_falls() -> None:
    time = Time()
    clock = BudgetClock(Budget.parse("1m"), World(), started=1_000.0, now=time)
    seen = []
    for step in range(200):
        time.now += 0.37
        if step % 50 == 0:
            clock.keep_back(step / 10)
        seen.append(clock.tick(step, 0).progress)
    assert seen == sorted(seen) and seen[-1] == 1.0


def test_tokens_and_steps_do_not_look_at_the_time() -> None:
    tokens = BudgetClock(Budget.parse("1e4tok"), World(), started=0.0, reserve=99.0)
    assert [tokens.tick(3, seen).progress for seen in (0, 2_500, 10_000, 12_000)] == [0.0, 0.25, 1.0, 1.0]
    steps = BudgetClock(Budget.parse("40steps"), World(), started=0.0)
    assert [steps.tick(step, 7).progress for step in (0, 10, 40)] == [0.0, 0.25, 1.0]
    assert tokens.first_step_at is not None and steps.first_step_at is not None


def test_a_rank_obeys_the_first_ones_clock_and_reserve() -> None:
    """Ranks validate at different speeds: were the reserve each rank's own, their schedules would drift apart."""
    clock = BudgetClock(Budget.parse("110s"), Deaf(rank=1, size=2), started=1_000.0, first_step_at=20.0, now=Time())
    clock.keep_back(37.0)
    tick = clock.tick(0, 0)
    assert (tick.elapsed, tick.progress, tick.stopping) == (50.0, 30 / 80, True)
    begins = BudgetClock(Budget.parse("110s"), Deaf(rank=1, size=2), started=900.0, now=Time())
    assert begins.tick(0, 0).progress == 0.0 and begins.first_step_at == 50.0  # the first rank's, not its own 100


def test_the_time_received_in_a_step_is_the_next_ticks_and_no_others() -> None:
    world = Deaf(rank=1, size=2)
    clock = BudgetClock(Budget.parse("110s"), world, started=1_000.0, first_step_at=0.0, now=Time())
    before = Deaf.messages
    assert clock.payload(True) == (0.0, 0.0, True)
    clock.receive([20.0, 10.0, 0.0])
    assert clock.tick(1, 0) == Tick(20.0, 0.2, False) and Deaf.messages == before
    assert clock.tick(1, 0) == Tick(50.0, 0.5, True) and Deaf.messages == before + 1


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.integers(1, 64), st.integers(0, 63))
def test_the_sum_of_all_voices_is_the_first_ranks_numbers(elapsed: float, kept: float, size: int, asked: int) -> None:
    def payload(rank: int) -> tuple[float, ...]:
        world = World(rank=rank, size=size + 1)
        started = 1_000.0 - elapsed if rank == 0 else 3.0
        clock = BudgetClock(Budget.parse("1d"), world, started=started, reserve=kept + rank, now=Time())
        return clock.payload(rank == asked)

    voices = torch.tensor([payload(rank) for rank in range(size + 1)], dtype=torch.float64)
    assert voices.sum(dim=0).tolist() == [1_000.0 - (1_000.0 - elapsed), kept, float(asked <= size)]


def test_one_process_sends_and_receives_nothing() -> None:
    clock = BudgetClock(Budget.parse("100s"), World(), started=990.0, now=Time())
    assert clock.payload(True) == ()
    clock.receive([])
    assert clock.tick(0, 0) == Tick(10.0, 0.0, False) and clock.tick(0, 0, stopping=True).stopping


def test_a_recorded_run_is_repeated_bit_for_bit() -> None:
    trace = [TraceRecord(step=i, elapsed=1.5 * i, progress=i / 3) for i in range(3)]
    clock = ReplayClock(trace)
    assert [clock.tick(i, 0).progress for i in range(4)] == [0.0, 1 / 3, 2 / 3, 1.0]
    assert clock.tick(2, 0).elapsed == clock.elapsed() == 3.0
    clock.keep_back(1e9)
    assert clock.tick(1, 0).progress == 1 / 3
    assert clock.tick(3, 0) == Tick(3.0, 1.0) and clock.tick(1, 0, stopping=True).stopping
    nothing = ReplayClock([])
    assert (nothing.tick(0, 0), nothing.elapsed()) == (Tick(0.0, 1.0), 0.0)


def test_a_torn_last_line_of_the_trace_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"step": 0, "elapsed": 1.0, "progress": 0.1}\n{"step": 1, "elapsed": 1.5, "progress": 0.30000000000000004}\n'
        '{"step": 2, "elap'
    )
    assert [record.progress for record in read_trace(path)] == [0.1, 0.30000000000000004]
    assert read_trace(tmp_path / "none.jsonl") == []
