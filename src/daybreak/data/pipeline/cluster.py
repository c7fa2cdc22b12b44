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
import shutil
from dataclasses import dataclass, field

from daybreak import __version__
from daybreak.core.errors import UserError
from daybreak.core.serialization import nearest
from daybreak.data.filters.filter import missing_extra

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
class Plan:
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
