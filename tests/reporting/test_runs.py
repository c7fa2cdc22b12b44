"""Reading run folders: whole, killed, damaged."""

from __future__ import annotations

import json

import pytest

from daybreak.core.errors import UserError
from daybreak.core.run_folder import RunFolder
from daybreak.reporting.runs import last_trace, read_run


def test_a_finished_run_comes_back_whole(write_run):
    run = read_run(write_run())
    assert run.name == "tiny" and run.missing == []
    assert run.validation is run.summary.validation and run.validation.final
    assert [step.step for step in run.steps] == sorted({step.step for step in run.steps})
    assert [step.stage for step in run.stage_changes] == ["masked"]
    assert run.elapsed == run.summary.elapsed and run.tokens == run.summary.tokens


def test_a_young_run_needs_only_its_recipe(tmp_path):
    (tmp_path / "recipe.json").write_text('{"name": "tiny"}')
    run = read_run(tmp_path)
    assert run.steps == [] and run.validation is None and run.elapsed == 0 and run.tokens == 0
    assert len(run.missing) == 8


def test_a_line_torn_by_a_kill_is_left_out(write_run):
    path = RunFolder(write_run(ended=False)).metrics
    whole = read_run(path.parent)
    with path.open("a") as file:
        file.write('{"type": "step", "step": 99')
    assert read_run(path.parent).steps == whole.steps


def test_steps_recorded_twice_count_once(write_run):
    path = RunFolder(write_run(ended=False)).metrics
    whole = read_run(path.parent)
    again = {**json.loads(path.read_text().splitlines()[3]), "loss": 1.5}
    with path.open("a") as file:
        file.write(json.dumps(again) + "\n")
    steps = read_run(path.parent).steps
    assert len(steps) == len(whole.steps) and steps[3].loss == 1.5


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("summary.json", "{", "summary.json"),
        ("recipe.json", "[]", "recipe.json"),
    ],
)
def test_damage_is_named(write_run, name, text, said):
    path = write_run()
    (path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        read_run(path)


@pytest.mark.parametrize("line", ["not json", '{"type": "step", "step": 1}', "[1]", "7"])
def test_a_damaged_line_costs_that_line_alone(write_run, line):
    path = RunFolder(write_run()).metrics
    whole = read_run(path.parent)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]) + "\n")
    run = read_run(path.parent)
    assert run.steps == whole.steps and run.validations == whole.validations
    assert run.faults == ["Line 4 of 'metrics.jsonl' is damaged and left out."] and whole.faults == []


@pytest.mark.parametrize("name", ["results", "examples", "forecast", "probes", "environment", "manifest"])
def test_a_damaged_file_of_the_report_is_left_out(write_run, name):
    folder = RunFolder(write_run())
    path = getattr(folder, name)
    path.write_text("garbage")
    run = read_run(folder.path)
    assert run.faults == [f"'{path.name}' is damaged and left out."] and run.summary is not None


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no recipe"):
        read_run(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read_run(tmp_path / "nowhere")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="is a file, not a run folder"):
        read_run(tmp_path / "notes.txt")


def test_the_last_trace_line_is_found_from_the_end(tmp_path):
    path = tmp_path / "trace.jsonl"
    assert last_trace(path) is None
    path.write_text("")
    assert last_trace(path) is None
    line = '{{"step": {0}, "elapsed": {0}.5, "progress": 0.25}}\n'
    path.write_text("".join(line.format(step) for step in range(5000)) + '{"step": 5000, "elap')
    assert last_trace(path).step == 4999
    path.write_bytes(b'{"step": 1, "elapsed": 0.5, "progress": 0.25}\n\0\0\0\n')
    with pytest.raises(UserError, match=r"trace\.jsonl' is damaged at its end"):
        last_trace(path)
