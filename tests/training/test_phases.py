"""Two phases: when the second begins, what changes with it, and that a resumed run knows where it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daybreak.core.batch import Batch
from daybreak.core.budget import Budget
from daybreak.core.errors import UserError
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict, to_dict
from daybreak.core.world import World
from daybreak.models.modern import ModernEncoder
from daybreak.schemas.run import Decisions
from daybreak.training import checkpoint, loop
from daybreak.training.clock import BudgetClock
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.loop import fit
from daybreak.training.monitoring.journal import Journal
from daybreak.training.objectives.masked import Masked
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.phases import LossHistory, Phase, SecondPhase, schedule_progress, second_phase_starts
from daybreak.training.ramp import Ramp
from daybreak.training.schedule import Trapezoid
from daybreak.training.step import Training
from daybreak.training.validation import Validation

VOCABULARY, STEPS = 40, 30


def rows_of(length: int) -> Any:
    def take(position: int, rows: int, progress: float = 0.0) -> Batch:
        places = np.arange(position, position + rows)[:, None] * 7 + np.arange(length)[None] * 3
        ids = 5 + (places + places // 11) % (VOCABULARY - 5)
        ids[:, 0] = 2
        return Batch(ids=ids)

    return take


class Seen:
    """Requested sequences by phase."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.rows: list[int] = []

    def phase(self, length: int, batch: int) -> Phase:
        def take(position: int, rows: int, progress: float = 0.0) -> Batch:
            self.lengths.append(length)
            self.rows.append(rows)
            return rows_of(length)(position, rows)

        return Phase(take=take, length=length, rows_per_epoch=500, batch=batch, microbatch=4)


def training(folder: Path, seen: Seen, second: SecondPhase, **changes: Any) -> Training:
    torch.manual_seed(0)
    model = ModernEncoder(layers=1, hidden_size=16, heads=2, intermediate_size=12, init_std=0.2).build(VOCABULARY)
    parts: dict[str, Any] = {
        "model": model, "optimizer": AdamW(lr=1e-2).build(model), "objective": Masked(),
        "schedule": Trapezoid(warmup=0.0, decay=0.5), "phases": (seen.phase(12, 8), seen.phase(24, 4)),
        "phase2": second, "ramp": Ramp(), "clock": BudgetClock(Budget.parse(f"{STEPS}steps"), World(), started=0.0),
        "world": World(), "max_grad_norm": 1.0, "seed": 0, "device": torch.device("cpu"), "average": None,
        "validation": Validation(rows_of(12)(9_000, 8), np.ones(VOCABULARY, np.uint64), torch.device("cpu")),
        "data_parallel": DataParallel(model, World()), "run": RunFolder(folder), "journal": None, "monitors": (),
        "time_by_category": dict.fromkeys(
            ("data", "train", "communicate", "clock", "monitor", "validate", "checkpoint"), 0.0
        ),
        "decisions": Decisions(
            device="cpu", threads=torch.get_num_threads(), precision="float32", microbatch=4, world_size=1,
            reserve_seconds=0.0, validation_rows=4, validation_marks=0, matmul_gflops={},
        ),
    }  # fmt: skip
    return Training(**{**parts, **changes})


def test_the_second_phase_has_its_own_rows_batch_and_schedule(tmp_path: Path) -> None:
    seen = Seen()
    made = training(tmp_path, seen, SecondPhase(start=0.6, length=24, batch=4, lr=1e-3))
    done = fit(made, checkpoint.START)
    assert seen.lengths == [12] * 18 + [24] * 12 and seen.rows == [8] * 18 + [4] * 12
    assert done.position == 18 * 8 + 12 * 4 and done.tokens == 18 * 8 * 12 + 12 * 4 * 24
    assert done.second_from == pytest.approx(0.6)


def test_a_fresh_schedule_has_a_fresh_optimizer_and_the_old_one_goes_on_without(tmp_path: Path) -> None:
    """Adam's own step count says what it remembers."""
    counts = {}
    for lr in (0.0, 1e-3):
        made = training(tmp_path / str(lr), Seen(), SecondPhase(start=0.6, length=24, lr=lr))
        fit(made, checkpoint.START)
        counts[lr] = {float(state["step"]) for state in made.optimizer.state.values()}
    assert counts == {0.0: {30.0}, 1e-3: {12.0}}


class Stop(Exception):
    pass


def test_a_run_stopped_in_the_second_phase_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = SecondPhase(start=0.5, length=24, lr=1e-3)
    whole = training(tmp_path / "whole", Seen(), second)
    fit(whole, checkpoint.START)

    def stopping(position: int, rows: int, progress: float = 0.0) -> Batch:
        if position >= 15 * 8 + 5 * 4:
            raise Stop
        return rows_of(24)(position, rows)

    part = training(tmp_path / "part", Seen(), second)
    part = replace(part, phases=(part.phases[0], replace(part.phases[1], take=stopping)))
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(loop, "CHECKPOINT_FRACTION", 1e9)
        fit(part, checkpoint.START)
    rest = training(tmp_path / "part", Seen(), second)
    progress, torn = checkpoint.load_newest(tmp_path / "part" / "checkpoints", rest.model, rest.optimizer)
    assert progress is not None and torn == []
    assert progress.step == 20 and progress.second_from == pytest.approx(0.5)
    fit(rest, progress)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), rest.model.parameters()))


def test_the_batch_grows_along_its_ramp(tmp_path: Path) -> None:
    seen = Seen()
    phase = replace(seen.phase(12, 16), microbatch=4)
    made = training(tmp_path, seen, SecondPhase(), phases=(phase,), ramp=Ramp(fraction=0.6))
    done = fit(made, checkpoint.START)
    assert seen.rows == [min((int(16 * (step / STEPS) / (0.6 * 4) + 1e-9) + 1) * 4, 16) for step in range(STEPS)]
    assert done.position == sum(seen.rows)


def test_the_second_phase_begins_at_its_share_or_when_the_loss_is_flat() -> None:
    falling, flat = LossHistory(), LossHistory()
    for step in range(400):
        at = step / 1000
        falling = falling.add(at, 8.0 - step / 100)
        flat = flat.add(at, 6.0 if at > 0.1 else 8.0 - 20 * at)
    assert not falling.flat and flat.flat
    assert not second_phase_starts(SecondPhase(start=0.5), flat, 0.39, 7.0)
    assert second_phase_starts(SecondPhase(start=0.5), falling, 0.5, 7.0)
    assert second_phase_starts(SecondPhase(start=0.9, when_flat=True), flat, 0.39, 7.0)
    assert not second_phase_starts(SecondPhase(start=0.9, when_flat=True), falling, 0.39, 7.0)
    assert not second_phase_starts(SecondPhase(), flat, 0.99, 7.0)


def test_a_flat_loss_on_the_unigram_plateau_does_not_start_the_second_phase() -> None:
    losses = LossHistory()
    for step in range(400):
        losses = losses.add(step / 1000, 6.3 if step < 100 else 6.2)
    second = SecondPhase(start=0.9, when_flat=True)
    assert losses.flat and not second_phase_starts(second, losses, 0.39, 6.25)
    assert second_phase_starts(second, losses, 0.39, 6.5)
    assert second_phase_starts(second, losses, 0.9, 6.25)  # the plateau does not delay the start that the recipe names


def test_the_history_survives_json_and_holds_hundredths() -> None:
    history = LossHistory()
    for step in range(250):
        history = history.add(step / 1000, float(step))
    assert len(history.bins) == 24 and history.bins[0] == pytest.approx(np.mean(range(11)))
    assert from_dict(LossHistory, to_dict(history)) == history
    # A step that takes a twentieth of the run fills five bins at once.
    assert len(LossHistory().add(0.05, 3.0).bins) == 5


def test_each_phase_sees_its_own_schedule_from_0_to_1() -> None:
    fresh, same = SecondPhase(start=0.8, lr=1e-3), SecondPhase(start=0.8)
    assert schedule_progress(fresh, None, 0.4) == pytest.approx(0.5)
    assert schedule_progress(fresh, 0.8, 0.8) == 0.0 and schedule_progress(fresh, 0.8, 1.0) == 1.0
    assert schedule_progress(same, None, 0.4) == 0.4 and schedule_progress(same, 0.8, 0.9) == 0.9


@pytest.mark.parametrize("wrong", [{"start": 0.0}, {"start": 1.1}, {"batch": -1}, {"lr": -1e-3}, {"length": 4}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--phase2"):
        SecondPhase(**wrong)


def test_the_journal_holds_every_step_once_over_both_phases(tmp_path: Path) -> None:
    journal = Journal(RunFolder(tmp_path))
    fit(training(tmp_path, Seen(), SecondPhase(start=0.6, length=24), journal=journal), checkpoint.START)
    journal.close()
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    assert len(lines) == 30 and lines[6].startswith('{"step": 6, ') and lines[6].endswith('"progress": 0.2}')
