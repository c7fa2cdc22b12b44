"""A hang leaves the stacks of every rank, also where no Python thread can run; beats and stops leave nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from daybreak.core.errors import UserError
from daybreak.training.monitoring import watchdog
from daybreak.training.monitoring.watchdog import Watchdog

BEGIN = """
import os, re, sys, threading, time
from pathlib import Path
from daybreak.training.monitoring.watchdog import Watchdog

def read_ahead():
    time.sleep(60)

def wait_for_the_others(seconds):
    time.sleep(seconds)

def never_lets_go():
    re.match("(a+)+$", "a" * 60 + "b")  # exponential, and in C: no other thread runs meanwhile

threading.Thread(target=read_ahead, daemon=True).start()
dog = Watchdog(Path(sys.argv[1]), int(os.environ.get("RANK", "0")), least=float(sys.argv[2]))
dog.beat(1233)
dog.beat(1234)
"""


def start(folder: Path, script: str, rank: int = 0, least: float = 0.5) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN + script, str(folder), str(least)]
    environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def wait_for(path: Path, words: str) -> str:
    """The text of ``path`` as soon as ``words`` are in it."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        text = path.read_text("utf-8") if path.exists() else ""
        if words in text:
            return text
        time.sleep(0.02)
    raise AssertionError(f"'{words}' did not come")


def test_each_rank_writes_all_its_stacks_once_and_the_first_speaks(tmp_path: Path) -> None:
    script = "wait_for_the_others(2.5)\ndog.beat(1235)\ntime.sleep(0.3)\ndog.close()"
    ranks = [start(tmp_path / "stacks", script, rank) for rank in (0, 1)]
    output = [process.communicate(timeout=60)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    for rank in (0, 1):
        text = (tmp_path / "stacks" / f"rank-{rank}.txt").read_text("utf-8")
        assert text.count("in wait_for_the_others") == text.count("in read_ahead") == 1
        assert len(re.findall(r"no step has ended for [0-9]+s \(last step: 1,234\)", text)) == 1
    received = r"No step has ended for [0-9]+s \(last step: 1,234\); stack traces of all processes are in"
    assert len(re.findall(received, output[0])) == 1
    assert str(tmp_path / "stacks") in output[0] and "The run keeps waiting; stop it with Ctrl-C" in output[0]
    assert "The run continues after " in output[0].splitlines()[-1]
    assert output[1] == ""


def test_a_call_that_blocks_all_threads_is_written_too(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(0.3)\nnever_lets_go()")
    try:
        text = wait_for(tmp_path / "rank-0.txt", "<module>")
        assert "in never_lets_go" in text
        assert "no step has ended" not in text  # the watching thread could not: it was the alarm
        assert process.poll() is None
    finally:
        process.kill()
    assert process.communicate()[0] == ""


def test_no_file_while_steps_end_nor_in_a_pause(tmp_path: Path) -> None:
    script = """
for step in range(100):
    dog.beat(step)
    time.sleep(0.01)
with dog.pause():
    time.sleep(1.5)
dog.beat(step)
time.sleep(0.1)
assert Path(sys.argv[1], "rank-0.txt").stat().st_size == 0
dog.close()
time.sleep(1.5)
"""
    process = start(tmp_path / "stacks", script)
    assert (process.communicate(timeout=60)[0], process.returncode) == ("", 0)
    assert not (tmp_path / "stacks").exists()


def test_a_process_that_was_stopped_goes_on(tmp_path: Path) -> None:
    script = """
time.sleep(0.2)
dog.beat(1235)
Path(sys.argv[1], "begun").touch()
end = time.process_time() + 0.05
while time.process_time() < end:  # a step, in which it is stopped
    pass
while not Path(sys.argv[1], "end").exists():
    dog.beat(1234)
dog.close()
"""
    process = start(tmp_path, script, least=1.0)
    try:
        end = time.monotonic() + 30
        while not (tmp_path / "begun").exists() and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        time.sleep(3.0)
        process.send_signal(signal.SIGCONT)
        time.sleep(1.0)
        (tmp_path / "end").touch()
        output = process.communicate(timeout=30)[0]
    finally:
        process.kill()
    assert process.returncode == 0
    assert "This process did not run for" in output and "No step has ended" not in output
    # Of one thread, whichever the system woke first: of itself, so that nothing moves meanwhile.
    text = (tmp_path / "rank-0.txt").read_text("utf-8")
    assert text.count("most recent call first") == 1


class Time:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def test_the_limit_learns_from_steps_but_not_from_one_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Time()
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: clock.now))
    dog = Watchdog(tmp_path / "stacks", 0)
    try:
        assert dog.limit() == 600
        clock.pass_by(500)
        dog.beat(0)
        assert dog.limit() == 600
        for step, seconds in enumerate([500, 1, 1.5], start=1):  # the first step compiles
            clock.pass_by(seconds)
            dog.beat(step)
            assert dog.limit() == 60
        for _ in range(3):  # no steps, but signs of life
            clock.pass_by(50)
            dog.beat(3)
        assert dog.limit() == 60
        clock.pass_by(50)  # a stall
        dog.beat(4)
        assert dog.limit() == 60
        with dog.pause():
            assert dog.limit() == 3600
            clock.pass_by(3000)
        clock.pass_by(1)
        dog.beat(5)
        assert dog.limit() == 60
        clock.pass_by(8)  # steps are longer from now on
        dog.beat(6)
        assert dog.limit() == 240
    finally:
        dog.close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stacks").write_text("a file")
    with pytest.raises(UserError, match=r"stacks.*cannot be written"):
        Watchdog(tmp_path / "stacks", 0)
