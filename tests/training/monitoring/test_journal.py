"""What a run writes as it goes, what going back cuts away, and a disk that takes no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_records import MACHINE, step_record

from daybreak.core.errors import UserError
from daybreak.core.files import read_json_lines
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import from_dict
from daybreak.schemas.run import MachineRecord, TraceRecord
from daybreak.training.monitoring import journal as module
from daybreak.training.monitoring.journal import Journal, cut_back

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.trace.symlink_to(FULL)
    journal = Journal(run)
    with pytest.raises(UserError, match=r"cannot be written in .*No space left") as error:
        journal.trace(TraceRecord(step=0, elapsed=1.5, progress=0.25))
    assert "the same command" in error.value.remedy
    journal.close()  # does not complain once more
    assert run.metrics.read_text() == ""


def test_going_back_cuts_both_records_and_what_follows_is_added(tmp_path: Path) -> None:
    """The trace line of a step comes before it, its metrics after it: those of step 3 are what a checkpoint 3 knows."""
    run = RunFolder(tmp_path)
    journal = Journal(run)
    for step in range(6):
        journal.trace(TraceRecord(step=step, elapsed=step + 1 / 3, progress=step / 7))
        journal.on_step(step_record(step + 1, loss=5.0))
    journal.on_machine(MACHINE)
    journal.roll_back(3)
    journal.trace(TraceRecord(step=3, elapsed=9.0, progress=0.7))
    journal.on_step(step_record(4, loss=2.0))
    journal.close()
    trace = list(read_json_lines(run.trace))
    assert [(line["step"], line["progress"]) for line in trace] == [(0, 0.0), (1, 1 / 7), (2, 2 / 7), (3, 0.7)]
    assert [(line["step"], line["loss"]) for line in read_json_lines(run.metrics)] == [(1, 5), (2, 5), (3, 5), (4, 2)]
    lost = list(read_json_lines(run.lost_metrics))
    assert [(line["type"], line["step"]) for line in lost] == [("step", 4), ("step", 5), ("step", 6), ("machine", 8)]
    del lost[-1]["type"]
    assert from_dict(MachineRecord, lost[-1]) == MACHINE


def test_a_torn_line_is_gone_after_a_resume_also_where_nothing_is_lost(tmp_path: Path) -> None:
    """Or the next line would be written on from its middle, and nobody could read the file again."""
    run = RunFolder(tmp_path)
    run.metrics.write_text('{"type": "step", "step": 3}\n{"type": "st')
    run.trace.write_text('{"step": 0, "elapsed": 1.0, "progress": 0.0}\n{"step": 1, "ela')
    assert cut_back(run, 5) == 0
    journal = Journal(run)
    journal.trace(TraceRecord(step=1, elapsed=2.0, progress=0.1))
    journal.sync()
    journal.close()
    assert [line["step"] for line in read_json_lines(run.metrics)] == [3]
    assert [line["step"] for line in read_json_lines(run.trace)] == [0, 1]
    assert not run.lost_metrics.exists()


def test_a_damaged_line_of_the_metrics_does_not_stop_a_resume(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    journal = Journal(run)
    for step in range(3):
        journal.trace(TraceRecord(step=step, elapsed=step, progress=step / 7))
        journal.on_step(step_record(step + 1, loss=5.0))
    journal.close()
    lines = run.metrics.read_text().splitlines()
    run.metrics.write_text("\n".join([lines[0], "#!?", "[1]", *lines[1:]]) + "\n")
    assert cut_back(run, 2) == 1
    assert [line["step"] for line in read_json_lines(run.metrics)] == [1, 2]


def test_a_resume_parses_only_the_lines_of_the_trace_that_it_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of many small steps has millions of lines, and each resume is charged for the time to read them."""
    run = RunFolder(tmp_path)
    text = [f'{{"step": {step}, "elapsed": {step}.5, "progress": 0.25}}\n' for step in range(5000)]
    run.trace.write_text("".join(text))
    parsed: list[int] = []
    monkeypatch.setattr(module, "parse_json", lambda line: (parsed.append(1), json.loads(line))[1])
    assert cut_back(run, 4990) == 10 and run.trace.read_text() == "".join(text[:4990])
    assert len(parsed) == 11
    assert cut_back(run, 0) == 4990 and run.trace.read_bytes() == b""


@pytest.mark.parametrize("line", ["#!?", "", "[1]", '{"step": "many"}'])
def test_a_damaged_line_of_the_trace_that_would_be_cut_is_refused(line: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    text = '{{"step": {0}, "elapsed": 1.0, "progress": 0.5}}\n'
    run.trace.write_text(text.format(0) + line + "\n" + text.format(2))
    before = run.trace.read_bytes()
    with pytest.raises(UserError):
        cut_back(run, 1)
    assert run.trace.read_bytes() == before
