"""Process of one tracker: reads records from a pipe and logs them to Weights & Biases, TensorBoard or trackio.

``trackers.py`` starts it with ``python -m``. The run does not wait for it, and it ends after the run even if a tracker
hangs.
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
"""Project of the run at wandb and trackio."""
NICENESS = 10


@dataclass(frozen=True, kw_only=True)
class TrackerSettings:
    """Settings that a tracker's process reads first."""

    name: str
    identity: str
    """The same for every process of one run, so that a resumed run continues its log."""
    folder: str
    recipe: dict[str, Any]
    linger: float


class Tracker(Protocol):
    def log(self, step: int, values: dict[str, float]) -> None:
        """Log the values of one step."""

    def close(self) -> None:
        """Complete pending work."""


class WeightsAndBiases:
    """Files in RUN/wandb; WANDB_MODE=offline, WANDB_PROJECT, WANDB_ENTITY and its other variables apply."""

    def __init__(self, settings: TrackerSettings):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=settings.identity,
            name=settings.name,
            resume="allow",
            dir=settings.folder,
            config=settings.recipe,
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
        # Steps lost to a kill are repeated, but wandb's own step cannot decrease.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


class Tensorboard:
    """Event files in RUN/tensorboard, written without torch, which takes seconds to import."""

    def __init__(self, settings: TrackerSettings):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._session, self._summary = Event, SessionLog, Summary
        self._writer = EventFileWriter(str(Path(settings.folder) / "tensorboard"), flush_secs=30)
        self._started = False

    def log(self, step: int, values: dict[str, float]) -> None:
        now = time.time()
        if not self._started:
            # TensorBoard then hides what earlier processes wrote for this step and later ones, which was lost.
            session = self._session(status=self._session.START)
            self._writer.add_event(self._event(wall_time=now, step=step, session_log=session))
            self._started = True
        summaries = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(self._event(wall_time=now, step=step, summary=self._summary(value=summaries)))

    def close(self) -> None:
        self._writer.close()


class Trackio:
    """trackio's own local store, unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL selects another one."""

    def __init__(self, settings: TrackerSettings):
        if not {"TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"} & os.environ.keys():
            os.environ["HF_HUB_OFFLINE"] = "1"  # it would query the hub for the user
        import trackio

        # trackio identifies a run by its name only.
        self._run = trackio.init(
            project=PROJECT,
            name=f"{settings.name} {settings.identity[:6]}",
            resume="allow",
            config=settings.recipe,
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


KINDS: dict[str, Callable[[TrackerSettings], Tracker]] = {
    "wandb": WeightsAndBiases,
    "tensorboard": Tensorboard,
    "trackio": Trackio,
}


def _end_after(records: int, seconds: float) -> None:
    """Set an alarm that ends this process, once the run has closed its end of the pipe."""
    poller = select.poll()
    poller.register(records, 0)  # reports only that the other end is closed
    poller.poll()
    signal.setitimer(signal.ITIMER_REAL, seconds)


def run_tracker(tracker: str) -> None:
    """Run one tracker: log records from standard input until it ends; write an error to standard output."""
    records, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # trackers prompt and print
        os.dup2(null, standard)
    os.nice(NICENESS)
    try:
        with open(records, "rb") as lines:
            settings = TrackerSettings(**json.loads(next(lines)))
            threading.Thread(target=_end_after, args=(records, settings.linger), daemon=True).start()
            client = KINDS[tracker](settings)
            for line in lines:
                client.log(**json.loads(line))
            client.close()
    except (Exception, SystemExit) as error:
        os.write(answers, (reason(error) if isinstance(error, Exception) else "it exited").encode())
        os._exit(1)  # skips exit handlers, which may wait


if __name__ == "__main__":
    run_tracker(sys.argv[1])
