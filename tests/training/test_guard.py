"""What counts as a bad step, when a run is ill, and the loss scale of float16."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.core.serialization import from_dict, to_dict
from daybreak.training.checkpoint import START, Progress
from daybreak.training.guard import (
    FIRST_SCALE,
    GROWTH_INTERVAL,
    LARGEST_SCALE,
    MAX_BAD_STEPS,
    SETTLING_STEPS,
    WINDOW,
    Health,
    LossScale,
)

CLIP = 1.0


def after(losses: list[float], norms: list[float] | None = None, health: Health = Health()) -> Health:
    """The health after these steps, of which none may be bad."""
    for place, (loss, norm) in enumerate(zip(losses, norms or [1.0] * len(losses), strict=True)):
        assert not health.is_bad(loss, norm, CLIP), f"step {place}: {loss}, {norm}, {health}"
        health = health.after_good(loss, norm)
    return health


def falling(start: float, end: float, steps: int, noise: float, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    curve = end + (start - end) * np.exp(-5 * np.arange(steps) / steps)
    return [float(loss) for loss in curve + rng.normal(0, noise, steps)]


@pytest.mark.parametrize("seen", [0, 5, SETTLING_STEPS, 5_000])
@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (5.0, math.nan), (5.0, math.inf), (-math.inf, math.nan)]
)
def test_what_is_not_finite_is_always_bad(seen: int, loss: float, norm: float) -> None:
    assert Health(seen=seen, loss=5.0, lowest=5.0).is_bad(loss, norm, CLIP)
    assert not Health(seen=seen, loss=5.0, lowest=5.0).is_bad(5.0, 1.0, CLIP)


@given(
    start=st.floats(6.0, 12.0),
    end=st.floats(1.5, 5.0),
    steps=st.integers(30, 400),
    noise=st.floats(0.0, 0.3),
    norm=st.floats(0.01, 50.0),
    seed=st.integers(0, 99),
)
def test_no_ordinary_step_is_bad(start: float, end: float, steps: int, noise: float, norm: float, seed: int) -> None:
    """Losses that fall with noise, and norms that scatter by a factor of three about their usual one."""
    norms = norm * np.exp(np.random.default_rng(seed).normal(0, 0.4, steps))
    health = after(falling(start, end, steps, noise, seed), norms.tolist())
    assert health.dropped == 0 and not health.has_diverged


@given(st.floats(0.5, 6.0), st.integers(SETTLING_STEPS, 300), st.integers(0, 99))
def test_a_change_of_stage_is_no_explosion(end: float, steps: int, seed: int) -> None:
    """From next-token prediction to masked tokens: the loss jumps to the unigram loss of 7.3, the norm a hundredfold.

    For repetitive text the next token is almost certain.
    """
    health = after(falling(9.0, end, steps, 0.1, seed), [0.2] * steps, Health().in_stage("causal"))
    assert health.in_stage("causal") == health
    health = after(falling(7.3, 4.5, 200, 0.1, seed), [27.0] * 20 + [0.8] * 180, health.in_stage("masked"))
    assert health.is_bad(12.5, 0.8, CLIP)  # the new stage has a usual of its own
    # And longer rows, half as many: a second phase.
    for loss in falling(5.5, 4.0, 100, 0.3, seed):
        assert not health.is_bad(loss, 2.0, CLIP)
        health = health.after_good(loss, 2.0)


def test_an_explosion_is_bad() -> None:
    health = after(falling(9.0, 3.0, 300, 0.1, 1), [0.5] * 300)
    # Usual is 3: more than 2 * 3 + 3 nats.
    assert not health.is_bad(8.9, 0.5, CLIP) and health.is_bad(9.3, 0.5, CLIP)
    # Usual is 0.5: more than 100 times that.
    assert not health.is_bad(3.0, 49.0, CLIP) and health.is_bad(3.0, 51.0, CLIP)
    # Clipping that lets by 100 is not alarmed before 1000; norms near 0 are no reason for alarm at all.
    assert not health.is_bad(3.0, 999.0, 100.0) and health.is_bad(3.0, 1001.0, 100.0)
    quiet = after([3.0] * 50, [1e-6] * 50)
    assert not quiet.is_bad(3.0, 9.9, CLIP) and quiet.is_bad(3.0, 10.1, CLIP)


def test_a_young_run_may_do_what_it_likes_but_overflow() -> None:
    health = after([10.0, 4e3, 7.0] * 6, [1.0, 9e5, 2.0] * 6)
    assert health.seen < SETTLING_STEPS and not health.is_bad(1e6, 1e9, CLIP)


def test_slow_growth_is_caught_for_the_lowest_loss_counts() -> None:
    """Where each step is 3 % above the last, a running mean alone would follow for ever."""
    health, loss = after(falling(9.0, 3.0, 300, 0.0, 1)), 3.0
    while not health.is_bad(loss, 1.0, CLIP):
        health, loss = health.after_good(loss, 1.0), loss * 1.03
        assert loss < 12.0
    assert loss > 8.0


def stepped(health: Health, kind: str) -> Health:
    """The health after a step of this kind."""
    if kind == "good":
        return health.after_good(5.0, 1.0)
    return health.after_bad() if kind == "bad" else health.after_overflow()


@given(st.lists(st.sampled_from("good bad overflow".split()), max_size=120))
def test_a_run_is_ill_after_too_many_bad_steps_in_the_window(steps: list[str]) -> None:
    health = Health()
    for place, kind in enumerate(steps, start=1):
        health = stepped(health, kind)
        assert health.has_diverged == (steps[max(0, place - WINDOW) : place].count("bad") >= MAX_BAD_STEPS)
        assert health.dropped == place - steps[:place].count("good")
        assert health.seen == steps[:place].count("good")


@given(st.lists(st.sampled_from("good bad overflow".split()), max_size=60))
def test_the_first_bad_step_is_known(steps: list[str]) -> None:
    """Checkpoints before it were followed by a step that went well or at least not badly."""
    health = Health()
    for kind in steps:
        health = stepped(health, kind)
    recent = range(max(0, len(steps) - WINDOW), len(steps))
    expected = next((step for step in recent if steps[step] == "bad"), len(steps))
    assert replace(START, step=len(steps), health=health).first_bad == expected


def test_the_usual_is_a_running_mean() -> None:
    """Plain means at first, then a twentieth of the newest: against the sums written out."""
    losses, norms = [float(9 - step / 10) for step in range(40)], [math.exp(step / 10) for step in range(40)]
    health = after(losses[:20], norms[:20])
    assert health.loss == pytest.approx(np.mean(losses[:20]))
    assert health.log_norm == pytest.approx(np.mean(np.log(norms[:20])))
    assert health.lowest == health.loss
    for loss, norm in zip(losses[20:], norms[20:]):
        health = health.after_good(loss, norm)
    weights = [0.95**20 / 20] * 20 + [0.05 * 0.95 ** (39 - step) for step in range(20, 40)]
    assert health.loss == pytest.approx(np.dot(weights, losses))
    assert health.log_norm == pytest.approx(np.dot(weights, np.log(norms)))


def test_progress_of_an_earlier_version_is_healthy() -> None:
    plain = {name: value for name, value in to_dict(START).items() if name not in ("health", "scale", "best")}
    assert from_dict(Progress, plain) == START


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_float16_has_a_loss_scale(precision: str) -> None:
    scale = LossScale.first(precision)
    for _ in range(3 * GROWTH_INTERVAL):
        scale = scale.after_good()
    assert scale == LossScale() and scale.factor == 1.0 and not scale.can_shrink
    assert LossScale.first("float16").factor == FIRST_SCALE


def test_the_loss_scale_grows_after_good_steps_up_to_its_largest() -> None:
    scale, factors = LossScale(factor=LARGEST_SCALE / 4), []
    for _ in range(4 * GROWTH_INTERVAL):
        scale = scale.after_good()
        factors.append(scale.factor)
    changes = [place + 1 for place in range(1, len(factors)) if factors[place] != factors[place - 1]]
    assert changes == [GROWTH_INTERVAL, 2 * GROWTH_INTERVAL] and factors[-1] == LARGEST_SCALE


def test_the_loss_scale_halves_down_to_two_and_counts_anew() -> None:
    scale = replace(LossScale.first("float16"), good=GROWTH_INTERVAL - 1)
    halvings = 0
    while scale.can_shrink:
        scale, halvings = scale.after_overflow(), halvings + 1
        assert scale.good == 0
    assert scale.factor == 2.0 and halvings == math.log2(FIRST_SCALE) - 1
