"""What another shell is told about a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import nullcontext

import pytest

from daybreak.commands.status import status
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, write_json
from daybreak.core.locks import alone_in, locked
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.schemas.run import Change, DeviceUse, MachineRecord


def lines(text: str) -> dict[str, str]:
    return {line[:9].strip(): line[9:] for line in text.splitlines()}


def age(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize(
    ("made", "seconds", "held", "words"),
    [
        (
            {"ended": False}, 4, True,
            {
                "run": ".* recipe tiny, seed 1", "state": r"running, last heartbeat \d+s ago",
                "budget": r"3m, 2m 03s used \(70%\), about 51s left",
                "training": "masked stage, step 698, 2.86 million tokens, .*",
                "held out": ".*below the unigram baseline.*",
            },
        ),
        (
            {"ended": False}, 4, False,
            {
                "state": "stopped, last heartbeat .* the same command resumes it",
                "budget": ".* about 51s of training left",
            },
        ),
        ({"ended": False}, 300, True, {"state": ".*but its process is alive: stuck, or in a long operation"}),
        (
            {"ended": False, "causal": 0.9}, 4, False,
            {"training": "causal stage.* next-token loss .*", "held out": "not validated yet"},
        ),
        (
            {}, 7200, False,
            {"state": "ended 2h 00m ago", "budget": "3m, 179 s used", "export": ".*/model, parity passed"},
        ),
        ({"passed": False}, 4, False, {"export": "refused: logits differ by 0.4"}),
    ],
    ids=["in progress", "gone", "stuck", "causal", "finished", "refused"],
)  # fmt: skip
def test_what_is_said_of_a_run(write_run, made, seconds, held, words):
    run = write_run(**made)
    age(RunFolder(run).trace, seconds)
    if RunFolder(run).summary.exists():
        age(RunFolder(run).summary, seconds)
    with alone_in(run) if held else nullcontext():
        said = lines(status(run))
    assert all(re.fullmatch(pattern, said[name]) for name, pattern in words.items()), said
    assert ("export" in said) is made.get("ended", True)
    assert not {"changes", "machine", "watchdog"} & set(said), "of an uneventful run"


def test_where_locks_tell_nothing_the_heartbeat_does(write_run, monkeypatch):
    def no_locks(*_):
        raise OSError(38, "Function not implemented")

    run = write_run(ended=False)
    monkeypatch.setattr("fcntl.flock", no_locks)
    age(RunFolder(run).trace, 4)
    assert lines(status(run))["state"].startswith("running, last heartbeat ")
    age(RunFolder(run).trace, 300)
    assert lines(status(run))["state"].startswith("silent for 5m ")


def test_a_record_has_no_model(write_run):
    run = write_run()
    shutil.rmtree(run / "model", ignore_errors=True)
    assert lines(status(run))["export"] == "parity passed; the model is not in this folder"


@pytest.mark.parametrize(("resumes", "words"), [(1, "after 1 resume"), (2, "after 2 resumes")])
def test_resumes_are_counted_in_words(write_run, resumes, words):
    folder = RunFolder(write_run())
    write_json(folder.summary, read_json(folder.summary) | {"resumes": resumes})
    assert lines(status(folder.path))["state"].endswith(words)


def test_a_run_in_its_first_seconds_is_starting(tmp_path):
    (tmp_path / ".data.preparing").mkdir()
    assert lines(status(tmp_path))["state"].startswith("starting: preparing text")
    age(tmp_path / ".data.preparing", 300)
    assert lines(status(tmp_path))["state"].startswith("not started, and no process is at work here; the same command")
    with (tmp_path / ".data.preparing" / "lock").open("a") as lock:
        age(lock.name, 300)
        age(tmp_path / ".data.preparing", 300)
        assert "not started" in status(tmp_path)
        assert locked(lock.fileno()) and "starting: preparing text" in status(str(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="is not a run folder"):
        status(tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"holds no recipe\.json"):
        status(tmp_path / "none")
    (tmp_path / "none" / ".DS_Store").touch()
    with pytest.raises(UserError, match=r"holds no recipe\.json"):
        status(tmp_path / "none")
    (tmp_path / "none" / "study.json").touch()
    with pytest.raises(UserError, match=r"none' is the folder of a study, not of a run\. Read report\.html"):
        status(tmp_path / "none")


def test_damaged_records_and_an_edited_recipe_are_named(write_run):
    folder = RunFolder(write_run())
    with folder.metrics.open("a") as file:
        file.write("#!?\n")
    folder.results.write_text("garbage")
    write_json(folder.recipe, read_json(folder.recipe) | {"batch": 64})
    said = lines(status(folder.path))
    assert said["state"].startswith("ended")
    assert "of 'metrics.jsonl' is damaged and left out. 'results.json' is damaged" in said["files"]
    assert "recipe.json was edited after the run started" in said["files"]


def test_a_run_that_has_just_started(tmp_path):
    (tmp_path / "recipe.json").write_text('{"name": "tiny", "budget": "3m", "seed": 1}')
    with alone_in(tmp_path):
        said = lines(status(tmp_path))
    assert said["state"].startswith("starting") and said["budget"] == "3m, no training step yet"


def test_a_night_with_troubles(write_run):
    folder = RunFolder(write_run(ended=False))
    last = json.loads(folder.metrics.read_text().splitlines()[100])
    device = DeviceUse(name="Some GPU", utilisation=0.93, memory=30 << 30, memory_total=40 << 30, watts=310.0)
    record = MachineRecord(
        step=700, elapsed=130.0, processor=0.25, load=2.0, memory=3 << 30, memory_free=5 << 30, disk_free=50 << 30,
        devices=[device],
    )  # fmt: skip
    with folder.metrics.open("a") as file:
        for line in ({"type": "machine"} | to_dict(record), last | {"step": 9000, "dropped": 2}):
            file.write(json.dumps(line) + "\n")
    whys = ("resumed on 2 processes", "out of memory: 16 rows at a time")
    changes = [
        Change(step=600 * place, why=why, microbatch=16, world_size=2, threads=2)
        for place, why in enumerate(("a", "b", *whys))
    ]
    write_json(folder.decisions, read_json(folder.decisions) | {"changes": to_dict(changes)})
    folder.stacks.mkdir()
    (folder.stacks / "rank-1.txt").write_text("where it stands")
    age(folder.stacks / "rank-1.txt", 90)
    said = lines(status(folder.path))
    assert said["changes"] == (
        "2 steps skipped; 1 earlier change; at step 600 b; at step 1,200 resumed on 2 processes; "
        "at step 1,800 out of memory: 16 rows at a time"
    )
    assert said["machine"].startswith("processor 25%, load 2.0, memory 3.0 GiB, 5.0 GiB free; disk 50.0 GiB free; ")
    assert said["machine"].endswith("Some GPU 93% busy, 30.0 of 40.0 GiB (75 %), 310 W")
    assert said["watchdog"] == f"wrote stack traces 1m 30s ago: {folder.stacks / 'rank-1.txt'}"
