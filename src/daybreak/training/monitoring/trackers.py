"""Trackers: a run's records are sent to Weights & Biases, TensorBoard and trackio by separate processes.

A tracker may raise, hang, crash, hold the interpreter or refuse to exit; the run never waits for its process. The run
writes to a pipe that never blocks. The pipe is the bounded queue, and records that do not fit are dropped. The complete
records are in metrics.jsonl.

Only numbers, known words of the recipe and the run's name are sent: no text, no path, no code, no machine name.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from daybreak.core.errors import UserError, reason
from daybreak.core.extras import install_hint
from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import check_choice, fingerprint, to_dict
from daybreak.core.terminal import say
from daybreak.schemas.run import MachineRecord, StepRecord, ValidationRecord
from daybreak.training.monitoring.tracker_process import TrackerSettings

TITLES = {"wandb": "Weights & Biases", "tensorboard": "TensorBoard", "trackio": "trackio"}
TRACKERS = tuple(TITLES)
"""Values of ``--track``; each is also the name of the package that it needs."""
CLOSE_SECONDS = 5.0
"""Maximum wait for all trackers at the end of a run."""
LINGER_SECONDS = 60.0
"""Seconds after the end of a run in which a tracker may still send its records; then its process is ended."""
PIPE_BYTES = 1 << 18
"""About a thousand records, a quarter of an hour: the most that a tracker may fall behind."""
PUBLIC_FIELDS = frozenset(
    "activation budget compile count decay document fingerprint head kind name normalizer order pooling positions "
    "precision punctuation rate_rule".split()
)
"""Recipe fields with text from a fixed vocabulary; the text of all other fields may be a path or private."""
RUN_FIELDS = ("elapsed", "progress", "tokens", "targets")
"""Fields that describe the progress of the run."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed; nothing is imported."""
    for name in names:
        check_choice("--track", name, TRACKERS)
        # A plain folder of that name, such as wandb creates, has no origin.
        if getattr(importlib.util.find_spec(name), "origin", None) is None:
            raise UserError(
                f"The package '{name}' is not installed.",
                f"{install_hint('track', name)[:-1]}, or leave {name} out of --track.",
            )


class Remote:
    """Sends every record to each of the trackers ``names``; never waits, never raises."""

    def __init__(self, names: Sequence[str], *, run: RunFolder, recipe: dict[str, Any], name: str):
        """Start the trackers' processes.

        Args:
            run: run folder with an environment.json.
            recipe: as in recipe.json; only its numbers, switches and known words are sent.
            name: name of the run in the trackers.
        """
        settings = TrackerSettings(
            name=name,
            identity=fingerprint(read_json(run.environment)),
            folder=str(run.path.resolve()),
            recipe=_public(recipe),
            linger=LINGER_SECONDS,
        )
        self._pipes = [_TrackerPipe(tracker, settings) for tracker in dict.fromkeys(names)]

    def on_step(self, record: StepRecord) -> None:
        values = to_dict(record)
        # The causal loss is another loss than the masked one: this value explains the jump of the curve.
        self._send("train", {**values, "causal": int(record.stage == "causal")})

    def on_validation(self, record: ValidationRecord) -> None:
        self._send("heldout", to_dict(record))

    def on_machine(self, record: MachineRecord) -> None:
        self._send("machine", to_dict(record))

    def _send(self, group: str, values: dict[str, Any]) -> None:
        step = values.pop("step")
        run_values = {key: values.pop(key) for key in RUN_FIELDS if key in values}
        numbers = _numbers("run", run_values) | _numbers(group, values)
        for pipe in self._pipes:
            pipe.send(step, numbers)

    def close(self) -> None:
        """Wait for the trackers for at most CLOSE_SECONDS; a tracker that takes longer continues alone."""
        for pipe in self._pipes:
            pipe.close_pipe()
        deadline = time.monotonic() + CLOSE_SECONDS
        for pipe in self._pipes:
            pipe.wait(deadline)


def _numbers(group: str, values: dict[str, Any]) -> dict[str, float]:
    """Flat names of all numbers; the accelerators of a machine are gpu0, gpu1 ..."""
    result: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, list):
            for place, item in enumerate(value):
                result |= _numbers(f"{group}/gpu{place}", item)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            result[f"{group}/{key}"] = value
    return result


def _public(value: Any, field: str = "") -> Any:
    """The public part of a recipe: numbers, switches and known words; None for everything else."""
    if isinstance(value, dict):
        result = {key: _public(item, key) for key, item in value.items()}
        return {key: item for key, item in result.items() if item is not None}
    if isinstance(value, list):
        return [item for item in (_public(item, field) for item in value) if item is not None]
    return value if isinstance(value, (int, float)) or (isinstance(value, str) and field in PUBLIC_FIELDS) else None


class _TrackerPipe:
    """The run's end of the pipe to one tracker's process."""

    def __init__(self, tracker: str, settings: TrackerSettings):
        self._title = TITLES[tracker]
        self._dropped = 0
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # Its own session: Ctrl-C is for the run, which then closes the pipe.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "daybreak.training.monitoring.tracker_process", tracker],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
            assert self._process.stdin is not None and self._process.stdout is not None
            self._pipe, self._errors = self._process.stdin, self._process.stdout
            with contextlib.suppress(OSError, AttributeError):  # a system with a lower limit keeps its size
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            self._write(asdict(settings))
            for file in (self._pipe, self._errors):
                os.set_blocking(file.fileno(), False)
        except OSError as error:
            self._fail(reason(error))

    def send(self, step: int, values: dict[str, float]) -> None:
        """Send the values of one step, in parts that a pipe accepts completely or not at all."""
        if self._process is None:
            return
        if len(json.dumps(values)) + 64 > select.PIPE_BUF and len(values) > 1:
            items = list(values.items())
            self.send(step, dict(items[: len(items) // 2]))
            self.send(step, dict(items[len(items) // 2 :]))
            return
        try:
            self._write({"step": step, "values": values})
        except BlockingIOError:
            self._dropped += 1
        except OSError:
            self._fail(self._error_message())

    def _write(self, value: dict[str, Any]) -> None:
        os.write(self._pipe.fileno(), json.dumps(value).encode() + b"\n")

    def _error_message(self) -> str:
        """The error that the tracker's process reported before it ended."""
        try:
            message = os.read(self._errors.fileno(), 4096).decode(errors="replace")
        except OSError:
            message = ""
        return message or "its process ended by itself"

    def _fail(self, why: str) -> None:
        say(f"{self._title} is disabled: {why}. The run continues, and metrics.jsonl has all records.")
        if self._process is not None:
            self.close_pipe()
            self._process.poll()
            self._process = None

    def close_pipe(self) -> None:
        """Close the pipe: no more records follow."""
        if self._process is not None:
            self._pipe.close()

    def wait(self, deadline: float) -> None:
        """Wait for the process until ``time.monotonic()`` is ``deadline``, and report dropped records."""
        if self._process is None:
            return
        dropped = f" {self._dropped} records did not reach it; metrics.jsonl has all." if self._dropped else ""
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            say(f"{self._title} has not finished; its process continues and ends within a minute.{dropped}")
            return
        if code:
            self._fail(self._error_message())
        elif dropped:
            say(f"{self._title} did not keep up.{dropped}")
