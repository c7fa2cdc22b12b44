"""A tracker's own process: records come in over a pipe and go to Weights & Biases, TensorBoard or trackio.

``trackers.py`` starts it as ``python -m``. Nobody waits for it, and when the run is over it ends, whatever hangs in it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from daybreak.core.errors import reason

PROJECT = "daybreak"
"""What the run belongs to at wandb and trackio."""
NICENESS = 10


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a tracker's process learns first."""

    name: str
    identity: str
    """The same for every process of one run, so that a resumed run goes on where it was."""
    folder: str
    recipe: dict[str, Any]
    linger: float


class Tracker(Protocol):
    def log(self, step: int, values: dict[str, float]) -> None:
        """Pass on the values of one step."""

    def close(self) -> None:
        """Finish what is under way."""


class WeightsAndBiases:
    """Files in RUN/wandb; WANDB_MODE=offline, WANDB_PROJECT, WANDB_ENTITY and the others of its variables hold."""

    def __init__(self, start: Start):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=start.identity,
            name=start.name,
            resume="allow",
            dir=start.folder,
            config=start.recipe,
            settings=wandb.Settings(
                silent=True,
                console="off",
                host="",
                save_code=False,
                disable_code=True,
                disable_git=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )
        # Steps that were lost to a kill come again, and wandb's own step only ever grows.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


class Tensorboard:
    """Event files in RUN/tensorboard, written without torch: this process would take seconds to load it."""

    def __init__(self, start: Start):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._session, self._summary = Event, SessionLog, Summary
        self._writer = EventFileWriter(str(Path(start.folder) / "tensorboard"), flush_secs=30)
        self._begun = False

    def log(self, step: int, values: dict[str, float]) -> None:
        now = time.time()
        if not self._begun:
            # TensorBoard then hides what earlier processes wrote of these steps and later ones: it was lost.
            session = self._session(status=self._session.START)
            self._writer.add_event(self._event(wall_time=now, step=step, session_log=session))
            self._begun = True
        told = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(self._event(wall_time=now, step=step, summary=self._summary(value=told)))

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """trackio's own local store, unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL asks for another."""

    def __init__(self, start: Start):
        if not {"TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"} & os.environ.keys():
            os.environ["HF_HUB_OFFLINE"] = "1"  # it would ask the hub who is logged in
        import trackio

        # It knows a run by its name only.
        self._run = trackio.init(
            project=PROJECT,
            name=f"{start.name} {start.identity[:6]}",
            resume="allow",
            config=start.recipe,
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


KINDS: dict[str, Callable[[Start], Tracker]] = {
    "wandb": WeightsAndBiases,
    "tensorboard": Tensorboard,
    "trackio": Trackio,
}


def _end_after(records: int, seconds: float) -> None:
    """When the run has closed its end of the pipe, set an alarm that ends this process whatever it is doing."""
    poller = select.poll()
    poller.register(records, 0)  # only that the other end is gone
    poller.poll()
    signal.setitimer(signal.ITIMER_REAL, seconds)


def listen(tracker: str) -> None:
    """Be the tracker's process: read records from standard input until it ends; answer with what went wrong."""
    records, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # trackers ask questions and print
        os.dup2(null, standard)
    os.nice(NICENESS)
    try:
        with open(records, "rb") as lines:
            start = Start(**json.loads(next(lines)))
            threading.Thread(target=_end_after, args=(records, start.linger), daemon=True).start()
            there = KINDS[tracker](start)
            for line in lines:
                there.log(**json.loads(line))
            there.close()
    except (Exception, SystemExit) as error:
        os.write(answers, (reason(error) if isinstance(error, Exception) else "it left").encode())
        os._exit(1)  # past whatever waits at an exit


if __name__ == "__main__":
    listen(sys.argv[1])
