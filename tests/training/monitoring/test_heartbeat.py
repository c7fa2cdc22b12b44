"""What a kill costs is known from a file, whatever became of it."""

from __future__ import annotations

import math
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daybreak.training.monitoring.heartbeat import INTERVAL, Heartbeat, read_heartbeat

BEATS = """
import sys, time
from pathlib import Path
from daybreak.training.monitoring.heartbeat import Heartbeat
Heartbeat(Path(sys.argv[1]), time.monotonic)
print("begun", flush=True)
while True:
    pass
"""


def test_the_last_reading_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    process = subprocess.Popen([sys.executable, "-c", BEATS, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    deadline = time.monotonic() + 30
    while not read_heartbeat(path) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = read_heartbeat(path) - time.monotonic()
    assert -2 < left < INTERVAL  # it was busy all the time, and beat all the same


def test_a_beat_says_when_the_next_one_comes_and_the_last_one_the_end(tmp_path: Path) -> None:
    """Killed between the two, a process is charged for all of the time that nobody knows of."""
    heartbeat = Heartbeat(tmp_path / "beat", lambda: 5.0)
    deadline = time.monotonic() + 30
    while not read_heartbeat(tmp_path / "beat") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_heartbeat(tmp_path / "beat") == 5.0 + INTERVAL
    heartbeat.close()
    assert read_heartbeat(tmp_path / "beat") == 5.0


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 16, b"abc", struct.pack("<dd", 1.0, 2.0), struct.pack("<dd", math.nan, math.nan)]
)
def test_what_is_torn_is_no_reading(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "beat").write_bytes(content)
    assert read_heartbeat(tmp_path / "beat") == read_heartbeat(tmp_path / "none") == 0.0


def test_a_disk_that_refuses_does_not_matter(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "no folder" / "beat", lambda: 1.0)
    heartbeat.close()
    assert list(tmp_path.iterdir()) == []
