"""Losses in pairs: the interval against scipy, the rules of a claim, and the time to the same loss."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_studies import cell, pair
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from daybreak.core.run_folder import RunFolder
from daybreak.evaluation.scoring.resampling import t_interval
from daybreak.schemas.studies import NO_RESULT, CurvePoint
from daybreak.studies.paired_losses import compare, compare_all, reached, read_curve, time_ratios


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=8))
def test_the_interval_is_that_of_scipys_paired_t_test(losses: list[tuple[float, float]]) -> None:
    a, b = np.array(losses).T
    ends = t_interval((b - a).tolist())
    assert ends is not None
    if np.ptp(b - a) > 1e-6:
        expected = stats.ttest_rel(b, a).confidence_interval(0.95)
        assert ends == pytest.approx(tuple(expected), rel=1e-6, abs=1e-9)
    else:
        assert ends == pytest.approx([(b - a).mean()] * 2, abs=1e-5)


@pytest.mark.parametrize(
    ("differences", "a", "unit", "verdict"),
    [
        ([-0.5, -0.51, -0.52], None, "seconds", "B is better"),
        ([0.5, 0.51, 0.52], None, "seconds", "A is better"),
        ([-0.5, -0.51, -0.52], None, "steps", "B is ahead at equal steps, which does not give equal time: no claim"),
        (
            [-0.5, -0.51, -0.52],
            [4.0, 5.0, 6.0],
            "seconds",
            "B is ahead by no more than the standard deviation, no claim",
        ),
        (
            [0.01, 0.01, 0.01],  # the standard deviation, but for rounding
            [0.545, 0.555, 0.565],
            "seconds",
            "A is ahead by no more than the standard deviation, no claim",
        ),
        ([-0.5, 0.51, -0.2], None, "seconds", "no difference shown"),
        ([-0.5, -0.5001], None, "seconds", "B is ahead, no claim from fewer than 3 seeds"),
        ([-0.5, -0.9], None, "seconds", "no difference shown"),  # with two seeds the factor is 12.7
        ([0.5], None, "seconds", "A is ahead in one run, no claim"),
    ],
)
def test_verdicts_keep_the_rules(differences: list[float], a: list[float] | None, unit: str, verdict: str) -> None:
    found = compare(*pair(differences, a=a), unit)
    assert found.verdict == verdict
    assert found.difference == pytest.approx(np.mean(differences))


def test_a_void_cell_ends_all_claims_and_times() -> None:
    curve = [CurvePoint(elapsed=t, step=0, tokens=0, loss=loss, positions=9) for t, loss in ((1.0, 6.0), (2.0, 5.0))]
    a = [cell("a", seed, 5.0, curve=curve) for seed in range(3)]
    b = [cell("b", seed, 4.0 + seed / 1000, curve=curve) for seed in range(3)]
    assert compare(a, b, "seconds").verdict == "B is better" and compare(a, b, "seconds").times
    found = compare(a, [replace(b[0], void="others used 1.0 of 2 cores"), *b[1:]], "seconds")
    assert found.verdict == "no claim: a cell is void" and found.times == []


@pytest.mark.parametrize("void", NO_RESULT)
def test_a_cell_without_a_result_counts_nowhere_and_ends_the_claims(void: str) -> None:
    cells = [cell("a", seed, 5.0) for seed in range(4)] + [cell("b", seed, 4.0 + seed / 1000) for seed in range(3)]
    (found,) = compare_all([*cells, cell("b", 3, float("nan"), void=void)], ["a", "b"], "seconds")
    assert found.seeds == [0, 1, 2] and found.difference == pytest.approx(-0.999)
    assert found.verdict == "no claim: a cell is void"
    assert compare_all([cell("a", 0, 5.0), cell("b", 0, 4.0, void=void)], ["a", "b"], "seconds") == []


def test_only_common_seeds_are_compared() -> None:
    cells = [cell("a", 0, 4.0), cell("a", 1, 4.1), cell("b", 1, 4.3), cell("c", 7, 1.0)]
    (found,) = compare_all(cells, ["a", "b", "c"], "seconds")
    assert (found.a, found.b, found.seeds) == ("a", "b", [1]) and found.difference == pytest.approx(0.2)
    assert found.low is None and "one run" in found.verdict


falls = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9)


@given(falls, st.floats(0.1, 10.0), st.randoms(use_true_random=False))
def test_the_same_curve_in_a_fraction_of_the_time_has_that_ratio(
    drops: list[float], share: float, chance: random.Random
) -> None:
    elapsed, loss, slow = 1.0, 9.0, []
    for drop in drops:
        slow.append(CurvePoint(elapsed=elapsed, step=0, tokens=0, loss=loss, positions=9))
        elapsed, loss = elapsed + chance.uniform(0.1, 3.0), loss - drop
    fast = [replace(point, elapsed=share * point.elapsed) for point in slow]
    for found in time_ratios([slow, slow], [fast, fast]):
        assert found.ratio == pytest.approx(share, rel=1e-6), found.level
    times = [reached(slow, level) for level in np.linspace(slow[0].loss, slow[-1].loss, 7)]
    assert all(early is not None and late is not None and early <= late for early, late in itertools.pairwise(times))


def test_what_was_not_seen_has_no_time() -> None:
    curve = [
        CurvePoint(elapsed=t, step=0, tokens=0, loss=loss, positions=9) for t, loss in ((2, 5.0), (4, 4.0), (6, 4.5))
    ]
    assert reached(curve, 4.5) == 3.0
    assert reached(curve, 5.0) == 2.0
    assert reached(curve, 3.9) is None  # never
    assert reached(curve, 5.5) is None  # before anybody looked
    assert reached([], 4.0) is None and reached(curve[:1], 5.0) == 2.0
    better = [replace(point, loss=point.loss - 3) for point in curve]
    first, second, *between = time_ratios([curve], [better])
    assert first.ratio is None and second.ratio is None and between == []


def test_the_last_point_of_a_curve_is_measured_where_the_others_are(tmp_path: Path) -> None:
    """The last validation uses more sequences, which may be easier or harder by more than the recipes differ."""
    run = RunFolder(tmp_path)
    point = {"type": "validation", "elapsed": 1.0, "step": 1, "tokens": 9, "loss": 5.0, "positions": 600}
    last = {**point, "elapsed": 3.0, "loss": 4.1, "positions": 9600, "interim_loss": 4.0}
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in (point, {**point, "elapsed": 2.0}, last)))
    curve = read_curve(run)
    assert [(one.loss, one.positions) for one in curve] == [(5.0, 600), (5.0, 600), (4.0, 600)]
    alike = time_ratios([curve], [curve])[0]
    assert alike.ratio == 1.0
    other = [replace(one, positions=1200) for one in curve]
    assert time_ratios([curve], [other])[0].ratios == [None]
