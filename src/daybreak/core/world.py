"""World: the ranks of one run and their messages. One process is a world of size 1 and needs no backend.

A peer that ends closes its connections, so the others notice at once. A peer that is cut off is detected by the timeout
of a message, TIMEOUT, or DAYBREAK_PEER_TIMEOUT seconds from the environment. In both cases every message here raises
PeerLost. Numbers and decisions are sent by gloo between CPUs, even if gradients are sent by NCCL between GPUs.

NCCL calls cannot be interrupted. Exchange a gloo message first, so that a lost peer is detected before the process
blocks in NCCL. If a peer is lost after that message, NCCL's watchdog ends the process after the same timeout
(TORCH_NCCL_ASYNC_ERROR_HANDLING=3, torch's default), and torchrun starts it again.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from daybreak.core.errors import PeerLost, UserError, reason

TIMEOUT = timedelta(minutes=5)
"""Time after which a process that does not answer counts as lost."""
TIMEOUT_VARIABLE = "DAYBREAK_PEER_TIMEOUT"
"""Environment variable with seconds that replace TIMEOUT."""


@dataclass(frozen=True)
class World:
    """The ranks of a run. All ranks call the same methods in the same order.

    Raises:
        PeerLost: by every method, if another rank ended or is cut off. No method can be called after that.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value, any small object, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        with peers():
            # Explicit, because the default is the GPU if there is one.
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def broadcast_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """Return rank 0's tensors, on the CPU, on every rank: hosts need no shared disk.

        Args:
            tensors: the tensors to send on rank 0; ignored on other ranks.
        """
        if self.size == 1:
            return tensors or {}
        if not self.is_first or tensors is None:
            tensors = {}
        layouts = self.broadcast({name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})
        received = {}
        for name, (shape, dtype) in layouts.items():
            received[name] = tensors[name].cpu().contiguous() if self.is_first else torch.empty(shape, dtype=dtype)
            with peers():
                dist.broadcast(received[name], src=0)
        return received

    def any(self, flag: bool) -> bool:
        """Return whether the flag is True on any rank."""
        if self.size == 1:
            return flag
        shared = torch.tensor(int(flag))
        with peers():
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return bool(shared.item())

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.any(False)

    def sum(self, value: float) -> float:
        """Return the sum of all ranks' values."""
        return float(self.add(torch.tensor(value, dtype=torch.float64)))

    def add(self, vector: Tensor) -> Tensor:
        """Return the sum of a small tensor over all ranks, with its dtype and device; ``vector`` does not change."""
        if self.size == 1:
            return vector
        total = vector.clone()
        with peers():
            dist.all_reduce(total)
        return total


def is_restart() -> bool:
    """Whether torchrun started this process again after a crash, with the same command (``--max-restarts``)."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


@contextmanager
def peers() -> Iterator[None]:
    """Turn torch's errors about a lost peer into PeerLost. Use it only around messages between ranks."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # Abort pending messages, so that neither the end of this process nor a GPU's queue waits for them.
        abort()
        how = "did not answer in time" if re.search("timed? ?out", str(error), re.IGNORECASE) else "ended"
        raise PeerLost(f"Another process of this run {how}{_fault_of_the_devices(error)}.") from error


def _fault_of_the_devices(error: RuntimeError) -> str:
    """What NCCL or CUDA says of a fault of its own, which may come without a lost peer; empty for other errors."""
    if not re.search("NCCL|CUDA", str(error)):
        return ""
    cause = str(error).partition("Last error:")[2].strip().splitlines()  # NCCL's own words, below those of torch
    return f", or the GPUs cannot exchange data: {cause[0].rstrip('.') if cause else reason(error)}"


def timeout() -> timedelta:
    """Time limit of a message."""
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return TIMEOUT
    try:
        limit = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        limit = timedelta(0)
    if limit < timedelta(seconds=1):
        raise UserError(f"{TIMEOUT_VARIABLE} cannot be '{text}'.", "Give seconds, 1 or more, or leave it unset.")
    return limit


TORCHRUN = ("RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables beside WORLD_SIZE that torchrun sets."""


def start() -> World:
    """Join the world that torchrun describes in the environment, or return a world of one process.

    Raises:
        PeerLost: not all ranks joined.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1":
        return World()
    if missing := [name for name in TORCHRUN if name not in os.environ]:
        raise UserError(
            f"WORLD_SIZE is {size}, but {missing[0]} is not set.",
            "Start the processes with torchrun, or unset WORLD_SIZE for one process.",
        )
    if not size.isdecimal() or not int(size):
        raise UserError(f"WORLD_SIZE cannot be '{size}'.", "Start the processes with torchrun, or unset it.")
    patience = timeout()
    with peers():
        # Ranks load at different speeds: the time limit of messages applies only after all have joined.
        store, rank, _ = next(dist.rendezvous("env://", timeout=max(TIMEOUT, patience)))
        store = wait_for_ranks(store, rank, int(size), max(TIMEOUT, patience))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=int(size), timeout=patience)
    return World(rank=rank, size=int(size))


def wait_for_ranks(store: dist.Store, rank: int, size: int, patience: timedelta) -> dist.Store:
    """Wait until all ranks have joined; return a part of ``store`` that no process has written to.

    torchrun keeps one store over its restarts, so a value of an earlier process (the address at which it listened)
    would be taken for that of its successor. Each host counts restarts separately, so this number cannot tell the
    starts apart. Instead every process draws a name. Rank 0 lists the names that it finds, which may include old ones,
    and updates the list until all processes on it have confirmed it.
    """
    name, deadline = uuid.uuid4().hex, time.monotonic() + patience.total_seconds()
    store.set(f"daybreak {rank}", name)
    while time.monotonic() < deadline:
        if rank == 0:
            names = [store.get(f"daybreak {other}").decode() for other in range(size)]
            store.set("daybreak ranks", " ".join(names))
        ranks = store.get("daybreak ranks").decode()
        if name in ranks.split():
            store.set(f"{ranks}: {rank}", "seen")
            if store.check([f"{ranks}: {other}" for other in range(size)]):
                return dist.PrefixStore(ranks, store)
        time.sleep(0.02)
    raise PeerLost("Another process of this run did not answer in time.")


def stop(world: World) -> None:
    """Leave the world, however the run ended. This waits for no other rank."""
    if world.size > 1 and dist.is_initialized():
        abort()
        dist.destroy_process_group()


def abort() -> None:
    """Abort all pending messages of this rank."""
    if dist.is_initialized() and dist.group.WORLD is not None:
        dist.group.WORLD.abort()
