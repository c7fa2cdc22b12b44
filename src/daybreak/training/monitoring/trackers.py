"""Weights & Biases, TensorBoard and trackio: a run's records told to them from processes of their own.

Whatever a tracker does (raise, hang, crash, hold the interpreter, refuse to exit), it does so in a process that the run
never waits for. The run writes to a pipe that never blocks; the pipe is the bounded queue, and what does not fit in is
left out there. The complete records are in metrics.jsonl.

What leaves is numbers, the recipe's own words and the run's name: no text, no path, no code, no name of the machine.
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
from daybreak.core.serialization import fingerprint, nearest, to_dict
from daybreak.core.terminal import say
from daybreak.schemas.changes import MachineRecord
from daybreak.schemas.run import StepRecord, ValidationRecord
from daybreak.training.monitoring.tracker_process import Start

TITLES = {"wandb": "Weights & Biases", "tensorboard": "TensorBoard", "trackio": "trackio"}
TRACKERS = tuple(TITLES)
"""What ``--track`` takes; each is also the name of the package that it needs."""
PATIENCE = 5.0
"""Seconds that the end of a run waits for all its trackers."""
LINGER = 60.0
"""Seconds after the end of a run in which a tracker may still send what it holds; then its process is ended."""
PIPE_BYTES = 1 << 18
"""About a thousand records, a quarter of an hour: what a tracker may fall behind by."""
WORDS = frozenset(
    "activation budget compile count decay document fingerprint head kind name normalizer order pooling positions "
    "precision punctuation rate_rule".split()
)
"""Fields of a recipe whose text is a word that we chose; all others may be paths or names of somebody's text."""
COURSE = ("elapsed", "progress", "tokens", "targets")
"""Fields that say where the run is."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed; nothing is imported.

    Raises:
        UserError: there is no tracker of that name, or its package is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise UserError(
                f"There is no tracker '{name}'.{nearest(name, TRACKERS)}", f"Use --track {', '.join(TRACKERS)}."
            )
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # None for a mere folder of that name, such as wandb leaves behind
            raise UserError(
                f"The package '{name}' is not installed.",
                f"{install_hint('track', name)[:-1]}, or leave {name} out of --track.",
            )


class Remote:
    """Tells every record to each of the trackers ``names``; never waits, never raises."""

    def __init__(self, names: Sequence[str], *, run: RunFolder, recipe: dict[str, Any], name: str):
        """Start the trackers' processes.

        Args:
            run: of which environment.json exists already.
            recipe: as in recipe.json; only its numbers, switches and known words are passed on.
            name: what the run is called there.
        """
        start = Start(
            name=name,
            identity=fingerprint(read_json(run.environment)),
            folder=str(run.path.resolve()),
            recipe=_public(recipe),
            linger=LINGER,
        )
        self._listeners = [_Listener(tracker, start) for tracker in dict.fromkeys(names)]

    def on_step(self, record: StepRecord) -> None:
        values = to_dict(record)
        # A causal loss is no masked loss: this says why the curve jumps.
        self._send("train", {**values, "causal": int(record.stage == "causal")})

    def on_validation(self, record: ValidationRecord) -> None:
        self._send("heldout", to_dict(record))

    def on_machine(self, record: MachineRecord) -> None:
        self._send("machine", to_dict(record))

    def _send(self, group: str, values: dict[str, Any]) -> None:
        step = values.pop("step")
        course = {key: values.pop(key) for key in COURSE if key in values}
        numbers = _numbers("run", course) | _numbers(group, values)
        for listener in self._listeners:
            listener.send(step, numbers)

    def close(self) -> None:
        """Let the trackers finish, for PATIENCE at most; one that is not done by then is left to itself."""
        for listener in self._listeners:
            listener.hang_up()
        deadline = time.monotonic() + PATIENCE
        for listener in self._listeners:
            listener.leave(deadline)


def _numbers(group: str, values: dict[str, Any]) -> dict[str, float]:
    """Flat names of all that is a number; the accelerators of a machine are gpu0, gpu1 ..."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, list):
            for place, item in enumerate(value):
                found |= _numbers(f"{group}/gpu{place}", item)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{group}/{key}"] = value
    return found


def _public(value: Any, field: str = "") -> Any:
    """The part of a recipe that may leave: numbers, switches and known words; None for what may not."""
    if isinstance(value, dict):
        found = {key: _public(item, key) for key, item in value.items()}
        return {key: item for key, item in found.items() if item is not None}
    if isinstance(value, list):
        return [item for item in (_public(item, field) for item in value) if item is not None]
    return value if isinstance(value, (int, float)) or (isinstance(value, str) and field in WORDS) else None


class _Listener:
    """The run's end of the pipe to one tracker's process."""

    def __init__(self, tracker: str, start: Start):
        self._title = TITLES[tracker]
        self._left_out = 0
        self._process: subprocess.Popen[bytes] | None = None
        try:
            # A session of its own: Ctrl-C is for the run, which then closes the pipe.
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
            self._pipe, self._answers = self._process.stdin, self._process.stdout
            with contextlib.suppress(OSError, AttributeError):  # a system that allows no more keeps what it has
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            self._write(asdict(start))
            for file in (self._pipe, self._answers):
                os.set_blocking(file.fileno(), False)
        except OSError as error:
            self._give_up(reason(error))

    def send(self, step: int, values: dict[str, float]) -> None:
        """Pass the values of one step on, in pieces that a pipe takes whole or not at all."""
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
            self._left_out += 1
        except OSError:
            self._give_up(self._answer())

    def _write(self, value: dict[str, Any]) -> None:
        os.write(self._pipe.fileno(), json.dumps(value).encode() + b"\n")

    def _answer(self) -> str:
        """What the tracker's process said before it ended."""
        try:
            said = os.read(self._answers.fileno(), 4096).decode(errors="replace")
        except OSError:
            said = ""
        return said or "its process ended by itself"

    def _give_up(self, why: str) -> None:
        say(f"{self._title} is given up: {why}. The run goes on, and metrics.jsonl has everything.")
        if self._process is not None:
            self.hang_up()
            self._process.poll()
            self._process = None

    def hang_up(self) -> None:
        """No more records will come."""
        if self._process is not None:
            self._pipe.close()

    def leave(self, deadline: float) -> None:
        """Wait for the process until ``time.monotonic()`` is ``deadline``, and say what was not told."""
        if self._process is None:
            return
        missing = f" {self._left_out} records did not reach it; metrics.jsonl has all." if self._left_out else ""
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            say(f"{self._title} does not finish and is left to itself; its process ends within a minute.{missing}")
            return
        if code:
            self._give_up(self._answer())
        elif missing:
            say(f"{self._title} did not keep up.{missing}")
