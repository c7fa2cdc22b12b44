"""Processes of a test that train together, and the port at which they meet."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys


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


def run_two_ranks(*command: str) -> None:
    """Run ``python command`` as the ranks 0 and 1 of torchrun; a test checks what they wrote."""
    torchrun = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = (sys.executable, *command)
    processes = [subprocess.Popen(command, env={**os.environ, **torchrun, "RANK": rank}) for rank in "01"]
    for process in processes:
        process.wait(timeout=120)
