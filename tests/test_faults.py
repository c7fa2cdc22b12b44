"""What befalls runs at night, from outside, as a user meets it: one sentence at most, and nothing lost.

Steps that are not finite or explode and memory that is short are in training/test_recovery.py; processes and hosts that
are lost in test_hosts.py; a stop of a whole minute was tried with benchmarks/kills.py --stop.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from needs import takes_long
from rendezvous import wait_for
from warm_python import surroundings

from daybreak.core.files import read_json, read_json_lines
from daybreak.schemas.run import Summary
from daybreak.training.clock import read_trace

Daybreak = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

SOON = "module.CHECKPOINT_SECONDS, module.CHECKPOINT_FRACTION = 0.2, 1.0"
"""Checkpoints so often that a test need not wait for one."""
PATCH = """
import importlib
module = importlib.import_module({module!r})
{code}
"""
"""A sitecustomize that changes one module of Daybreak, in another process."""


def saves_soon(folder: Path) -> dict[str, str]:
    return surroundings(folder, PATCH.format(module="daybreak.training.loop", code=SOON))


def words(data: Path, run: Path, budget: str, shape: list[str]) -> list[object]:
    return ["pretrain", "tiny", "--data", data, "--out", run, "--budget", budget, *shape]


def steps(run: Path) -> int:
    return len(read_trace(run / "trace.jsonl"))


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def one_sentence(process: subprocess.Popen[str]) -> str:
    """The process must end with 2 and no traceback; return what it complained of."""
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and "Traceback" not in said and said.startswith("daybreak: "), said
    return flat(said)


@pytest.fixture
def stopped(start: Start, data: Path, shape: list[str], tmp_path: Path) -> Path:
    """A run of 300 steps that was asked to stop in the middle, with two checkpoints."""
    run = tmp_path / "run"
    process = start(*words(data, run, "300steps", shape), **saves_soon(tmp_path / "soon"))
    wait_for(lambda: len(checkpoints(run)) == 2, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    return run


# ---------------------------------------------------------------- what lies on the disk


def test_a_torn_checkpoint_is_said_and_the_one_before_it_is_taken(
    stopped: Path, daybreak: Daybreak, data: Path, shape: list[str]
) -> None:
    before, newest = checkpoints(stopped)
    file = newest / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    done = daybreak(*words(data, stopped, "300steps", shape))
    assert done.returncode == 0, done.stderr
    said, step = flat(done.stdout), int(before.name.removeprefix("step-"))
    assert f"Skipping an incomplete checkpoint: {newest.name}" in said and f"Resuming at step {step}," in said
    assert steps(stopped) == 300


@takes_long
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(
    small_disk: Path, start: Start, daybreak: Daybreak, data: Path, shape: list[str], tmp_path: Path
) -> None:
    run, ballast = small_disk / "run", small_disk / "ballast"
    command = words(data, run, "1500steps", shape)
    process = start(*command, **saves_soon(tmp_path / "soon"))
    wait_for(lambda: [path for path in checkpoints(run) if not path.name.endswith("-000000000")], process)
    with pytest.raises(OSError, match="No space left"), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    said = one_sentence(process)
    assert "cannot be written" in said and "No space left" in said and "Free disk space" in said
    ballast.unlink()
    done = daybreak(*command)
    assert done.returncode == 0, done.stderr
    resumed = re.search(r"Resuming at step (\d+),", flat(done.stdout))
    assert resumed and int(resumed[1]) > 0 and "incomplete checkpoint" not in done.stdout
    assert [record.step for record in read_trace(run / "trace.jsonl")] == list(range(1500))
    for line in (run / "metrics.jsonl").read_text().splitlines():
        assert line.startswith("{") and line.endswith("}")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_lost(
    small_disk: Path, stopped: Path, daybreak: Daybreak, data: Path, shape: list[str]
) -> None:
    """Root may write where the permissions forbid it, but not on what is mounted read-only."""
    run = Path(shutil.copytree(stopped, small_disk / "run"))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = daybreak(*words(data, run, "300steps", shape))
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"Cannot write in '{run}': read-only file system." in flat(done.stderr)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_flipped_byte_in_a_shard_is_found_when_it_is_read(
    daybreak: Daybreak, corpus: Path, shape: list[str], tmp_path: Path
) -> None:
    """In the middle of a run: blocks of 512 bytes, for toy data are smaller than one whole block."""
    prepared, run = tmp_path / "data", tmp_path / "run"
    small = surroundings(
        tmp_path / "blocks", PATCH.format(module="daybreak.data.sequences.shards", code="module.BLOCK_BYTES = 512")
    )
    done = daybreak("prepare", corpus, "--out", prepared, "--tokenizer.vocabulary", "400", **small)
    assert done.returncode == 0, done.stderr
    shard = prepared / "train-00000.tokens.bin"
    held = bytearray(shard.read_bytes())
    held[len(held) // 2] ^= 1
    shard.write_bytes(held)
    # Word vectors would read the whole text before the first step.
    done = daybreak(*words(prepared, run, "400steps", shape), "--word-vectors.weight", "0", **small)
    assert done.returncode == 2 and "Traceback" not in done.stderr, (done.stdout, done.stderr)
    assert shard.name in done.stderr and "does not match its hash" in flat(done.stderr)
    assert 0 < steps(run) < 400


# ---------------------------------------------------------------- who watches

HANGING = """
import time
class Run:
    def log(self, *given, **more):
        time.sleep(1000)
    def define_metric(self, *given, **more):
        pass
    finish = log
def init(**given):
    return Run()
Settings = dict
"""


def test_a_tracker_that_hangs_does_not_hold_the_run(
    daybreak: Daybreak, data: Path, shape: list[str], tmp_path: Path
) -> None:
    """Other ways to fail are in training/monitoring/test_trackers.py."""
    run = tmp_path / "run"
    fake = surroundings(tmp_path / "fake", HANGING, "wandb/__init__.py")
    begun = time.monotonic()
    done = daybreak(*words(data, run, "40steps", shape), "--track", "wandb", **fake)
    assert done.returncode == 0 and time.monotonic() - begun < 200, done.stderr
    assert "has not finished; its process continues" in flat(done.stdout)
    validations = [line for line in read_json_lines(run / "metrics.jsonl") if line["type"] == "validation"]
    assert validations[-1]["final"] and steps(run) == 40
    assert read_json(run / "summary.json", Summary).steps == 40


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["SIGTERM", "SIGUSR1"])
def test_a_signal_of_a_scheduler_saves_and_the_same_command_goes_on(
    number: signal.Signals, start: Start, daybreak: Daybreak, data: Path, shape: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = words(data, run, "200steps", shape)
    process = start(*command)
    wait_for(lambda: steps(run) >= 20, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "the same command resumes" in said and "Traceback" not in said
    saved = steps(run)
    assert checkpoints(run)[-1].name == f"step-{saved:09d}"
    done = daybreak(*command)
    assert done.returncode == 0, done.stderr
    assert f"Resuming at step {saved}," in flat(done.stdout) and " 0 steps lost" in flat(done.stdout)
    assert steps(run) == 200 and read_json(run / "summary.json", Summary).resumes == 1


def test_under_nohup_a_closed_terminal_is_not_noticed(
    start: Start, data: Path, shape: list[str], tmp_path: Path
) -> None:
    run, heard = tmp_path / "run", signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # all that nohup does, and what a child inherits
    try:
        process = start(*words(data, run, "200steps", shape))
    finally:
        signal.signal(signal.SIGHUP, heard)
    wait_for(lambda: steps(run) >= 20, process)
    process.send_signal(signal.SIGHUP)
    said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert read_json(run / "summary.json", Summary).resumes == 0 and steps(run) == 200


# ---------------------------------------------------------------- time


def test_a_run_that_was_stopped_for_a_while_is_charged_for_it_and_loses_nothing(
    start: Start, data: Path, shape: list[str], tmp_path: Path
) -> None:
    """SIGSTOP and SIGCONT, as a scheduler or a laptop's lid sends them; the schedule goes on at the later hour."""
    run, pause = tmp_path / "run", 4.0
    process = start(*words(data, run, "90s", shape))
    wait_for(lambda: steps(run) >= 20, process)
    process.send_signal(signal.SIGSTOP)
    time.sleep(pause)
    before = read_trace(run / "trace.jsonl")
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: steps(run) >= len(before) + 20, process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and "is skipped" not in said, said
    trace = read_trace(run / "trace.jsonl")
    assert [record.step for record in trace] == list(range(len(trace))) and trace[: len(before)] == before
    late, now = max(pairwise(trace), key=lambda pair: pair[1].elapsed - pair[0].elapsed)
    waited, all_seconds = now.elapsed - late.elapsed, 90.0
    assert pause * 0.9 <= waited and abs(late.step - len(before)) <= 2
    assert now.progress - late.progress == pytest.approx(waited / all_seconds, rel=0.2)  # less is kept for the end


BACKWARDS = """
import time
true = time.time
time.time = lambda: true() - 86400.0 * (true() - {begun} > 1.0) - 100.0 * (true() - {begun})
"""


def test_wall_time_that_jumps_backwards_changes_nothing(
    daybreak: Daybreak, data: Path, shape: list[str], tmp_path: Path
) -> None:
    """The budget counts on a clock that cannot be set: a day back in the middle, and ever further back after it."""
    runs = [tmp_path / "straight", tmp_path / "back"]
    back = surroundings(tmp_path / "clock", BACKWARDS.format(begun=time.time()))
    for run, more in zip(runs, ({}, back)):
        done = daybreak(*words(data, run, "60steps", shape), **more)
        assert done.returncode == 0, done.stderr
    traces = [read_trace(run / "trace.jsonl") for run in runs]
    assert [(record.step, record.progress) for record in traces[0]] == [
        (record.step, record.progress) for record in traces[1]
    ]
    elapsed = [record.elapsed for record in traces[1]]
    assert elapsed == sorted(elapsed) and elapsed[0] > 0
    summary = read_json(runs[1] / "summary.json", Summary)
    assert summary.elapsed > elapsed[-1] and summary.wall >= 0 and min(summary.time_by_category.values()) >= 0
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1]
