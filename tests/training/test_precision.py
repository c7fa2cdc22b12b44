"""Half precision: float16 with its loss scale, on the CPU, against float32."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_run import (
    Around,
    Neighbours,
    Poisoned,
    Recorded,
    Stopped,
    descending,
    equal,
    journaled,
    newest,
    replayed,
    training,
    weights,
)

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.schemas.run import Decisions
from daybreak.training import checkpoint, guard
from daybreak.training.checkpoint import START, Progress
from daybreak.training.guard import FIRST_SCALE, LossScale
from daybreak.training.loop import fit
from daybreak.training.step import Training, accumulate, take_step

HALF = replace(START, scale=LossScale(factor=1024.0))
"""The toy overflows at FIRST_SCALE itself, which would blur what is overflowing on purpose."""


class Backwards(torch.autograd.Function):
    """A number as it is, whose gradient passes through float16 and overflows there above 65504."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.half().float()


@dataclass(frozen=True, kw_only=True)
class Steep(Around):
    """The loss of ``inner`` times ``slope`` and back: gradients of ``slope * scale`` pass through float16."""

    slope: float
    since: int = 0
    """From this row of the run on."""

    def loss(self, model: Encoder, batch: Batch, *, position: int, **more: Any) -> LossSum:
        found = self.inner.loss(model, batch, position=position, **more)
        slope = self.slope if position >= self.since else 1.0
        return replace(found, sum=Backwards.apply(found.sum / slope) * slope)


@dataclass(frozen=True, kw_only=True)
class Spiked(Around):
    """The loss of ``inner``, ``times`` as high in the rows from 200 to 207: a step like no other."""

    times: float

    def loss(self, model: Encoder, batch: Batch, *, position: int, **more: Any) -> LossSum:
        found = self.inner.loss(model, batch, position=position, **more)
        return replace(found, sum=found.sum * self.times) if 200 <= position < 208 else found


def gradient(made: Training, progress: Progress) -> torch.Tensor:
    """Gradient of the mean over targets, all parameters concatenated, unscaled."""
    count = accumulate(made, progress, 0.1, 8).targets
    parts = [parameter.grad for parameter in made.model.parameters()]
    made.optimizer.zero_grad()
    return torch.cat([part.flatten() for part in parts if part is not None]) / (count * progress.scale.factor)


def test_gradients_are_those_of_float32_to_the_precision_of_float16(tmp_path: Path) -> None:
    exact = gradient(training(tmp_path), START)
    half = gradient(training(tmp_path, precision="float16"), HALF)
    assert half.dtype == torch.float32 and not torch.equal(half, exact)  # it did compute in float16
    assert (half - exact).norm() < 5e-3 * exact.norm()


def test_a_step_is_that_of_float32_whatever_the_scale(tmp_path: Path) -> None:
    """Plain SGD, whose step is the gradient itself, and a clip that takes part: neither may see the scale."""
    moves, norms = [], []
    for scale in (1.0, 64.0, 1024.0):
        precision = "float32" if scale == 1.0 else "float16"
        made = descending(training(tmp_path, precision=precision, max_grad_norm=0.5))
        before = weights(made)
        norms.append(take_step(made, replace(START, scale=LossScale(factor=scale)), 0.1).norm)
        moves.append(torch.cat([(a - b).flatten() for a, b in zip(before, weights(made), strict=True)]))
    assert moves[0].norm() == pytest.approx(0.5, rel=1e-4) and norms[0] > 1
    for move, norm in zip(moves[1:], norms[1:], strict=True):
        assert (move - moves[0]).norm() < 5e-3 * 0.5 and norm == pytest.approx(norms[0], rel=5e-3)


def test_the_loss_scale_saves_small_gradients(tmp_path: Path) -> None:
    """Gradients of 2 ** -30 are nothing in float16; multiplied by 2 ** 10 they are not."""
    objective = Steep(inner=Neighbours(), slope=2.0**-30)
    exact = gradient(training(tmp_path), START)
    unscaled = gradient(training(tmp_path, objective=objective), START)
    scaled = gradient(training(tmp_path, objective=objective), HALF)
    assert unscaled.norm() == 0 and (scaled - exact).norm() < 1e-5 * exact.norm()


def test_an_overflow_halves_the_scale_and_leaves_out_the_step(tmp_path: Path) -> None:
    """At a slope of 512 a scale of 1024 overflows four times: 2 ** 9 * 2 ** 6 is the first that fits into float16."""
    objective = Steep(inner=Neighbours(), slope=512.0)
    made = training(tmp_path, precision="float16", objective=objective)
    before = weights(made)
    progress, factors = HALF, []
    while True:
        outcome = take_step(made, progress, 0.1)
        progress = outcome.progress
        if outcome.updated:
            break
        factors.append(progress.scale.factor)
        assert outcome.loss == pytest.approx(4.0, abs=1.5)
        assert all(torch.equal(a, b) for a, b in zip(before, weights(made), strict=True))
    assert factors == [512, 256, 128, 64]
    assert progress.scale == LossScale(factor=64.0, good=1)
    # Overflows are no divergence, whatever their number, but skipped steps; their sequences are consumed.
    assert (progress.health.dropped, progress.health.recent, progress.health.seen) == (4, 0, 1)
    assert (progress.step, progress.position) == (5, 40)


def test_overflows_alone_never_send_a_run_back(tmp_path: Path) -> None:
    """Seven overflows in a row, more than a run may have bad steps."""
    objective = Steep(inner=Neighbours(), slope=4096.0)
    made = training(tmp_path, precision="float16", objective=objective)
    done = fit(made, HALF)
    assert (done.step, done.health.dropped) == (30, 7) and done.scale.factor == 8.0


@pytest.mark.parametrize("times", [10.0, float("nan")])
def test_a_loss_that_explodes_is_not_the_scales_fault(tmp_path: Path, times: float) -> None:
    """Its gradient is finite, or its loss is not: a smaller scale would help neither."""
    made = training(tmp_path, precision="float16", objective=Spiked(inner=Neighbours(), times=times))
    made = replace(made, run=None)
    done = fit(made, HALF)
    assert done.health.dropped == 1 and done.scale.factor == 1024.0
    assert done.health.recent == 1 << (30 - 26)  # step 25 of 30, and it does count as bad


def test_the_scale_grows_after_good_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GROWTH_INTERVAL", 10)
    done = fit(training(tmp_path, precision="float16"), HALF)
    assert done.scale == LossScale(factor=8 * 1024.0) and done.health.dropped == 0


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_learns_as_float32_does(tmp_path: Path, precision: str) -> None:
    losses = {}
    for name in ("float32", precision):
        made = training(tmp_path / name, steps=80, precision=name)
        progress = fit(made, HALF if name == "float16" else START)
        losses[name] = (progress.health.loss, made)
        assert progress.health.dropped == 0
    assert losses[precision][0] == pytest.approx(losses["float32"][0], rel=0.05)
    assert losses["float32"][0] < 2.5  # from 3.7, that of guessing
    assert not equal(losses[precision][1], losses["float32"][1])
    assert all(weight.dtype == torch.float32 for weight in weights(losses[precision][1]))


@pytest.mark.usefixtures("checkpoint_each_step")
def test_a_resume_and_a_replay_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With overflows, a growing scale and an exploding step on both sides of the cut."""
    monkeypatch.setattr(guard, "GROWTH_INTERVAL", 7)
    objective = Steep(inner=Spiked(inner=Neighbours(), times=1e3), slope=128.0)

    first = replace(START, scale=LossScale.first("float16"))

    def run(name: str, **changes: Any) -> Training:
        return training(tmp_path / name, precision="float16", **{"objective": objective, **changes})

    whole = run("whole")
    done = journaled(whole, first)
    assert done.health.dropped > 3
    with pytest.raises(Stopped):
        journaled(Recorded(run("part"), stop=18 * 8).training, first)
    rest = run("part")
    progress = newest(RunFolder(tmp_path / "part").checkpoints, rest)
    assert progress.step == 18 and progress.scale.factor not in (1.0, FIRST_SCALE)
    again = fit(rest, progress)
    assert equal(whole, rest) and (again.health, again.scale) == (done.health, done.scale)
    replay, same = replayed(run("again"), tmp_path / "whole")
    assert equal(whole, replay) and (same.health, same.scale) == (done.health, done.scale)


def test_going_back_to_the_very_start_begins_with_the_first_scale(tmp_path: Path) -> None:
    """The checkpoint of step 0 was written while the precision was being chosen, so it knows of no scale."""
    sick = Poisoned(inner=Neighbours(), first=0, last=39)
    made = training(tmp_path / "run", precision="float16", objective=sick)
    run = RunFolder(tmp_path / "run")
    checkpoint.save(run.checkpoints, START, made.model, made.optimizer)
    done = journaled(made, replace(START, scale=LossScale.first("float16")))
    (change,) = read_json(run.decisions, Decisions).changes
    assert (change.step, change.skip_to) == (0, 40)
    assert (done.health.dropped, done.scale.factor) == (6, FIRST_SCALE / 2)  # five before, one overflow after
    again, other = replayed(training(tmp_path / "again", precision="float16", objective=sick), run.path)
    assert equal(made, again) and other.scale == done.scale


def test_a_scale_that_can_shrink_no_further_is_no_excuse(tmp_path: Path) -> None:
    objective = Steep(inner=Neighbours(), slope=1e6)
    with pytest.raises(UserError, match="diverges at step 14"):  # 9 halvings, then five bad steps
        fit(training(tmp_path, precision="float16", objective=objective), HALF)
