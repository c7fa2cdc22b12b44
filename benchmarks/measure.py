"""Shared code of the benchmarks: run Daybreak from outside, describe the machine and its load, simple statistics.

python benchmarks/measure.py        prints what a record says about this machine
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from daybreak.core.budget import Budget
from daybreak.core.files import read_json, write_json
from daybreak.core.other_processes import OtherProcesses, load, why_void
from daybreak.core.process import usable_cores
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.schemas.studies import MachineLoad
from daybreak.training.hardware.probe import describe

ROOT = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.02
"""How often a run folder is looked at from outside."""
SHORT_FLAGS = "--batch 4"
"""Of a dry run: steps that take no time."""
PR_SET_CHILD_SUBREAPER = 36
"""Of prctl(2)."""

# ---------------------------------------------------------------- command line


def parser(documentation: str | None) -> argparse.ArgumentParser:
    """Argument parser with the flags of every script."""
    found = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, help="write the record here as JSON; it is updated during the measurement")
    found.add_argument("--work", type=Path, help="keep run folders and logs here; by default they are temporary")
    found.add_argument("--short", action="store_true", help="a dry run of seconds on toy data, to test the script")
    return found


def add_run_flags(to: argparse.ArgumentParser, recipe: str = "tiny") -> None:
    """Flags of scripts that pretrain."""
    to.add_argument("--data", type=Path, help="folder made by daybreak prepare; toy data with --short")
    to.add_argument("--recipe", default=recipe)
    to.add_argument("--flags", default="", help="more flags for daybreak pretrain, in one string")


@contextmanager
def work_folder(chosen: Path | None, *, fresh: bool = False) -> Iterator[Path]:
    """Yield ``chosen``, created if needed, or a temporary folder.

    Args:
        fresh: exit if ``chosen`` has files, for scripts that would measure the finished runs of an earlier call.
    """
    if chosen:
        if fresh and chosen.is_dir() and any(chosen.iterdir()):
            sys.exit(f"'{chosen}' holds an earlier measurement. Name another folder with --work.")
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen.resolve()
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)


def use_one_thread() -> None:
    """Use one thread here and in started processes, for dry runs with toy shapes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)


# ---------------------------------------------------------------- Daybreak, from outside


def pretrain_command(
    recipe: str, data: Path, out: Path, budget: str, flags: str = "", *, processes: int = 1
) -> list[str]:
    """Command of one run; ``flags`` is split as a shell does. The runs of a comparison share their tokenizer."""
    whole = ["pretrain", recipe, "--data", str(data), "--out", str(out), "--budget", budget, *shlex.split(flags)]
    return daybreak(*whole, "--accept-tokenizer", processes=processes)


def daybreak(*arguments: str, processes: int = 1) -> list[str]:
    """Command line of a Daybreak command, through torchrun for several processes.

    Where the packages of the command line are missing, through bare.py, which knows the commands that measure a GPU.
    """
    bare = find_spec("tyro") is None
    script = [str(Path(__file__).with_name("bare.py"))] if bare else ["-m", "daybreak"]
    if processes == 1:
        return [sys.executable, *script, *arguments]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [sys.executable, "-m", *torchrun, *script, *arguments]


def environment(checkout: Path = ROOT) -> dict[str, str]:
    """Environment of a process that uses the sources of ``checkout``, whether or not Daybreak is installed."""
    paths = [str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command on the sources of this checkout; its output is appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment())


def run(command: Sequence[str], log: Path, *, timeout: float | None = None) -> float:
    """Run a command and return its seconds; exit with its last output if it fails.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``timeout`` seconds and was killed.
    """
    begun = time.monotonic()
    process = start(command, log)
    try:
        process.wait(timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    check_ended(process, log)
    return time.monotonic() - begun


def check_ended(process: subprocess.Popen[bytes], log: Path) -> None:
    """Exit with the last lines of ``log`` if the process failed."""
    if process.wait():
        last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        sys.exit(f"{shlex.join(map(str, process.args))}\nended with {process.returncode}:\n{last}")  # type: ignore[arg-type]


def wait_for_model(process: subprocess.Popen[bytes], out: Path) -> float | None:
    """Return the ``time.monotonic()`` at which the exported model appears, or None if the process ends first.

    The folder comes by one rename, so that what is seen is complete.
    """
    wanted = [out / "model" / name for name in ("model.safetensors", "config.json", "tokenizer.json")]
    while True:
        ended = process.poll() is not None
        if all(path.exists() for path in wanted):
            return time.monotonic()
        if ended:
            return None
        time.sleep(POLL_SECONDS)


def budget_seconds(text: str) -> float:
    """Seconds of a time budget; exits with a message for steps or tokens."""
    budget = Budget.parse(text)
    if budget.unit != "seconds":
        sys.exit(f"'{text}' is no time.")
    return budget.amount


def run_facts(out: Path) -> dict[str, Any]:
    """Facts of a finished run for a record: no corpus text and no path."""
    folder = RunFolder(out)
    return {name: read_json(getattr(folder, name)) for name in ("recipe", "environment", "decisions", "summary")}


# ---------------------------------------------------------------- the machine


def record(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Head of a record: benchmark, software and machine."""
    return {
        "benchmark": kind,
        "commit": commit(),
        "source": source_fingerprint(),
        "machine": machine(),
        "load_before": load(),
        "settings": settings,
    }


def finish(found: dict[str, Any], out: Path | None) -> None:
    """Add the load of the machine to a record and write it; can be called again."""
    found["load_after"] = load()
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, found)


def machine() -> dict[str, Any]:
    """Device, cores, memory, versions."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    import transformers

    found = {**to_dict(describe(device, time.time())), "transformers": transformers.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "processor": to_dict(describe(torch.device("cpu"), time.time()))["device"],
            "cuda": torch.version.cuda,
        }
        found["accelerator_gib"] = round(properties.total_memory / 2**30, 1)
    return found


def thread_settings() -> dict[str, Any]:
    """Number of threads and the related environment variables."""
    names = ("OMP_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "MALLOC_CONF", "GLIBC_TUNABLES", "LD_PRELOAD")
    return {"threads": torch.get_num_threads(), **{name: os.environ[name] for name in names if name in os.environ}}


class Watch:
    """Measure the load of other processes from now on."""

    def __init__(self) -> None:
        self.before, self._bystanders = load(), OtherProcesses()

    def facts(self, threads: int) -> dict[str, Any]:
        """Loads, cores used by others, and whether that invalidates the measurement.

        Args:
            threads: that the measured processes compute on, all together.
        """
        others, after = self._bystanders.cores(), load()
        loads = [self.before[0], after[0]]
        seen = MachineLoad(
            before=self.before, most=max(loads), mean=statistics.fmean(loads), after=after, others=others
        )
        void = bool(why_void(seen, cores=usable_cores(), threads=threads))
        return {"load_before": self.before, "load_after": after, "others": others, "void": void}


def adopt_orphans() -> None:
    """Become the parent of orphaned processes: ``own_seconds`` counts only children that were waited for."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def commit(checkout: Path = ROOT) -> str:
    """Commit of ``checkout``, marked if files differ from it; 'unknown' outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, check=True).stdout

    try:
        head, changed = git("rev-parse", "HEAD"), git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip() + (" with changes" if changed.strip() else "")


def source_fingerprint() -> str:
    """16 hex digits of the package's sources, to identify them without git."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted((ROOT / "src").rglob("*.py")):
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


# ---------------------------------------------------------------- statistics


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (n - 1; 0 for one value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first aligned left, the others right."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))])
        for line in lines
    )


def main() -> None:
    chosen = parser(__doc__).parse_args()
    found = record("machine", {})
    finish(found, chosen.out)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
