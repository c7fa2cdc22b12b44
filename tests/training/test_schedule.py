"""The learning rate as a pure function of progress, against the tables of those who first used it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daybreak.core.errors import UserError
from daybreak.training.schedule import BudgetTriangle, Cosine, Schedule, Trapezoid, Unfinished, WarmupLinear


def stock(name: str, steps: int, **settings: Any) -> list[float]:
    """The multipliers that transformers' schedule of this name gives for steps 0, 1, ... ``steps``."""
    from transformers import optimization

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
    theirs = getattr(optimization, f"get_{name}_schedule_with_warmup")(optimizer, num_training_steps=steps, **settings)
    found = []
    for _ in range(steps + 1):
        found.append(theirs.get_last_lr()[0] / 1e-4)
        optimizer.step()
        theirs.step()
    return found


@pytest.mark.parametrize(
    ("progress", "expected"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.4, 1.0), (0.6, 1.0), (0.8, 0.5), (1.0, 0.0)]
)
def test_it_rises_stays_and_falls(progress: float, expected: float) -> None:
    assert Trapezoid(warmup=0.1, decay=0.4)(progress) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [Trapezoid, BudgetTriangle, WarmupLinear, Cosine])
def test_the_defaults_are_a_whole_schedule(kind: type[Schedule]) -> None:
    multipliers = [kind()(step / 100) for step in range(101)]
    assert max(multipliers) == pytest.approx(1.0, abs=0.02) and min(multipliers) >= 0 and multipliers[-1] < 0.02


def test_without_ramps_it_is_flat() -> None:
    assert [Trapezoid(warmup=0.0, decay=0.0)(p) for p in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


def test_a_trapezoid_is_transformers_linear_schedule() -> None:
    """With a warm-up of 0.06 Izsak's, with 0.5 that of the 8 GB run: up for the first half, down for the second."""
    for warmup in (6, 50):
        ours = Trapezoid(warmup=warmup / 100, decay=1 - warmup / 100)
        theirs = stock("linear", 100, num_warmup_steps=warmup)
        assert [ours(step / 100) for step in range(101)] == pytest.approx(theirs)
    half = Trapezoid(warmup=0.5, decay=0.5)
    assert [half(p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 0.5, 1.0, 0.5, 0.0]


def test_cosine_is_transformers_cosine() -> None:
    theirs = stock("cosine", 100, num_warmup_steps=6)
    assert [Cosine(warmup=0.06)(step / 100) for step in range(101)] == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("progress", "expected"), [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0), (0.875, 0.5), (1.0, 0.0)]
)
def test_the_budget_triangle_of_crammed_bert(progress: float, expected: float) -> None:
    assert BudgetTriangle()(progress) == pytest.approx(expected)
    assert BudgetTriangle()(progress) == pytest.approx(min(0.25 + progress, 4 * (1 - progress)))


def test_the_other_budget_triangles() -> None:
    assert [BudgetTriangle(base=0.5)(p) for p in (0.0, 0.375, 0.75)] == pytest.approx([0.5, 0.75, 1.0])
    assert [BudgetTriangle(base=0.0, falloff=0.5)(p) for p in (0.25, 0.5, 0.75)] == pytest.approx([0.5, 1.0, 0.5])
    assert BudgetTriangle()(1.01) == 0.0


def test_berts_own_schedule_jumps_where_the_warm_up_ends() -> None:
    """google-research/bert, 1,000,000 steps of which 10,000 warm up: the decay counts from step 0."""
    ours = WarmupLinear(warmup=0.01)
    steps = (0, 5_000, 9_999, 10_000, 500_000, 1_000_000)
    expected = [0.0, 0.5, 0.9999, 0.99, 0.5, 0.0]
    assert [ours(step / 1_000_000) for step in steps] == pytest.approx(expected)
    assert WarmupLinear(warmup=0.0)(0.0) == 1.0 and ours(1.01) == 0.0


def test_a_warm_up_in_steps_is_a_fraction_of_the_run() -> None:
    assert WarmupLinear(warmup_steps=10).with_steps(200) == WarmupLinear(warmup=0.05)
    assert WarmupLinear(warmup_steps=10).with_steps(5) == WarmupLinear(warmup=1.0)
    for unchanged in (WarmupLinear(warmup=0.2), Trapezoid(), Unfinished()):
        assert unchanged.with_steps(200) == unchanged


def test_the_unfinished_schedule_is_transformers_polynomial_of_microbatches() -> None:
    ours = Unfinished(warmup=20, whole=120, microbatch=8)
    theirs = stock("polynomial_decay", 120, num_warmup_steps=20, lr_end=1e-7, power=1.0)
    assert [ours(0.5, 8 * step) for step in range(121)] == pytest.approx(theirs)
    assert ours(0.0, 8 * 500) == pytest.approx(1e-3)
    assert ours(0.0, 8 * 7 + 7) == ours(1.0, 8 * 7) == 7 / 20


def test_a_day_does_not_finish_berts_schedule() -> None:
    schedule = Unfinished()
    a_day = 600_000 * 64  # rows of about 600,000 microbatches
    assert schedule(0.0, 40_000 * 64) == 0.5 and schedule(0.0, 80_000 * 64) == 1.0
    assert schedule(1.0, a_day) == pytest.approx(0.934, abs=0.001)


ANY = st.one_of(
    st.builds(Trapezoid, warmup=st.floats(0, 1), decay=st.floats(0, 1)),
    st.builds(BudgetTriangle, base=st.floats(0, 1), falloff=st.floats(0.001, 0.999)),
    st.builds(WarmupLinear, warmup=st.floats(0, 1)),
    st.builds(Cosine, warmup=st.floats(0, 1)),
    st.builds(Unfinished, warmup=st.integers(0, 90), whole=st.integers(91, 200), floor=st.floats(0, 1)),
)


@given(schedule=ANY, progress=st.floats(0, 1.2), rows=st.integers(0, 300 * 64))
def test_it_stays_within_0_and_1(schedule: Schedule, progress: float, rows: int) -> None:
    assert 0.0 <= schedule(progress, rows) <= 1.0


@given(schedule=ANY, first=st.floats(0, 1), second=st.floats(0, 1))
def test_it_never_rises_once_the_decay_has_started(schedule: Schedule, first: float, second: float) -> None:
    start = schedule.decay_starts
    earlier, later = sorted((start + (1 - start) * first, start + (1 - start) * second))
    assert 0.0 <= start <= 1.0
    assert schedule(later) <= schedule(earlier) + 1e-9
    assert isinstance(schedule, WarmupLinear) or schedule(earlier) <= schedule(start) + 1e-9


def test_where_the_decay_starts() -> None:
    assert Trapezoid(warmup=0.02, decay=0.6).decay_starts == pytest.approx(0.4)
    assert Trapezoid(warmup=0.8, decay=0.8).decay_starts == pytest.approx(0.5)
    assert Trapezoid(warmup=0.1, decay=0.0).decay_starts == 1.0
    assert BudgetTriangle().decay_starts == 0.75
    assert (WarmupLinear(warmup=0.01).decay_starts, Cosine(warmup=0.06).decay_starts) == (0.01, 0.06)
    assert Unfinished().decay_starts == 1.0


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Trapezoid, {"warmup": -0.1}),
        (Trapezoid, {"decay": 1.1}),
        (BudgetTriangle, {"base": 2.0}),
        (BudgetTriangle, {"falloff": 0.0}),
        (BudgetTriangle, {"falloff": 1.0}),
        (WarmupLinear, {"warmup": 10_000.0}),
        (WarmupLinear, {"warmup_steps": -1}),
        (Cosine, {"warmup": float("nan")}),
        (Unfinished, {"warmup": 10, "whole": 10}),
        (Unfinished, {"warmup": -1}),
        (Unfinished, {"microbatch": 0}),
        (Unfinished, {"floor": 2.0}),
    ],
)
def test_settings_that_mean_nothing_are_refused(kind: type[Schedule], fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--schedule"):
        kind(**fields)


def test_the_ends_of_the_ranges_are_allowed() -> None:
    assert Trapezoid(warmup=1.0, decay=1.0)(0.5) == 0.5 and Trapezoid(warmup=0.0, decay=1.0)(0.0) == 1.0
    assert Unfinished(warmup=0, whole=1, microbatch=1)(0.0, 0) == 1.0
    assert Cosine(warmup=1.0)(1.0) == 0.0 and WarmupLinear(warmup=1.0)(0.5) == 0.5
