"""What this machine is and which arithmetic is fast on it: measured, not assumed."""

from __future__ import annotations

import functools
import os
import platform
import time
from pathlib import Path

import torch

from daybreak import __version__
from daybreak.core.errors import UserError
from daybreak.core.process import processor_name, usable_cores
from daybreak.core.terminal import say
from daybreak.schemas.run import Environment

SIZE = {"cpu": 768, "cuda": 4096}
"""Side of the square product that is timed: 15 ms on a slow CPU, 0.2 ms on a fast card."""


def choose_device() -> torch.device:
    """Return the GPU if there is a usable one, else the CPU, and say once what is unusual about it.

    AMD cards come under the name of cuda, as torch calls them.

    Raises:
        UserError: an NVIDIA card is present but this torch cannot use it: never a silent night on the CPU.
    """
    if torch.cuda.is_available():
        if torch.version.hip:
            _say_once(
                f"This torch runs on ROCm ({torch.version.hip}): Daybreak should run on AMD cards but was never tested "
                "on one."
            )
        rank, cards = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if rank >= cards:
            raise UserError(
                f"Process {rank + 1} of this host has no GPU of its own: there are {cards}.",
                f"Start --nproc-per-node {cards}, or set CUDA_VISIBLE_DEVICES= to train on the CPU.",
            )
        return torch.device("cuda", rank)
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        found = driver.read_text(encoding="utf-8").splitlines()[0]
        raise UserError(
            f"An NVIDIA card is here ({found}) but torch {torch.__version__} cannot use it.",
            "Install the torch build that fits the driver, or set CUDA_VISIBLE_DEVICES= to train on the CPU.",
        )
    if torch.backends.mps.is_available():
        _say_once("Daybreak does not use Apple's GPU: it trains on the CPU of this machine.")
    return torch.device("cpu")


@functools.cache
def _say_once(line: str) -> None:
    say(line)


def precisions(device: torch.device) -> tuple[str, ...]:
    """Return the precisions that are worth timing a step in.

    A CPU without instructions for bfloat16 is 3 to 50 times slower in it: there it is not tried. On a GPU half
    precision is faster by so much that to time float32 as well, and to compile for it, would be wasted.
    """
    half = half_precision(device)
    if device.type == "cpu":
        rates = matmul_rates(device)
        return ("float32", half) if rates[half] > rates["float32"] else ("float32",)
    return (half,)


def half_precision(device: torch.device) -> str:
    """Return bfloat16, or float16 on cards that only pretend to have bfloat16: those before Ampere."""
    native = device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if native else "float16"


@functools.cache
def matmul_rates(device: torch.device) -> dict[str, float]:
    """Return GFLOP/s of a square product in float32 and in the device's half precision, the best of five.

    Measured once a process: half precision on a CPU that has none takes seconds.
    """
    size = SIZE[device.type]
    rates = {}
    for dtype in (torch.float32, getattr(torch, half_precision(device))):
        left, right = torch.randn(2, size, size, device=device).to(dtype)
        best = float("inf")
        for _ in range(5):
            _synchronise(device)
            begun = time.perf_counter()
            torch.mm(left, right)
            _synchronise(device)
            best = min(best, time.perf_counter() - begun)
        rates[str(dtype).removeprefix("torch.")] = round(2 * size**3 / best / 1e9, 1)
    return rates


def describe(device: torch.device, started: float) -> Environment:
    """Return what a reader needs to evaluate a run's speed; ``started`` is the Unix time of its first start."""
    return Environment(
        daybreak=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        cores=usable_cores(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        started=started,
    )


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
