"""Where parts of the text are done if not here: on a Ray cluster, or by a job array of Slurm.

What a part gives is a folder that appears whole or not at all (``survey.fill_part``), on a disk that all machines
share. So no result is sent: a part is done when its folder is there, whoever did it, and a task that dies costs the
parts that it was at. The executors are datatrove's (extra ``corpus``). Beside what the parts give, until all are done:

    WORK/tasks-x1y2z3/plan  task           where, and what is to be done for each part
                      launch.log  job      what the start said; the number of Slurm's job
                      errors/ logs/ ...    what ended each task; datatrove's own files

``cluster_jobs`` waits for the tasks, ``cluster_tasks`` is what runs there.
"""

from __future__ import annotations

import importlib.util
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daybreak import __version__
from daybreak.core.errors import UserError
from daybreak.core.locks import locked
from daybreak.core.serialization import nearest
from daybreak.core.terminal import say
from daybreak.data.filters.filter import missing_extra
from daybreak.data.pipeline.workers import WATCH_SECONDS, WorkerLost, lay_down

LOCAL, RAY, SLURM = PLACES = ("local", "ray", "slurm")
PLAN, TASK, LOG, JOB, ERRORS = "plan", "task", "launch.log", "job", "errors"
"""Names in the folder of the tasks."""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """What each task of the job array is given; what is not said is left to the cluster.

    All else that a cluster wants, such as an account, sbatch takes from its own variables: SBATCH_ACCOUNT and so on.
    """

    partition: str = ""
    """Partition to which the tasks go."""
    time: str = ""
    """Longest time of a task, as sbatch takes it: 04:00:00."""
    cpus: int = 1
    """Cores of a task, each of which reads a part."""
    memory: int = 0
    """GB for each core."""
    setup: str = ""
    """Shell commands before each task: "module load python; source env/bin/activate"."""

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise UserError(f"A task cannot have {self.cpus} cores.", "Give --slurm.cpus 1 or more.")
        if self.memory < 0:
            raise UserError(f"A core cannot have {self.memory} GB.", "Give --slurm.memory 1 or more, or leave it out.")


@dataclass(frozen=True)
class Cluster:
    """In place of processes here."""

    kind: str
    """RAY or SLURM."""
    workers: int
    """Tasks side by side."""
    slurm: Slurm = field(default_factory=Slurm)

    def check(self) -> None:
        """
        Raises:
            UserError: what it needs is not on this machine.
        """
        if importlib.util.find_spec("datatrove") is None:
            raise missing_extra(f"--on {self.kind}", "datatrove")
        if self.kind == RAY and importlib.util.find_spec("ray") is None:
            raise UserError("--on ray needs ray, which is not installed.", "Install it with: pip install ray.")
        for command in ("sbatch", "squeue", "scancel") if self.kind == SLURM else ():
            if shutil.which(command) is None:
                raise UserError(
                    f"--on slurm needs {command}, which is not on this machine.", "Give the command on a login node."
                )


@dataclass(frozen=True)
class ClusterPlan:
    """What the tasks share; a file, for they are told no more than where it is."""

    cluster: Cluster
    numbers: tuple[int, ...]
    """Parts to do."""
    tasks: int
    """Task ``n`` of them does every ``tasks``-th part, from the ``n``-th."""
    here: str
    """The folder in which the names of files are meant."""
    process: int
    """Who waits for them."""
    version: str = __version__


def chosen_workers(on: str, workers: int, slurm: Slurm) -> int | Cluster:
    """Who reads parts: a number of processes of this machine, or a cluster.

    Args:
        on: one of PLACES.
        workers: processes, or tasks, side by side.
        slurm: what a task is given there.

    Raises:
        UserError: there is no such place, it lacks a setting, or does not take one.
    """
    if on not in PLACES:
        raise UserError(f"Text is not prepared on '{on}'.{nearest(on, PLACES)}", "Use --on local, ray or slurm.")
    if on != SLURM and slurm != Slurm():
        raise UserError(f"The flags --slurm mean nothing to --on {on}.", "Add --on slurm, or leave them out.")
    if on == LOCAL:
        return workers
    if workers < 1:
        raise UserError(f"--on {on} does not know how many tasks may run side by side.", "Say it with --workers.")
    return Cluster(on, workers, slurm)


TASKS_PER_WORKER = 4
"""So that what one slow task holds up is a quarter of a worker's share."""
MOST_TASKS = 1000
"""Slurm takes 1001 in an array, unless it was told otherwise."""
LOOK_SECONDS = 1.0
"""Between two looks at what is done."""
ASK_SECONDS = 15.0
"""Between two questions to Slurm's controller, which serves everybody."""
SETTLE_SECONDS = 60.0
"""After so long a network disk shows what another machine wrote: NFS keeps what it knows of a folder."""
END_SECONDS = 60.0
"""For a job to leave the queue."""


def over_parts_on(
    cluster: Cluster, task: Callable[[int], object], numbers: Sequence[int], results: Path
) -> Iterator[int]:
    """Have ``task(number)`` done for all numbers; yield the numbers as what they give is there.

    Args:
        task: picklable; leaves ``results/NUMBER``, whole or not at all, and does nothing where that is there.
        results: a folder under a name that every machine knows, in another one that exists.

    Raises:
        WorkerLost: the cluster cannot be used, or a task failed or ended with no word; what is done is kept.
    """
    left = set(numbers)
    yield from _come(results, left)
    if not left:
        return
    folder = Path(tempfile.mkdtemp(prefix="tasks-", dir=results.parent))
    tasks = min(MOST_TASKS, TASKS_PER_WORKER * cluster.workers, math.ceil(len(left) / cluster.slurm.cpus))
    plan = ClusterPlan(cluster, tuple(sorted(left)), tasks, os.getcwd(), os.getpid())
    (folder / ERRORS).mkdir()
    lay_down(task, folder / TASK)
    (folder / PLAN).write_bytes(pickle.dumps(plan))
    job, gone = JOBS[cluster.kind](folder), math.inf
    try:
        job.begin()
        say(f"{job.name}: {len(left):,} parts in {tasks:,} tasks, at most {cluster.workers:,} at a time.")
        while left:
            running = job.running()  # asked before the look, which so sees all that was done until then
            yield from _come(results, left)
            if not left:
                break
            _refuse_failed(folder)
            gone = math.inf if running else min(gone, time.monotonic())
            if time.monotonic() - gone >= SETTLE_SECONDS:
                raise WorkerLost(
                    f"{job.name} has ended, and {len(left):,} of {len(plan.numbers):,} parts are missing{job.state()}.",
                    f"See its logs in '{folder}', which every machine must see: what is done is kept, and the same "
                    "command goes on.",
                )
            time.sleep(LOOK_SECONDS)
    finally:
        if job.end(0 if left else END_SECONDS):
            (folder / JOB).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _come(results: Path, left: set[int]) -> Iterator[int]:
    """Those of ``left`` that are there now, which are left no more."""
    for number in sorted(left.intersection(int(path.name) for path in results.glob("[0-9]*"))):
        left.discard(number)
        yield number


def _refuse_failed(folder: Path) -> None:
    """
    Raises:
        Exception: the one that ended a task, or the start.
    """
    for path in sorted((folder / ERRORS).glob("[!.]*")):
        error: Exception = pickle.loads(path.read_bytes())
        raise error


def _start(folder: Path) -> subprocess.Popen[bytes]:
    """Start what starts the tasks; Ctrl-C does not reach it."""
    script = "from daybreak.data.pipeline import cluster_tasks; cluster_tasks.main()"
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},  # or Ray tells its makers how it is used
        )


class RayJob:
    """A process that has Ray do the tasks, and stays until they are done; they end when it does."""

    name = "Ray"

    def __init__(self, folder: Path):
        self._starter = _start(folder)

    def begin(self) -> None:
        """Wait until it is known."""

    def running(self) -> bool:
        """Whether some of it is at work, or will be."""
        return self._starter.poll() is None

    def state(self) -> str:
        """How its tasks ended, for the end of a sentence; empty where nobody knows."""
        return ""

    def end(self, patience: float) -> bool:
        """End it, after ``patience`` seconds in which it may do so by itself; return whether it is gone."""
        try:
            self._starter.wait(patience)
        except subprocess.TimeoutExpired:
            self._starter.kill()
            self._starter.wait()
            time.sleep(2 * WATCH_SECONDS)  # until its tasks have seen it
        return True


class SlurmJob:
    """A job array, which outlives whoever submitted it; its number is in a file."""

    def __init__(self, folder: Path, starter: subprocess.Popen[bytes] | None = None):
        self._folder, self._note, self._starter = folder, folder / JOB, starter
        self._asked, self._there = -math.inf, True

    @classmethod
    def started(cls, folder: Path) -> SlurmJob:
        return cls(folder, _start(folder))

    @property
    def number(self) -> str:
        return self._note.read_text()

    @property
    def name(self) -> str:
        return f"Slurm's job {self.number}"

    def begin(self) -> None:
        """Wait until it is known.

        Raises:
            WorkerLost: Slurm refuses it.
        """
        if self._starter:
            self._starter.wait()
        _refuse_failed(self._folder)
        if not self._note.exists():
            why = f"See '{self._folder / LOG}': what is done is kept, and the same command goes on."
            raise WorkerLost("Nothing was submitted to Slurm.", why)

    def running(self) -> bool:
        """Whether it is in the queue; where Slurm does not answer, as it was before."""
        if time.monotonic() - self._asked >= ASK_SECONDS:
            self._asked, there = time.monotonic(), self._in_queue()
            self._there = self._there if there is None else there
        return self._there

    def _in_queue(self) -> bool | None:
        output = _answer("squeue", "--noheader", f"--user={os.getuid()}", "--format=%F")
        return None if output is None else self.number in output.split()

    def state(self) -> str:
        """How its tasks ended, for the end of a sentence; empty where nobody knows."""
        how = ("--noheader", "--allocations", "--parsable2", "--format=State")
        output = _answer("sacct", *how, f"--jobs={self.number}") or ""
        states = Counter(line.split()[0] for line in output.splitlines() if line.strip())
        ended = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()) if state != "COMPLETED")
        return f" ({ended})" if ended else ""

    def end(self, patience: float) -> bool:
        """End it, after ``patience`` seconds in which it may do so by itself; return whether it is gone."""
        if self._starter:
            self._starter.wait()  # a second or two, after which it is known whether there is a job
        if not self._note.exists() or self._leaves_queue(patience):
            return True
        _answer("scancel", self.number)
        return self._leaves_queue(END_SECONDS)

    def _leaves_queue(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._in_queue() is not False:
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_SECONDS)
        return True


JOBS: dict[str, Callable[[Path], RayJob | SlurmJob]] = {RAY: RayJob, SLURM: SlurmJob.started}
"""By the kind of cluster: from the folder of the tasks to what does them."""


def _answer(*command: str) -> str | None:
    """What a command prints; None where it fails, as when Slurm's controller is busy."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=END_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def end_earlier(beside: Path) -> None:
    """End the jobs that a preparation in ``beside`` has left with Slurm when it was killed: they would write there too.

    Raises:
        UserError: one cannot be ended.
    """
    notes = sorted(beside.glob(f"*/tasks-*/{JOB}"))
    if not notes:
        return
    with (beside / "lock").open("a") as lock:
        if not locked(lock.fileno()):
            return  # who waits for them is alive
        for note in notes:
            job = SlurmJob(note.parent)
            if not job.end(0):
                raise UserError(
                    f"{job.name}, of an earlier try, may still be at work.",
                    f"End it with scancel {job.number}, delete '{note}', and give the same command again.",
                )
            note.unlink()
