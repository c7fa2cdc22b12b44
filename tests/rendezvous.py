"""A port at which the processes of a test meet."""

from __future__ import annotations

import random
import socket


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
