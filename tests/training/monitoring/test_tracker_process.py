"""The real trackers, offline: the files that they write hold the records of the run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import needs
from small_records import MACHINE, step_record

from daybreak.core.run_folder import RunFolder
from daybreak.training.monitoring import trackers

RECIPE = {"kind": "Recipe", "name": "tiny", "length": 128, "max_grad_norm": 1.0, "origin": {"init": "secret"}}


def tell(run: RunFolder, name: str, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """One sitting of a run: three steps from ``first`` on, and the machine."""
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 60.0)  # a busy machine may take longer to start a process
    received = trackers.Remote([name], run=run, recipe=RECIPE, name="my run")
    for step in range(first, first + 3):
        received.on_step(step_record(step, loss=10.0 - step))
    received.on_machine(MACHINE)
    received.close()


@needs("the extra track: tensorboard", "tensorboard")
def test_tensorboard_reads_what_was_sent_and_forgets_what_was_lost(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tell(run, "tensorboard", monkeypatch, first=1)
    time.sleep(1.1)  # its files are read in the order of the second in their names
    tell(run, "tensorboard", monkeypatch, first=3)  # step 3 was lost and comes again
    assert capsys.readouterr().out == ""
    read = EventAccumulator(str(run.path / "tensorboard"))
    read.Reload()
    seen = read.Scalars("train/loss")
    assert [event.step for event in seen] == [1, 2, 3, 4, 5]
    assert [event.value for event in seen] == [9.0, 8.0, 7.0, 6.0, 5.0]
    assert read.Scalars("machine/gpu0/watts")[0].value == 300.0


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format, blocks of 32 KiB, chunks behind 7 bytes of header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, whole = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@needs("the extra track: wandb", "wandb")
def test_wandb_keeps_what_was_sent_in_the_run_folder_when_offline(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    tell(run, "wandb", monkeypatch, first=1)
    tell(run, "wandb", monkeypatch, first=3)
    assert capsys.readouterr().out == ""
    files = sorted(run.path.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2 and len({file.name for file in files}) == 1  # two sittings of one run
    rows = []
    for record in wandb_records(files[0]):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    assert [(row["step"], row["train/loss"]) for row in rows[:3]] == [(1, 9.0), (2, 8.0), (3, 7.0)]
    assert rows[3]["machine/gpu0/watts"] == 300.0 and rows[3]["step"] == 8
    held = files[0].read_bytes()
    for private in ("secret", str(run.path), f'"{socket.gethostname()}"', os.getcwd()):
        assert private.encode() not in held


@needs("the extra track: trackio", "trackio")
def test_trackio_keeps_what_was_sent_in_its_local_store(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    tell(run, "trackio", monkeypatch, first=1)
    tell(run, "trackio", monkeypatch, first=3)
    assert capsys.readouterr().out == ""
    (file,) = (tmp_path / "store").glob("*.db")
    with contextlib.closing(sqlite3.connect(file)) as store:
        rows = store.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert len({name for name, _, _ in rows}) == 1  # two sittings of one run
    losses = [(step, json.loads(values).get("train/loss")) for _, step, values in rows]
    assert losses == [(1, 9.0), (2, 8.0), (3, 7.0), (8, None), (3, 7.0), (4, 6.0), (5, 5.0), (8, None)]
