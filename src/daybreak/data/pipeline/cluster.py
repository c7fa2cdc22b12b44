"""Run the preparation of text parts on a Ray cluster or as a Slurm job array.

Each part writes its result to a folder, which is renamed when it is complete (``resuming.fill_once``), on a disk that
all machines share. No result is sent: a part is done when its folder exists, and a task that dies loses only the parts
it was working on. The executors come from datatrove (extra ``corpus``). Until all parts are done there is also:

    WORK/tasks-x1y2z3/plan  task           settings, and the pickled task for each part
                      launch.log  job      output of the launcher; the Slurm job number
                      errors/ logs/ ...    exceptions of tasks; files of datatrove

The launcher and the tasks are in ``cluster_tasks``. The launcher is a separate process, so that the output of
datatrove, Ray and sbatch goes to its log and signals to this process do not reach it.
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
from daybreak.core.process import WATCH_SECONDS
from daybreak.core.serialization import check_choice
from daybreak.core.terminal import say
from daybreak.data.filters.filter import missing_extra
from daybreak.data.pipeline.workers import WorkerLost, write_task

LOCAL, RAY, SLURM = PLACES = ("local", "ray", "slurm")
PLAN, TASK, LOG, JOB, ERRORS = "plan", "task", "launch.log", "job", "errors"
"""File names in the task folder."""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Resources of each task of the job array; unset fields use the defaults of the cluster.

    Other settings, such as an account, are read by sbatch from its environment variables (SBATCH_ACCOUNT and so on).
    """

    partition: str = ""
    """Slurm partition."""
    time: str = ""
    """Time limit of a task in the format of sbatch, such as 04:00:00."""
    cpus: int = 1
    """Cores of a task; each processes one part at a time."""
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
    """A cluster that replaces local worker processes."""

    kind: str
    """RAY or SLURM."""
    workers: int
    """Tasks that run at the same time."""
    slurm: Slurm = field(default_factory=Slurm)

    def check(self) -> None:
        """Raise UserError if a required library or command is missing on this machine."""
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
    """Settings that all tasks read from a file."""

    cluster: Cluster
    numbers: tuple[int, ...]
    """Parts to process."""
    tasks: int
    """Number of tasks; task ``n`` processes every ``tasks``-th part, starting with the ``n``-th."""
    here: str
    """Working directory to which relative file names refer."""
    process: int
    """Process that waits for the tasks."""
    version: str = __version__


def chosen_workers(on: str, workers: int, slurm: Slurm) -> int | Cluster:
    """Return a number of local processes, or the cluster to use."""
    check_choice("--on", on, PLACES)
    if on != SLURM and slurm != Slurm():
        raise UserError(f"The --slurm flags do not apply to --on {on}.", "Add --on slurm, or leave them out.")
    if on == LOCAL:
        return workers
    if workers < 1:
        raise UserError(f"--on {on} needs the number of tasks that may run at once.", "Set it with --workers.")
    return Cluster(on, workers, slurm)


TASKS_PER_WORKER = 4
"""Several tasks per worker, so that one slow task delays the end by a quarter of a worker's parts at most."""
MOST_TASKS = 1000
"""Slurm accepts 1001 tasks in an array by default."""
LOOK_SECONDS = 1.0
"""Interval between checks for finished parts."""
ASK_SECONDS = 15.0
"""Interval between queries to the Slurm controller, a shared service."""
SETTLE_SECONDS = 60.0
"""Time after which a network disk shows files of other machines: NFS caches folder contents."""
END_SECONDS = 60.0
"""Time for a job to leave the queue."""


def map_parts_on(
    cluster: Cluster, task: Callable[[int], object], numbers: Sequence[int], results: Path
) -> Iterator[int]:
    """Run ``task(number)`` for all numbers on the cluster; yield each number when its result exists.

    Args:
        task: picklable; creates ``results/NUMBER`` atomically and does nothing if that exists.
        results: a folder at the same path on every machine; its parent exists.

    Raises:
        WorkerLost: the cluster cannot be used, or a task failed or disappeared. Finished parts are kept.
    """
    left = set(numbers)
    yield from _come(results, left)
    if not left:
        return
    folder = Path(tempfile.mkdtemp(prefix="tasks-", dir=results.parent))
    tasks = min(MOST_TASKS, TASKS_PER_WORKER * cluster.workers, math.ceil(len(left) / cluster.slurm.cpus))
    plan = ClusterPlan(cluster, tuple(sorted(left)), tasks, os.getcwd(), os.getpid())
    (folder / ERRORS).mkdir()
    write_task(task, folder / TASK)
    (folder / PLAN).write_bytes(pickle.dumps(plan))
    job, gone = JOBS[cluster.kind](folder), math.inf
    try:
        job.begin()
        say(f"{job.name}: {len(left):,} parts in {tasks:,} tasks, at most {cluster.workers:,} at a time.")
        while left:
            running = job.running()  # queried before the check below, which then sees all finished parts
            yield from _come(results, left)
            if not left:
                break
            _refuse_failed(folder)
            gone = math.inf if running else min(gone, time.monotonic())
            if time.monotonic() - gone >= SETTLE_SECONDS:
                raise WorkerLost(
                    f"{job.name} has ended, and {len(left):,} of {len(plan.numbers):,} parts are missing{job.state()}.",
                    f"See its logs in '{folder}', which every machine must see, and repeat the command, which resumes: "
                    "finished parts are kept.",
                )
            time.sleep(LOOK_SECONDS)
    finally:
        if job.end(0 if left else END_SECONDS):
            (folder / JOB).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _come(results: Path, left: set[int]) -> Iterator[int]:
    """Yield the numbers of ``left`` whose results exist, and remove them from it."""
    for number in sorted(left.intersection(int(path.name) for path in results.glob("[0-9]*"))):
        left.discard(number)
        yield number


def _refuse_failed(folder: Path) -> None:
    """Raise the exception that ended a task or the launcher, if there is one."""
    for path in sorted((folder / ERRORS).glob("[!.]*")):
        error: Exception = pickle.loads(path.read_bytes())
        raise error


def _start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the launcher in its own session, which Ctrl-C does not reach."""
    script = "from daybreak.data.pipeline import cluster_tasks; cluster_tasks.main()"
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},  # disables telemetry of Ray
        )


class RayJob:
    """The launcher process of Ray, which runs until all tasks are done; the tasks end with it."""

    name = "Ray"

    def __init__(self, folder: Path):
        self._starter = _start(folder)

    def begin(self) -> None:
        """Wait until the job is submitted."""

    def running(self) -> bool:
        """Return whether tasks are running or waiting."""
        return self._starter.poll() is None

    def state(self) -> str:
        """Return how the tasks ended, as the end of a sentence; empty if unknown."""
        return ""

    def end(self, patience: float) -> bool:
        """End the job unless it ends by itself within ``patience`` seconds; return whether it has ended."""
        try:
            self._starter.wait(patience)
        except subprocess.TimeoutExpired:
            self._starter.kill()
            self._starter.wait()
            time.sleep(2 * WATCH_SECONDS)  # time for its tasks to notice
        return True


class SlurmJob:
    """A Slurm job array, which outlives the process that submitted it; its number is stored in a file."""

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
        """Wait until the job is submitted; raise WorkerLost if Slurm refuses it."""
        if self._starter:
            self._starter.wait()
        _refuse_failed(self._folder)
        if not self._note.exists():
            why = f"See '{self._folder / LOG}' and repeat the command, which resumes: finished parts are kept."
            raise WorkerLost("Nothing was submitted to Slurm.", why)

    def running(self) -> bool:
        """Return whether the job is in the queue; if Slurm does not answer, the previous result."""
        if time.monotonic() - self._asked >= ASK_SECONDS:
            self._asked, there = time.monotonic(), self._in_queue()
            self._there = self._there if there is None else there
        return self._there

    def _in_queue(self) -> bool | None:
        output = _answer("squeue", "--noheader", f"--user={os.getuid()}", "--format=%F")
        return None if output is None else self.number in output.split()

    def state(self) -> str:
        """Return how the tasks ended, as the end of a sentence; empty if unknown."""
        how = ("--noheader", "--allocations", "--parsable2", "--format=State")
        output = _answer("sacct", *how, f"--jobs={self.number}") or ""
        states = Counter(line.split()[0] for line in output.splitlines() if line.strip())
        ended = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()) if state != "COMPLETED")
        return f" ({ended})" if ended else ""

    def end(self, patience: float) -> bool:
        """End the job unless it ends by itself within ``patience`` seconds; return whether it has ended."""
        if self._starter:
            self._starter.wait()  # takes a second or two; after it, the job exists or never will
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
"""Functions from the task folder to the running job, by kind of cluster."""


def _answer(*command: str) -> str | None:
    """Return the output of a command; None if it fails, for example because the Slurm controller is busy."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=END_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def end_earlier(beside: Path) -> None:
    """End the Slurm jobs of a killed preparation in ``beside``, which would still write there."""
    notes = sorted(beside.glob(f"*/tasks-*/{JOB}"))
    if not notes:
        return
    with (beside / "lock").open("a") as lock:
        if not locked(lock.fileno()):
            return  # the process that waits for them is alive
        for note in notes:
            job = SlurmJob(note.parent)
            if not job.end(0):
                raise UserError(
                    f"{job.name} of an earlier attempt may still be running.",
                    f"End it with scancel {job.number}, delete '{note}', and repeat the command.",
                )
            note.unlink()
