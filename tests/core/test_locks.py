"""Folders that are held by one process at a time: who waits, who is refused, and what a kill leaves."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daybreak.core import locks
from daybreak.core.errors import UserError
from daybreak.core.locks import alone_in, is_held

HOLDER = """
import pathlib, sys, time
from daybreak.core.locks import alone_in
with alone_in(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_held_by_one_process_and_a_kill_lets_go_of_it(tmp_path: Path) -> None:
    run = tmp_path / "deep" / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        assert is_held(run) and list(run.iterdir()) == []
        with pytest.raises(UserError, match=r"Another process is at work in '.*run'. Wait for it"), alone_in(run):
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert not is_held(run)
    with alone_in(run):
        assert is_held(run)
    assert not is_held(run) and not is_held(tmp_path / "nowhere")


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Messages to waiting processes."""
    received: list[str] = []
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(locks, "say", received.append)
    return received


@contextmanager
def elsewhere(folder: Path, output: list[str], leave: Callable[[], object]) -> Iterator[None]:
    """Another has ``folder``, until somebody waits for it; then it calls ``leave``, and lets go."""
    holding = threading.Event()

    def hold() -> None:
        with alone_in(folder):
            holding.set()
            deadline = time.monotonic() + 30
            while not output and time.monotonic() < deadline:
                time.sleep(0.01)
            leave()

    thread = threading.Thread(target=hold)
    thread.start()
    assert holding.wait(30)
    yield
    thread.join()


def test_who_waits_has_it_next(output: list[str], tmp_path: Path) -> None:
    left: list[bool] = []
    with elsewhere(tmp_path, output, lambda: left.append(True)), alone_in(tmp_path, 60.0):
        assert left == [True]
    assert output == [f"Another process is at work in '{tmp_path}': waiting for its end."]


def test_a_folder_that_was_deleted_meanwhile_is_made_and_held_anew(output: list[str], tmp_path: Path) -> None:
    """As by a start that failed: its lock says nothing of the folder that is there now."""
    run = tmp_path / "run"
    with elsewhere(run, output, lambda: shutil.rmtree(run)), alone_in(run, 60.0):
        assert is_held(run)
    assert run.is_dir() and len(output) == 1


def test_where_the_file_system_has_no_locks_everybody_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with alone_in(tmp_path), alone_in(tmp_path):
        assert not is_held(tmp_path)
