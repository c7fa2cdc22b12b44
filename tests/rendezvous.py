"""Processes of a test that go on by themselves, or train together and meet at a port."""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from warm_python import start_python

from daybreak.training.clock import read_trace


def free_port() -> int:
    """A port below those that the system gives to outgoing connections: nobody takes it before the processes are up."""
    chance = random.Random()
    while True:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def torchrun(size: int) -> dict[str, str]:
    """Variables with which torchrun starts ``size`` processes on this machine. RANK is missing: it differs."""
    return {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def wait_for(met: Callable[[], Any], process: Any, patience: float = 120.0, log: Path | None = None) -> None:
    """Return once ``met()`` holds; the process must go on meanwhile. ``log`` is the file of what it says."""
    deadline = time.monotonic() + patience
    while not met():
        assert process.poll() is None, log.read_text() if log else process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_step(run: Path, step: int, process: Any, **how: Any) -> None:
    """Return once the trace of ``run`` has reached ``step``."""
    wait_for(lambda: len(read_trace(run / "trace.jsonl")) > step, process, **how)


def two_ranks(start: Callable[..., Any], *words: object, **more: str) -> list[Any]:
    """Both processes of a run of ``daybreak words``, as torchrun would start them; ``start`` is the fixture."""
    variables = torchrun(2) | more
    return [start(*words, **variables, RANK=rank) for rank in "01"]


def run_ranks(size: int, *command: object, **environment: str) -> None:
    """Run ``python command`` as the ranks of torchrun; a test checks what they wrote. A rank may end with status 7."""
    here = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, **torchrun(size), "PYTHONPATH": here, "CUDA_VISIBLE_DEVICES": "", **environment}
    words = list(map(str, command))
    processes = [start_python(words, {**variables, "RANK": str(rank)}) for rank in range(size)]
    told = [process.communicate(timeout=400)[1] for process in processes]
    for process, errors in zip(processes, told):
        assert process.returncode in (0, 7), errors


def end_rank() -> NoReturn:
    """End a process of ``run_ranks`` as the command line does: gloo's threads sometimes abort a usual end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
