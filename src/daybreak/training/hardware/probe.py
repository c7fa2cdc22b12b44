"""Device, precision and machine: what is available and which arithmetic is fast, by measurement."""

from __future__ import annotations

import functools
import os
import platform
import time

import torch

from daybreak import __version__
from daybreak.core.errors import UserError
from daybreak.core.process import gpus_are_hidden, nvidia_driver, processor_name, usable_cores
from daybreak.core.terminal import say
from daybreak.schemas.run import Environment

_say_once = functools.cache(say)
SIZE = {"cpu": 768, "cuda": 4096}
"""Side of the square matrix product that is timed: 15 ms on a slow CPU, 0.2 ms on a fast GPU."""
WORTH_TIMING = 0.5
"""Rate of half precision, as a fraction of that of float32, from which whole steps are timed in it on a CPU."""


def choose_device() -> torch.device:
    """Return the GPU if there is a usable one, else the CPU; print a note about an unusual choice once.

    Torch names AMD cards cuda as well. A run does not fall back to the CPU silently. The arithmetic of the process is
    set as well, because every command that computes chooses its device here.
    """
    # NVIDIA's containers set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, with which float32 products keep 10 bits.
    torch.set_float32_matmul_precision("highest")
    if torch.cuda.is_available():
        if os.environ.get("NVIDIA_TF32_OVERRIDE") == "1":
            raise UserError(
                "NVIDIA_TF32_OVERRIDE=1 makes this GPU compute float32 with 10 bits, and torch cannot undo it.",
                "Run: unset NVIDIA_TF32_OVERRIDE",
            )
        # torch selects cuDNN attention on some GPUs; its gradients are not deterministic.
        torch.backends.cuda.enable_cudnn_sdp(False)
        if torch.version.hip:
            _say_once(
                f"This torch runs on ROCm ({torch.version.hip}): Daybreak should run on AMD cards but was never tested "
                "on one."
            )
        rank, cards = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if rank >= cards:
            raise UserError(
                f"Process {rank + 1} of this host has no GPU of its own: the host has {cards}.",
                f"Start --nproc-per-node {cards}, or set CUDA_VISIBLE_DEVICES= to train on the CPU.",
            )
        return torch.device("cuda", rank)
    driver = nvidia_driver()
    if driver and not gpus_are_hidden():
        raise UserError(
            f"This machine has an NVIDIA card ({driver}), but torch {torch.__version__} cannot use it.",
            "Install the torch build that fits the driver, or set CUDA_VISIBLE_DEVICES= to train on the CPU.",
        )
    if torch.backends.mps.is_available():
        _say_once("Daybreak does not use Apple's GPU: it trains on the CPU of this machine.")
    return torch.device("cpu")


def precisions(device: torch.device) -> tuple[str, ...]:
    """Return the precisions in which a step should be timed.

    A CPU without bfloat16 instructions is 3 to 50 times slower in bfloat16, so it is not timed there. Another process
    may disturb the measured rates, so half of the rate is enough to be timed in whole steps. On a GPU half precision
    is so much faster that timing and compiling float32 would waste time.
    """
    half = half_precision(device)
    if device.type == "cpu":
        rates = matmul_rates(device)
        return ("float32", half) if rates[half] > WORTH_TIMING * rates["float32"] else ("float32",)
    return (half,)


def faster_precision(device: torch.device) -> str:
    """Return the precision of the faster matrix products, for work that is not timed in whole steps."""
    half = half_precision(device)
    if device.type == "cpu":
        rates = matmul_rates(device)
        return half if rates[half] > rates["float32"] else "float32"
    return half


def half_precision(device: torch.device) -> str:
    """Return bfloat16, or float16 on cards that only emulate bfloat16 (older than Ampere)."""
    native = device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if native else "float16"


@functools.cache
def matmul_rates(device: torch.device) -> dict[str, float]:
    """Return GFLOP/s of a square matrix product in float32 and in the device's half precision, the best of five.

    Measured once per process: half precision takes seconds on a CPU without it.
    """
    size = SIZE[device.type]
    dtypes = (torch.float32, getattr(torch, half_precision(device)))
    # Fine-tuning calls this after torch.manual_seed; a generator of its own leaves the global one alone.
    chance = torch.Generator().manual_seed(0) if device.type == "cpu" else None
    factors = [torch.randn(2, size, size, device=device, generator=chance).to(dtype) for dtype in dtypes]
    best = [float("inf")] * len(dtypes)
    for _ in range(5):  # in turns: what disturbs a moment disturbs both
        for i, (left, right) in enumerate(factors):
            synchronize(device)
            started = time.perf_counter()
            torch.mm(left, right)
            synchronize(device)
            best[i] = min(best[i], time.perf_counter() - started)
    return {str(dtype).removeprefix("torch."): round(2 * size**3 / b / 1e9, 1) for dtype, b in zip(dtypes, best)}


def describe(device: torch.device, started: float) -> Environment:
    """Return the environment that determines a run's speed; ``started`` is the Unix time of its first start."""
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


def synchronize(device: torch.device) -> None:
    """Wait until the device has computed its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
