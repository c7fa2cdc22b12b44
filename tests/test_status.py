"""What another shell is told about a run."""

from __future__ import annotations

import os
import time

import pytest

from daybreak.base.errors import UserError
from daybreak.base.run_folder import RunFolder
from daybreak.status import status


def lines(text: str) -> dict[str, str]:
    return {line[:9].strip(): line[9:] for line in text.splitlines()}


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_run_in_progress(write_run):
    run = write_run(ended=False)
    age(RunFolder(run).trace, 4)
    said = lines(status(run))
    assert said["run"].endswith("recipe tiny, seed 1")
    assert said["state"] in ("running, last heartbeat 4s ago", "running, last heartbeat 5s ago")
    assert said["budget"] == "3m asked, 2m 03s used (70%), about 53s left"
    assert said["training"].startswith("masked stage, step 698, 2.86 million tokens, ")
    assert "loss - unigram = -1." in said["held out"]
    assert "export" not in said


def test_a_run_that_fell_silent(write_run):
    run = write_run(ended=False)
    age(RunFolder(run).trace, 300)
    assert lines(status(run))["state"].startswith("silent for 5m 00s")


def test_the_causal_stage_is_named(write_run):
    said = lines(status(write_run(ended=False, causal=0.9)))
    assert said["training"].startswith("causal stage") and "next-token loss" in said["training"]
    assert said["held out"] == "not validated yet"


def test_a_finished_run(write_run):
    run = write_run()
    age(RunFolder(run).summary, 7200)
    said = lines(status(run))
    assert said["state"] == "ended 2h 00m ago"
    assert said["budget"] == "3m asked, 179 s charged"
    assert said["export"] == f"{run / 'model'}, parity passed"


def test_a_refused_export(write_run):
    assert lines(status(write_run(passed=False)))["export"] == "refused: logits differ by 0.4"


def test_a_run_that_has_just_started(tmp_path):
    (tmp_path / "recipe.json").write_text('{"name": "tiny", "budget": "3m", "seed": 1}')
    said = lines(status(tmp_path))
    assert said["state"].startswith("starting") and said["budget"] == "3m asked, nothing trained yet"


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(UserError, match=r"holds no recipe\.json"):
        status(tmp_path)
