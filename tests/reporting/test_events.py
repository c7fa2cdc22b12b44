"""What the files tell of a run's way: kills, skipped steps, changes of course."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from fake_corpus import html_of, rows, words
from hypothesis import given
from hypothesis import strategies as st
from small_records import MACHINE, step_record

from daybreak.core.files import read_json, write_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.reporting import training
from daybreak.reporting.events import events
from daybreak.reporting.runs import RunRecords, read_run
from daybreak.reporting.training import course
from daybreak.schemas.run import Change, Decisions, StepRecord

START = 5.0
"""Seconds that a process takes to its first step."""


def at_step(step: int, elapsed: float, dropped: int = 0) -> StepRecord:
    return step_record(step, elapsed=elapsed, tokens=100 * step, dropped=dropped)


def change(step: int, why: str, **values: int | float | None) -> Change:
    plain = Change(step=step, why=why, microbatch=16, world_size=1, threads=2)
    return dataclasses.replace(plain, **values)


def lived(lives: list[tuple[int, int]], last: int) -> tuple[RunRecords, list[tuple[int, float]]]:
    """A run of one step a second. Each life reaches step ``a``, was saved at step ``b``, and was killed.

    Returns:
        The run as its files would tell it, and for each kill the step gone back to and the seconds lost.
    """
    kept, lost, told = [], [], []
    elapsed, saved = 0.0, 0
    for reached, save in [*lives, (last, last)]:
        elapsed += START
        life = [at_step(step, elapsed + step - saved) for step in range(saved + 1, reached + 1)]
        elapsed = life[-1].elapsed if life else elapsed
        kept += [record for record in life if record.step <= save]
        undone = [record for record in life if record.step > save]
        lost += undone
        if undone:
            told.append((save, undone))
        saved = save
    run = RunRecords(path=Path("run"), label="run", recipe={"name": "run"}, steps=kept, lost=lost)
    return run, [(save, undone[-1].elapsed) for save, undone in told]


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=6))
def test_every_kill_that_lost_a_line_is_found(moves):
    lives, saved = [], 0
    for forward, save in moves:
        reached = saved + forward
        saved = min(max(saved, save + saved - 6), reached)
        lives.append((reached, saved))
    run, kills = lived(lives, saved + 3)
    found = events(run)
    assert [event.kind for event in found] == ["resumed"] * len(kills)
    assert [event.step for event in found] == [step for step, _ in kills]
    assert all(event.lost is not None and event.lost >= 0 for event in found)


def test_lost_seconds_run_from_the_last_line_kept_to_the_last_one_lost():
    run, _ = lived([(20, 12)], 30)
    assert [step.step for step in run.steps] == list(range(1, 31))
    (event,) = events(run)
    assert event.lost == 8.0 and event.step == 12 and event.tokens == 1200
    assert event.elapsed == run.steps[12].elapsed == START + 20 + START + 1


def test_a_machine_line_inside_a_step_does_not_look_like_a_kill():
    run, _ = lived([(20, 12)], 30)
    # Written while step 16 was under way.
    run.lost.append(dataclasses.replace(MACHINE, step=14, elapsed=run.lost[2].elapsed + 0.5))
    assert len(events(run)) == 1


def test_where_rows_were_passed_over_the_run_went_back_itself():
    run, _ = lived([(20, 12), (40, 31)], 50)
    guard = change(12, "diverged at step 20: rate halved", rate=0.5, skip_to=640)
    summary = dataclasses.replace(run, decisions=decisions([guard]))
    told = [(event.kind, event.words, event.step) for event in events(summary)]
    assert told == [
        ("changed", "Returned to an earlier checkpoint", 12),
        ("changed", "Diverged at step 20: rate halved", 12),
        ("resumed", "Resumed from a checkpoint", 31),
    ]


def decisions(changes: list[Change]) -> Decisions:
    return Decisions(
        device="cpu", threads=2, precision="float32", microbatch=32, world_size=1, reserve_seconds=4.0,
        validation_rows=64, validation_marks=10, matmul_gflops={}, changes=changes,
    )  # fmt: skip


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_dropped_steps_add_up(rises):
    count, steps = 0, []
    for place, rise in enumerate(rises):
        count += rise
        steps.append(at_step(place, float(place), count))
    run = RunRecords(path=Path("run"), label="run", recipe={"name": "run"}, steps=steps)
    found = events(run)
    assert sum(int(event.words.split()[0]) for event in found) == count == run.dropped
    assert [event.step for event in found] == [place for place, rise in enumerate(rises) if rise]


@given(st.lists(st.tuples(st.integers(0, 10**9), st.text(max_size=8)), max_size=5), st.integers(0, 3))
def test_changes_are_reported_wherever_they_stand(wild, steps):
    run = RunRecords(
        path=Path("run"), label="run", recipe={"name": "run"}, decisions=decisions([change(*one) for one in wild]),
        steps=[at_step(step, step + 0.5) for step in range(steps)],
    )  # fmt: skip
    found = events(run)
    assert sorted(event.step for event in found) == sorted(step for step, _ in wild)
    assert len(rows(course([run]))) == len(wild)


def test_a_straight_run_has_no_such_section(write_run):
    runs = [read_run(write_run("a")), read_run(write_run("b", ended=False))]
    assert course(runs) is None and events(runs[0]) == []


def test_each_event_is_a_row_and_a_line_in_the_loss_figure(write_run):
    path = write_run()
    folder = RunFolder(path)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    cut = [dict(line) for line in lines if line["type"] == "step" and 500 < line["step"] <= 600]
    before = next(line for line in lines if line["step"] == 500)
    for line in lines:
        line["elapsed"] += 30.0 if line["step"] > 500 else 0.0
        if line["type"] == "step":
            line["dropped"] = 2 * (line["step"] > 800)
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    torn = json.dumps(cut[0])[:20] + "\n[]\nnull\n"
    folder.lost_metrics.write_text(torn + "".join(json.dumps(line) + "\n" for line in cut))
    write_json(folder.decisions, decisions([change(700, "out of memory: 16 rows at a time")]))
    told = {"resumes": 2, "dropped": 2, "wall": 500.0, "changes": [to_dict(change(700, "out of memory: 16 rows"))]}
    summary = read_json(folder.summary)
    write_json(folder.summary, summary | told | {"time_by_category": summary["time_by_category"] | {"lost": 17.2}})
    run = read_run(path)
    told_rows, text = rows(course([run])), words(course([run]))
    step = next(step for step in run.steps if step.dropped)
    assert [row[0][:14] for row in told_rows] == ["Resumed from a", "Out of memory:", "2 steps skippe"]
    assert told_rows[0][1] == "500" and told_rows[0][3] == f"{cut[-1]['elapsed'] - before['elapsed']:.1f} s"
    assert told_rows[1][1] == "700" and told_rows[2][1] == str(step.step)
    assert "Resumed once more" in text and "17.2 s of work was lost" in text
    assert f"{len(cut)} metric lines" in text
    for against in ("time", "tokens"):
        drawn = training.losses([run], against)["layout"]["shapes"]
        marks = [shape for shape in drawn if shape["line"]["color"] in training.EVENT_COLORS.values()]
        assert sum(shape["line"]["dash"] == "solid" for shape in marks) == 3
    drawn = training.losses([run], "time")["layout"]["shapes"]
    assert step.elapsed in [shape.get("x0") for shape in drawn]
    assert training.losses([run] * 6, "time")["layout"]["shapes"].count(drawn[-1]) == 0


@pytest.mark.parametrize("many", [3, 200])
def test_a_bad_night_has_all_its_rows(many):
    steps = [at_step(step, float(step), step) for step in range(1, many + 1)]
    run = RunRecords(path=Path("run"), label="run", recipe={"name": "run"}, steps=steps)
    assert words(course([run])).count("1 step skipped") == many
    assert ("<details>" in html_of(course([run]))) == (many > 25)
    assert len(training.losses([run], "time")["layout"]["shapes"]) <= training.EVENTS_MARKED
