"""How many rows a device handles at a time: found by measuring, with a clock and a memory of our own here."""

from __future__ import annotations

import copy
import dataclasses
import types
from typing import Any

import pytest
import torch
from toy_run import decisions

from daybreak.core import process
from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.world import World
from daybreak.schemas.run import Decisions
from daybreak.training import calibration, checkpoint
from daybreak.training.averaging import Averaging, RunningAverage
from daybreak.training.calibration import Costs
from daybreak.training.clock import MARGIN
from daybreak.training.objectives.finish import Finish
from daybreak.training.optim.muon import Muon
from daybreak.training.optim.optimizers import AdamW, BertAdam, OptimizerConfig
from daybreak.training.phases import Phase, SecondPhase, with_microbatch
from daybreak.training.schedule import Ramp
from daybreak.training.step import Training

LENGTHS = (32, 64)


class Device:
    """Takes ``fixed`` seconds a microbatch and ``each`` a row, and holds ``memory`` rows."""

    def __init__(self, patch: pytest.MonkeyPatch, *, fixed: float, each: float, memory: int = 10**9):
        self.fixed, self.each, self.memory, self.now = fixed, each, memory, 0.0
        self.tried: list[int] = []
        patch.setattr(calibration, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(calibration, "accumulate", self.accumulate)

    def accumulate(self, training: Training, progress: checkpoint.Progress, at: float, rows: int) -> None:
        microbatch = training.phases[0].microbatch
        self.tried += [microbatch] if microbatch not in self.tried else []
        if microbatch > self.memory:
            raise torch.OutOfMemoryError("no room")
        self.now += -(-rows // microbatch) * self.fixed + rows * self.each


def training(**changes: Any) -> Training:
    """No more of a run than the search for the microbatch looks at."""
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Training)}
    phases = tuple(
        Phase(take=lambda *_: None, length=length, rows_per_epoch=1, batch=64, microbatch=1)  # type: ignore[arg-type]
        for length in LENGTHS
    )
    optimizer = types.SimpleNamespace(zero_grad=lambda **_: None, state={"exp_avg": 1})
    values |= {"finish": Finish(), "objective_start": 0.0, "ramp": Ramp(), "phase2": SecondPhase()}
    values |= {"phases": phases, "world": World(), "device": torch.device("cpu"), "optimizer": optimizer}
    return Training(**{**values, **changes})


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "machine_memory", lambda: (0, 1e12))


@pytest.mark.parametrize(("fixed", "each", "device_batch", "best", "tried"), [
    (1.0, 0.0, 64, 64, [8, 16, 32, 64]),  # the more the better, up to what a device's share holds
    (1.0, 0.0, 100, 64, [8, 16, 32, 64]),
    (0.0, 1.0, 64, 8, [8, 16]),  # nothing to win
    (0.5, 1.0, 512, 16, [8, 16, 32]),  # less than 2 % more from 16 to 32
    (1.0, 1.0, 5, 5, [5]),
])  # fmt: skip
def test_it_doubles_while_that_pays(
    fixed: float, each: float, device_batch: int, best: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch, fixed=fixed, each=each)
    assert calibration.fastest_microbatch(training(), checkpoint.START, device_batch) == best
    assert device.tried == tried


def test_it_stops_where_memory_does(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    device = Device(monkeypatch, fixed=1.0, each=0.0, memory=20)
    assert calibration.fastest_microbatch(training(), checkpoint.START, 512) == 16
    assert device.tried == [8, 16, 32]
    assert "A microbatch of 32 sequences does not fit into this device's memory." in capsys.readouterr().out


def test_it_halves_where_the_first_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, fixed=1.0, each=0.0, memory=3)
    assert calibration.fastest_microbatch(training(), checkpoint.START, 64) == 2
    assert device.tried == [8, 4, 2]


def test_a_device_that_holds_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Device(monkeypatch, fixed=1.0, each=0.0, memory=0)
    with pytest.raises(UserError, match="Not even a single sequence fits"):
        calibration.fastest_microbatch(training(), checkpoint.START, 64)


def test_a_processor_stops_before_its_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a process that asks for too much is killed without a word."""
    device = Device(monkeypatch, fixed=1.0, each=0.0)
    peaks = iter([100, 130, 160, 400])  # before, and after 8, 16 and 32 rows
    monkeypatch.setattr(calibration, "peak_bytes", lambda: next(peaks))
    monkeypatch.setattr(calibration, "machine_memory", lambda: (0, 1000))
    assert calibration.fastest_microbatch(training(), checkpoint.START, 512) == 32
    assert device.tried == [8, 16, 32]


@pytest.mark.parametrize(("platform", "peak"), [("darwin", 3_000), ("linux", 3_072_000)])
def test_the_memory_without_proc_is_in_the_unit_of_the_system(
    platform: str, peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 1,024 times the memory, macOS would end the search for the microbatch at its first size."""
    usage = types.SimpleNamespace(RUSAGE_SELF=0, getrusage=lambda _: types.SimpleNamespace(ru_maxrss=3_000))
    monkeypatch.setattr(process, "resource", usage)
    monkeypatch.setattr(process, "status_bytes", lambda name: None)
    monkeypatch.setattr(process, "sys", types.SimpleNamespace(platform=platform))
    assert process.peak_bytes() == peak


def test_the_optimizers_memory_is_in_use_during_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a microbatch fits in the search and no longer after the first update."""
    model = torch.nn.Linear(3, 2)
    optimizer = AdamW(lr=0.1).build(model)
    device, held = Device(monkeypatch, fixed=1.0, each=0.0), []
    monkeypatch.setattr(
        calibration, "accumulate", lambda *call: (device.accumulate(*call), held.append(len(optimizer.state)))
    )
    made = training(optimizer=optimizer, decisions=types.SimpleNamespace(precision="float32"))
    before = copy.deepcopy(model.state_dict())
    calibration.fastest_microbatch(made, checkpoint.START, 16)
    calibration.largest_microbatch(made, checkpoint.START, 16, 8)
    assert set(held) == {2} and not optimizer.state and optimizer.param_groups[0]["lr"] == 0.1
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize(("memory", "device_batch", "largest", "tried"), [
    (100, 512, 64, [16, 32, 64, 128]),
    (1000, 100, 100, [16, 32, 64, 100]),  # no more than a device's part of the batch
    (20, 512, 16, [16, 32]),
])  # fmt: skip
def test_the_largest_microbatch_fills_the_memory(
    memory: int, device_batch: int, largest: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(monkeypatch, fixed=1.0, each=1.0, memory=memory)
    found, speed = calibration.largest_microbatch(training(), checkpoint.START, device_batch, 16)
    assert (found, device.tried) == (largest, tried)
    assert speed == pytest.approx((largest / (1 + largest)) / (16 / 17))


def test_longer_rows_come_fewer_at_a_time() -> None:
    found = with_microbatch(training().phases, 16)
    assert [phase.microbatch for phase in found] == [16, 8]
    assert [phase.microbatch for phase in with_microbatch(found, 1)] == [1, 1]


@pytest.mark.parametrize(
    ("budget", "epochs"),
    # 64 rows of 32 positions a step, 1,000 rows a pass; 2 steps a second in the first half and then up to 4, 20 s are
    # charged or kept back, 2 % of what is left is for validations.
    [("140s", 0.98 * 120 * (0.5 * 2 + 0.5 * 3) * 64 / 1000), ("100steps", 6.4), ("2048000tok", 64.0)],
)
def test_how_often_a_run_will_read_its_text_is_known_before_its_first_step(budget: str, epochs: float) -> None:
    decisions = types.SimpleNamespace(precision="float32", course_seconds=[0.5, 0.5, 0.25], reserve_seconds=5.0)
    phases = tuple(dataclasses.replace(phase, rows_per_epoch=1000) for phase in training().phases)
    clock = types.SimpleNamespace(first_step_at=None)
    made = training(phases=phases, decisions=decisions, clock=clock)
    assert calibration.expected_epochs(made, Budget.parse(budget), 15.0) == pytest.approx(epochs)
    clock.first_step_at = 15.0  # resumed at a quarter of its course
    if budget == "140s":
        left = 0.98 * 120 * (0.25 * 2 + 0.5 * 3) * 64 / 1000
        assert calibration.expected_epochs(made, Budget.parse(budget), 45.0) == pytest.approx(left)


def simulated_epochs(made: Training, budget: Budget, amount: float, tokens_per_second: float) -> float:
    """Passes over the text of a run that is played step by step, on a device that reads all tokens equally fast."""
    progress, used = dataclasses.replace(checkpoint.START, epochs=0.0), 0.0
    while (at := used / amount) < 1.0:
        if progress.second_from is None and made.phase2.enabled and at >= made.phase2.start:
            progress = dataclasses.replace(progress, second_from=at)
        rows, phase = made.rows_of_step(progress, at), made.phase(progress, at)
        tokens = rows * phase.length
        used += {"steps": 1.0, "tokens": tokens, "seconds": tokens / tokens_per_second}[budget.unit]
        epochs = made.epochs(progress) + rows / phase.rows_per_epoch
        progress = dataclasses.replace(progress, position=progress.position + rows, epochs=epochs)
    return made.epochs(progress)


@pytest.mark.parametrize("budget", ["300steps", "5000steps", "3000000tok", "1000s"])
@pytest.mark.parametrize("phase2", [SecondPhase(), SecondPhase(start=0.6, length=64, batch=16)], ids=["one", "two"])
@pytest.mark.parametrize(
    "ramp", [Ramp(), Ramp(fraction=0.5), Ramp(microbatches=2000)], ids=["whole", "growing", "in microbatches"]
)
def test_the_expected_passes_are_those_of_a_played_schedule(ramp: Ramp, phase2: SecondPhase, budget: str) -> None:
    decisions = types.SimpleNamespace(precision="float32", course_seconds=[0.2] * 3, reserve_seconds=5.0)
    first, second = training().phases
    phases = (
        dataclasses.replace(first, rows_per_epoch=1000, batch_multiple=4),
        dataclasses.replace(second, rows_per_epoch=480, batch=phase2.batch or 64, batch_multiple=4),
    )
    clock = types.SimpleNamespace(first_step_at=None)
    made = training(phases=phases, decisions=decisions, clock=clock, ramp=ramp, phase2=phase2)
    parsed = Budget.parse(budget)
    amount = 0.98 * (parsed.amount - 20.0) if parsed.unit == "seconds" else parsed.amount
    played = simulated_epochs(made, parsed, amount, tokens_per_second=64 * 32 / 0.2)
    assert calibration.expected_epochs(made, parsed, 15.0) == pytest.approx(played, rel=0.01)


@pytest.mark.parametrize(
    ("epochs", "words"),
    [
        (0.3, ""),
        (1.0, ""),
        (1.2, "1.2 times; up to about 4"),
        (4.0, "4.0 times; up to"),
        (4.3, "4.3 times; beyond about 4"),
        (10.4, "10 times; beyond about 4"),
    ],
)
def test_every_repetition_of_the_text_is_announced(epochs: float, words: str) -> None:
    assert calibration.repetition(epochs).startswith(words) and bool(calibration.repetition(epochs)) == bool(words)


def test_a_validation_is_timed_as_it_will_be_made() -> None:
    """With dropout it would take longer, and a compiled model would be compiled for rows that it never trains on."""
    model = torch.nn.Dropout()
    modes: list[bool] = []
    see = {"measure": lambda model, **_: modes.append(model.training)}
    validation = types.SimpleNamespace(rows=8, row_seconds=0.25, **see)
    made = training(model=model, validation=validation)
    assert calibration._time_row(made, checkpoint.START) == 0.25
    assert modes == [False] and model.training


@pytest.mark.parametrize(
    "config", [AdamW(lr=0.1), BertAdam(lr=0.1), Muon(lr=0.1, adam_lr=0.1)], ids=lambda c: type(c).__name__
)
def test_an_update_is_timed_without_a_trace(config: OptimizerConfig) -> None:
    """A run that goes on from another one has an optimizer that remembers, and overflown gradients come up as well."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6))
    optimizer = config.build(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    optimizer.register_step_post_hook(count)
    decisions = types.SimpleNamespace(precision="bfloat16")
    seconds, remembered = calibration._time_update(training(optimizer=optimizer, decisions=decisions))
    held = [tensor for state in optimizer.state.values() for tensor in state.values() if torch.is_tensor(tensor)]
    assert seconds > 0 and remembered == sum(4 * tensor.numel() for tensor in held) > 0
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    assert calls == 2


def test_a_step_takes_as_long_as_its_rows_and_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many rows are timed, and a larger batch has no more updates for that."""
    device = Device(monkeypatch, fixed=0.0, each=1.0)
    assert calibration._time_step(training(), checkpoint.START, 1.0, fixed=5.0) == 64 + 5
    assert device.now == calibration.PROBE_STEP_ROWS


@pytest.mark.parametrize(("microbatch", "timed"), [(8, 32), (24, 48), (32, 32), (64, 64)])
def test_a_step_is_timed_on_whole_microbatches(microbatch: int, timed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of another number would be compiled for nothing else."""
    device = Device(monkeypatch, fixed=0.0, each=1.0)
    phases = with_microbatch(training().phases, microbatch)
    made = training(phases=tuple(dataclasses.replace(phase, batch=192) for phase in phases))
    assert calibration._time_step(made, checkpoint.START, 1.0, fixed=5.0) == 192 + 5
    assert device.now == timed


def test_the_queue_of_a_gpu_is_empty_before_and_after_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an update would be charged for the backward pass before it."""
    now, queued = 0.0, 40.0

    def work() -> None:
        nonlocal queued
        queued += 2.0

    def synchronize(_: object) -> None:
        nonlocal now, queued
        now, queued = now + queued, 0.0

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(calibration, "time", types.SimpleNamespace(monotonic=lambda: now))
    assert calibration._timed(training(device=torch.device("cuda")), work) == 2.0


def test_a_checkpoint_is_expected_to_hold_the_optimizers_memory() -> None:
    model = torch.nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    made = training(model=model, optimizer=optimizer)
    assert calibration._growth_of_a_checkpoint(made, 800) == 3.0
    averaging = training(model=model, optimizer=optimizer, average=RunningAverage(Averaging(), model))
    assert calibration._growth_of_a_checkpoint(averaging, 800) == 4.0  # an average begins with its first step
    optimizer.state[model.weight] = {"exp_avg": torch.zeros(10, 10), "exp_avg_sq": torch.zeros(10, 10), "lag": 1}
    assert calibration._growth_of_a_checkpoint(made, 800) == 1.0  # it goes on from another run's


@pytest.mark.parametrize(
    ("setting", "device", "budget", "worth"),
    [
        ("auto", "cuda", "4m", True),
        ("auto", "cuda", "3m", False),
        ("auto", "cuda", "100steps", True),
        ("auto", "cpu", "24h", False),
        ("on", "cpu", "3m", True),
        ("off", "cuda", "24h", False),
    ],
)
def test_compiling_must_be_repaid(setting: str, device: str, budget: str, worth: bool) -> None:
    assert calibration.worth_compiling(setting, torch.device(device), Budget.parse(budget)) == worth


def test_the_fastest_precision_is_chosen_and_validations_fit_into_their_part_of_the_budget() -> None:
    costs = Costs(step={"float32": 0.5, "bfloat16": 0.2}, by_progress=[0.2] * 3, row=0.01, save=1.0, first=1.0)

    def decided(budget: str) -> Decisions:
        return calibration.decide(decisions(), Budget.parse(budget), costs=costs, rows=512, final=5.12, elapsed=10.0)

    found = decided("1000s")
    assert found.precision == "bfloat16" and found.reserve_seconds == pytest.approx(MARGIN * (5.12 + 2.0) + 0.1)
    # Of the 20 seconds for validations 14.88 are left for those during the run: 1,488 sequences, so ten times 128.
    assert (found.validation_marks, found.validation_rows) == (10, 128)
    short = decided("290s")  # 0.68 seconds are 64 sequences
    assert (short.validation_marks, short.validation_rows) == (2, 32)
    assert decided("250s").validation_marks == 0
    steps = decided("100steps")
    assert (steps.reserve_seconds, steps.validation_marks, steps.validation_rows) == (0.0, 10, 512)
