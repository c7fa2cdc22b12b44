"""Command ``doctor``: check this machine and installation, with a remedy for each problem."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from daybreak import __version__
from daybreak.commands.options import parse
from daybreak.core.extras import EXTRAS, REQUIRED, install_command
from daybreak.core.locks import who_holds
from daybreak.core.process import gpus_are_hidden, machine_memory, nvidia_driver, processor_name, usable_cores
from daybreak.core.terminal import hanging, say, working

OK, NOTE, FAULT = "ok", "note", "fault"
OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY, LITTLE_DISK = 3e9, 5e9
"""Bytes below which a default run may fail."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    folder: Path = Path(".")
    """Folder for runs."""
    torch: bool = False
    """Also import torch, which takes seconds, and multiply matrices on the device that a run would use."""


def main(arguments: Sequence[str]) -> None:
    options = parse(DoctorOptions, "doctor", arguments)
    if not doctor(options.folder, torch=options.torch):
        raise SystemExit(2)


@dataclass(frozen=True)
class CheckResult:
    state: str
    """OK; NOTE: slower, or a feature is missing; FAULT: Daybreak cannot run."""
    name: str
    sentence: str
    remedy: str = ""
    command: str = ""
    """What the remedy tells to run, to be copied."""


def doctor(folder: Path | str = Path(), *, torch: bool = False) -> bool:
    """Print the result of each check; return whether Daybreak can run here, with runs in ``folder``."""
    found = [*_software(), *_machine(), *_gpu(), *_disk(Path(folder)), *_extras()]
    if torch:
        with working("Importing torch"):
            found.append(_torch())
    else:
        found.append(CheckResult(OK, "arithmetic", "Not tested.", "Add --torch to import torch and multiply matrices."))
    width = max(len(each.name) for each in found)
    for each in found:
        words = " ".join(filter(None, (each.sentence, each.remedy)))
        say(hanging(f"{each.state:5}  {each.name:{width}}  ", words), each.command)
    faults = sum(each.state == FAULT for each in found)
    say()
    say(f"{faults} faults: fix them first." if faults > 1 else "1 fault: fix it first." if faults else "Ready.")
    return not faults


def _noted(wrong: bool, name: str, sentence: str, remedy: str) -> CheckResult:
    return CheckResult(NOTE, name, sentence, remedy) if wrong else CheckResult(OK, name, sentence)


def _software() -> Iterator[CheckResult]:
    python = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        yield CheckResult(FAULT, "python", f"Python {python} is too old.", "Install Python 3.11 or newer.")
    else:
        yield CheckResult(OK, "python", f"Python {python} at {sys.executable}.")
    yield CheckResult(OK, "daybreak", f"Daybreak {__version__} at {Path(__file__).parents[1]}.")
    for requirement in REQUIRED:
        name, problem = _installed(requirement)
        if problem:
            yield CheckResult(FAULT, name, f"{problem}.", f"Run: pip install {requirement!r}.")
    torch = _version("torch")
    if torch:
        yield CheckResult(OK, "torch", f"torch {torch}, transformers {_version('transformers') or 'missing'}.")


def _installed(requirement: str) -> tuple[str, str]:
    """Return the package of a requirement and its problem; empty if a matching version is installed."""
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    version = _version(wanted.name)
    if version is None:
        return wanted.name, f"{wanted.name} is not installed"
    if not wanted.specifier.contains(version, prereleases=True):
        return wanted.name, f"{wanted.name} {version} is installed, and Daybreak needs {wanted.specifier}"
    return wanted.name, ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _machine() -> Iterator[CheckResult]:
    cores, total, free = usable_cores(), *machine_memory()
    noun = "cores" if cores > 1 else "core"
    yield CheckResult(OK, "processor", f"{processor_name()}, {cores} usable {noun}.")
    message = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free."
    yield _noted(free < LITTLE_MEMORY, "memory", message, "Close other programs, or train the recipe tiny.")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores:
        yield CheckResult(
            NOTE,
            "load",
            f"{load:.1f} processes share {cores} {noun}.",
            "Stop other programs: they slow runs down.",
        )


def _gpu() -> Iterator[CheckResult]:
    cards, driver = _cards()
    built_for_cpu = "+cpu" in (_version("torch") or "")
    if gpus_are_hidden() and (cards or nvidia_driver()):
        value = os.environ["CUDA_VISIBLE_DEVICES"] or "empty"
        message = f"CUDA_VISIBLE_DEVICES is {value}, so runs use the CPU."
        yield CheckResult(NOTE, "gpu", message, "Unset it to use a GPU.")
    elif not cards and not nvidia_driver():
        yield CheckResult(OK, "gpu", "No NVIDIA GPU: runs use the CPU.")
    elif built_for_cpu:
        yield CheckResult(
            FAULT,
            "gpu",
            f"{', '.join(cards) or 'An NVIDIA GPU'} is installed, but torch {_version('torch')} is built for CPUs.",
            "Install torch for CUDA (https://pytorch.org/get-started), or set CUDA_VISIBLE_DEVICES= to use the CPU.",
        )
    elif not cards:
        yield CheckResult(
            NOTE, "gpu", "There is an NVIDIA driver, but no GPU responds.", "Run nvidia-smi; a reboot may help."
        )
    else:
        yield CheckResult(OK, "gpu", f"{', '.join(cards)}, driver {driver}.")


def _cards() -> tuple[list[str], str]:
    """Return the names of the NVIDIA GPUs with their memory, and the driver version; empty without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the base class of errors differs between versions, and the library may be missing
        return [], ""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        memory = [(card, pynvml.nvmlDeviceGetMemoryInfo(card)) for card in handles]
        cards = [
            f"{pynvml.nvmlDeviceGetName(card)} ({found.free / 2**30:.0f} of {found.total / 2**30:.0f} GiB free)"
            for card, found in memory
        ]
        return cards, str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return [], ""
    finally:
        pynvml.nvmlShutdown()


def _disk(folder: Path) -> Iterator[CheckResult]:
    try:
        place = folder.resolve()
        while not place.exists():  # a run makes its folder
            place = place.parent
        free = shutil.disk_usage(place).free
        with tempfile.NamedTemporaryFile(dir=place, prefix=".daybreak-"):
            pass
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        yield CheckResult(FAULT, "disk", f"'{folder}' cannot be written: {why}.", "Choose another folder for runs.")
        return
    message = f"{free / 1e9:.1f} GB are free in '{place}'."
    yield _noted(free < LITTLE_DISK, "disk", message, "Free disk space, or choose a folder on another disk for runs.")
    if who_holds(place) is None:
        yield CheckResult(
            NOTE, "locks", f"The file system of '{place}' has no locks.", "Start only one command per run folder."
        )


def _extras() -> Iterator[CheckResult]:
    for extra, (purpose, requirements) in EXTRAS.items():
        problems = {name: problem for name, problem in map(_installed, requirements) if problem}
        if not problems:
            yield CheckResult(OK, f"extra {extra}", f"Installed: {purpose}.")
        else:
            yield CheckResult(
                NOTE,
                f"extra {extra}",
                f"{_listed(problems)}; the extra {extra} {purpose}.",
                "Install what is missing:",
                install_command(extra, *problems),
            )


def _listed(problems: dict[str, str]) -> str:
    """Join the problems of packages; the missing ones in one clause."""
    missing = [name for name, problem in problems.items() if problem.endswith("is not installed")]
    others = [problem for name, problem in problems.items() if name not in missing]
    return "; ".join([*others, *([f"{', '.join(missing)} not installed"] if missing else [])])


def _torch() -> CheckResult:
    """Import torch and multiply matrices on the device that a run would use."""
    try:
        from daybreak.training.hardware.probe import choose_device, matmul_rates

        device = choose_device()
        rates = ", ".join(f"{rate:,.0f} GFLOP/s in {name}" for name, rate in matmul_rates(device).items())
    except Exception as error:  # a broken installation raises anything
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return CheckResult(
            FAULT, "arithmetic", f"torch cannot compute here: {line}", "Install the torch build that fits this machine."
        )
    return CheckResult(OK, "arithmetic", f"torch multiplies matrices on {device.type}: {rates}.")
