"""The launcher and the tasks of a cluster preparation, with the executors of datatrove (extra ``corpus``).

Only these processes import this module; ``cluster`` starts the launcher and waits for the tasks.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import shlex
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datatrove.executor.base import PipelineExecutor
from datatrove.executor.ray import RayPipelineExecutor
from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from daybreak import __version__
from daybreak.core.errors import UserError, reason
from daybreak.core.files import write_text
from daybreak.core.process import end_with
from daybreak.data.pipeline.cluster import ERRORS, JOB, LOG, PLAN, RAY, SLURM, TASK, ClusterPlan
from daybreak.data.pipeline.resuming import NO_ROOM
from daybreak.data.pipeline.workers import WorkerLost, map_parts, read_task, workers_ended


class Parts(PipelineStep):
    """Processes the parts of its rank according to the plan in a folder."""

    type, name = "Daybreak", "parts"

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = str(folder)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Any:
        """Process the parts; store an exception in the folder, for the waiting process, and raise it."""
        folder = Path(self.folder)
        plan = read_plan(folder)
        if plan.cluster.kind == RAY:
            end_with(os.getppid())  # Ray ends its actors, but not the processes that datatrove forks from them
        try:
            with self.track_time(unit="task"):
                _do(plan, folder, rank, world_size)
        except Exception as error:
            leave_error(folder, f"{rank:05d}", error)
            raise
        return data


def _do(plan: ClusterPlan, folder: Path, rank: int, world_size: int) -> None:
    """Process the parts of one task; raise WorkerLost if the machine or the text causes a failure."""
    host, on_ray = f"machine '{socket.gethostname()}'", plan.cluster.kind == RAY
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the tasks of a machine fill its cores already
    try:
        if plan.version != __version__:
            raise UserError(
                f"Daybreak is {__version__} on the {host}, and {plan.version} where the command was given.",
                "Install one version everywhere.",
            )
        os.chdir(plan.here)
        with workers_ended():
            task = read_task(str(folder / TASK))
            deque(map_parts(task, plan.numbers[rank::world_size], plan.cluster.slurm.cpus, folder), maxlen=0)
    except (MemoryError, WorkerLost):
        raise WorkerLost(
            f"A task on the {host} failed, most likely because its memory was full.",
            f"{'Use fewer --workers' if on_ray else 'Give each core more with --slurm.memory'}; finished parts stay.",
        ) from None
    except UserError as error:
        raise WorkerLost(error.sentence, error.remedy) from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise WorkerLost(
            f"A task on the {host} failed: {reason(error)}.",
            "Make sure that every machine has the text and the folders under the same names; finished parts stay.",
        ) from error


def read_plan(folder: Path) -> ClusterPlan:
    plan: ClusterPlan = pickle.loads((folder / PLAN).read_bytes())
    return plan


def leave_error(folder: Path, name: str, error: Exception) -> None:
    """Store the exception that ended a task, as far as it can be pickled."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(trace)
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # some exceptions can be pickled but not unpickled
        data = pickle.dumps(RuntimeError(trace))
    temporary = folder / ERRORS / f".{name}"
    temporary.write_bytes(data)
    os.replace(temporary, folder / ERRORS / name)


class RayTasks(RayPipelineExecutor):
    """Writes logs directly to their folder, not to a temporary folder that all users of a machine share."""

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> Any:
        return PipelineExecutor._run_for_rank(self, rank, local_rank, node_rank)


class SlurmTasks(SlurmPipelineExecutor):
    """Omits unset options, allows spaces in file names, and submits no job for statistics."""

    def get_sbatch_args(self, max_array: int = 1) -> dict[str, Any]:
        given = super().get_sbatch_args(max_array)
        return {flag: value for flag, value in given.items() if flag == "requeue" or value not in ("", "0G")}

    def get_launch_file_contents(self, sbatch_args: dict[str, Any], run_script: str) -> str:
        pickled = self.logging_dir.resolve_paths("executor.pik")
        quoted = {**sbatch_args, **{flag: f'"{sbatch_args[flag]}"' for flag in ("output", "error")}}
        written: str = super().get_launch_file_contents(quoted, run_script.replace(pickled, shlex.quote(pickled)))
        return written

    def launch_merge_stats(self) -> None:
        pass


def _on_ray(plan: ClusterPlan, folder: Path) -> None:
    end_with(plan.process)
    import ray

    try:
        _refuse_unreachable(os.environ.get("RAY_ADDRESS", ""))
        # Connects to RAY_ADDRESS, or starts Ray on this machine.
        ray.init(logging_level=logging.ERROR, log_to_driver=False)
        RayTasks(
            [Parts(folder)],
            tasks=plan.tasks,
            workers=plan.cluster.workers,
            logging_dir=str(folder),
            mem_per_cpu_gb=0,  # one core per task, no memory request
        ).run()
    except (OSError, ray.exceptions.RayError) as error:
        raise WorkerLost(
            f"The Ray cluster fails: {reason(error)}.",
            "Check its address and machines, and repeat the command, which resumes.",
        ) from error


def _refuse_unreachable(address: str) -> None:
    """Raise OSError if nothing listens at ``host:port`` or ``ray://host:port``; Ray itself would wait for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _on_slurm(plan: ClusterPlan, folder: Path) -> None:
    slurm = plan.cluster.slurm
    here = f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"'
    executor = SlurmTasks(
        [Parts(folder)],
        tasks=plan.tasks,
        time=slurm.time,
        partition=slurm.partition,
        cpus_per_task=slurm.cpus,
        mem_per_cpu_gb=slurm.memory,
        workers=plan.cluster.workers,
        job_name="daybreak",
        qos="",
        env_command=f"{here}\n{slurm.setup}",
        logging_dir=str(folder),
        job_id_retriever=job_number,
        with_srun=False,  # one process per task; srun would inherit the settings of a surrounding job
    )
    try:
        executor.launch_job()  # not run(), which in a job array does a task
    except (OSError, ValueError, subprocess.CalledProcessError):
        messages = re.findall("^sbatch: (?:error: )?(.+)$", (folder / LOG).read_text(errors="replace"), re.MULTILINE)
        raise WorkerLost(
            f"sbatch refuses the job: {messages[-1].rstrip('.') if messages else f'see {folder / LOG}'}.",
            "Fix the --slurm flags and repeat the command, which resumes: finished parts are kept.",
        ) from None
    write_text(folder / JOB, executor.job_id)


def job_number(output: str) -> str:
    """Return the job number in the output of sbatch, such as ``Submitted batch job 7 on cluster east``."""
    found = re.search(r"Submitted batch job (\d+)", output)
    if found is None:
        raise ValueError(f"sbatch prints no job number: {output}")
    return found[1]


START: dict[str, Callable[[ClusterPlan, Path], None]] = {RAY: _on_ray, SLURM: _on_slurm}


def main() -> None:
    """Start the tasks of the plan in the folder given as argument; with Ray, wait for them."""
    folder = Path(sys.argv[1])
    plan = read_plan(folder)
    try:
        START[plan.cluster.kind](plan, folder)
    except Exception as error:
        traceback.print_exc()
        leave_error(folder, "start", error)
        sys.exit(1)
