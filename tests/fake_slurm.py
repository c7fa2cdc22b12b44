"""A stand-in for Slurm on this machine alone: sbatch, squeue, scancel, sacct and scontrol, as far as arrays need them.

``install(folder)`` writes the commands. Each job is a folder with its script, the state of each task that ended, and
``ended``. Tasks are processes of one group, as many at a time as the array says, with the submitter's environment.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = "sbatch squeue scancel sacct scontrol".split()


def install(folder: Path) -> Path:
    """Write the commands into ``folder/bin``; return the folder of the jobs."""
    jobs = folder / "jobs"
    jobs.mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in COMMANDS:
        path = folder / "bin" / name
        words = shlex.join([sys.executable, "-I", "-S", __file__, name, str(jobs)])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)
    return jobs


def directives(job: Path) -> dict[str, str]:
    """What the script of a job asks for."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", (job / "script").read_text(), re.MULTILINE))


def states(job: Path) -> list[str]:
    """How those tasks ended that did."""
    return [path.read_text() for path in sorted(job.glob("*.state"))]


def sbatch(jobs: Path, *arguments: str) -> None:
    script = Path(arguments[-1]).read_text()
    if "--partition=nowhere" in script:
        print("sbatch: error: invalid partition specified: nowhere", file=sys.stderr)
        sys.exit("sbatch: error: Batch job submission failed: Invalid partition name specified")
    job = jobs / str(7 + len(list(jobs.iterdir())))
    job.mkdir()
    (job / "script").write_text(script)
    command = [sys.executable, "-I", "-S", __file__, "work", str(jobs), job.name]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    (job / "process").write_text(str(process.pid))
    print(f"Submitted batch job {job.name}")


def work(jobs: Path, number: str) -> None:
    job, wanted = jobs / number, directives(jobs / number)
    last, _, side = wanted["array"].removeprefix("0-").partition("%")
    waiting, working = list(range(int(last) + 1)), dict[int, subprocess.Popen[bytes]]()
    while waiting or working:
        while waiting and len(working) < int(side or len(waiting)):
            index = waiting.pop(0)
            working[index] = begin(job, wanted, index)
        for index, process in list(working.items()):
            if process.poll() is not None:
                (job / f"{index}.state").write_text("FAILED" if process.returncode else "COMPLETED")
                del working[index]
        time.sleep(0.02)
    (job / "ended").touch()


def begin(job: Path, wanted: dict[str, str], index: int) -> subprocess.Popen[bytes]:
    told = {"SLURM_ARRAY_TASK_ID": str(index), "SLURM_JOB_ID": job.name, "SLURM_NODELIST": "here", "RUN_OFFSET": "0"}
    place = wanted["output"].strip('"').replace("%A", job.name).replace("%a", str(index))
    with open(place, "wb") as log:
        return subprocess.Popen(
            ["bash", job / "script"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **told}
        )


def squeue(jobs: Path, *_: str) -> None:
    print("\n".join(job.name for job in jobs.iterdir() if not (job / "ended").exists()))


def scancel(jobs: Path, number: str) -> None:
    job = jobs / number
    if not (job / "ended").exists():
        os.killpg(int((job / "process").read_text()), signal.SIGKILL)
        (job / "x.state").write_text("CANCELLED by 0")
        (job / "ended").touch()


def sacct(jobs: Path, *arguments: str) -> None:
    number = next(word.removeprefix("--jobs=") for word in arguments if word.startswith("--jobs="))
    print("\n".join(states(jobs / number)))


def scontrol(jobs: Path, *_: str) -> None:
    print("here")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
