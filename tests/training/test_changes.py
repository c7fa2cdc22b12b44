"""Changes during a run: which one is in force, what a new one replaces, and what a resume drops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from toy_run import decisions

from daybreak.core.serialization import from_dict, to_dict
from daybreak.schemas.run import Change, Decisions
from daybreak.training.recovery import current_change, with_change, without_changes_after

STEPS = 30
PLAIN = decisions(threads=2, microbatch=64)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "microbatch": st.integers(1, 64),
        "world_size": st.integers(1, 8),
        "threads": st.integers(1, 8),
        "rate": st.sampled_from([1.0, 0.5, 0.25, 0.125]),
    },
)
Course = list[tuple[str, int, dict[str, Any]]]
COURSES = st.lists(st.tuples(st.sampled_from(["changed", "changed", "cut"]), st.integers(0, STEPS), VALUES), max_size=8)


def naive(course: Course) -> list[dict[str, Any]]:
    """What holds for each step, in a table with a row a step: a new decision holds for all steps from its own on."""
    start = {"microbatch": 64, "world_size": 1, "threads": 2, "rate": 1.0}
    table = [start] * (STEPS + 1)
    for kind, step, values in course:
        if kind == "changed":
            table = table[:step] + [{**table[step], **values}] * (STEPS + 1 - step)
        else:
            table = table[: step + 1] + [table[step]] * (STEPS - step)
    return table


@given(COURSES)
def test_what_holds_for_a_step_is_the_last_decision_up_to_it(course: Course) -> None:
    held_now = PLAIN
    for kind, step, values in course:
        if kind == "changed":
            held_now = with_change(held_now, step, "why", **values)
        else:
            held_now = without_changes_after(held_now, step)
    for step, expected in enumerate(naive(course)):
        held = current_change(held_now, step)
        assert {name: getattr(held, name) for name in expected} == expected
    steps = [change.step for change in held_now.changes]
    assert steps == sorted(set(steps))  # in order, one a step
    assert replace(held_now, changes=[]) == PLAIN
    assert from_dict(Decisions, to_dict(held_now)) == held_now


def test_without_changes_the_start_holds() -> None:
    held = current_change(PLAIN, 10**9)
    assert (held.step, held.microbatch, held.world_size, held.threads) == (0, 64, 1, 2)
    assert (held.rate, held.skip_to) == (1.0, None)


def test_rows_are_passed_over_once() -> None:
    """The jump belongs to its step: a later decision must not jump again, one at the same step must still."""
    jumped = with_change(PLAIN, 5, "diverged", rate=0.5, skip_to=80)
    assert current_change(jumped, 5).skip_to == 80
    later = with_change(jumped, 9, "out of memory", microbatch=32)
    assert later.changes[1] == Change(step=9, why="out of memory", microbatch=32, world_size=1, threads=2, rate=0.5)
    same = with_change(jumped, 5, "out of memory", microbatch=32)
    assert same.changes == [replace(jumped.changes[0], why="out of memory", microbatch=32)]
    assert without_changes_after(later, 8) == jumped and without_changes_after(later, 4) == PLAIN


def test_nothing_that_was_decided_before_is_touched() -> None:
    first = with_change(PLAIN, 5, "one", rate=0.5)
    with_change(first, 3, "two", rate=0.25)
    assert PLAIN.changes == [] and [change.why for change in first.changes] == ["one"]
