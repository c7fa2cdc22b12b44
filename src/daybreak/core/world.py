"""The ranks of one run and what they agree on. One process is a world of size 1 and needs no backend.

A peer that ends closes its connections, and the others know at once. One that is cut off says nothing: what gives it
up is the time that a message may take, TIMEOUT, or DAYBREAK_PEER_TIMEOUT seconds from the environment. Either way
every message here raises PeerLost. Numbers and decisions travel by gloo between processors, also where gradients
travel by NCCL between GPUs: a GPU that waits inside NCCL cannot be interrupted, so whoever is about to wait for one
should exchange a message here first. Where that message came too early, NCCL's own watchdog ends the process after
the same time (TORCH_NCCL_ASYNC_ERROR_HANDLING=3, torch's default), and torchrun starts it again.
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

from daybreak.core.errors import PeerLost, UserError

TIMEOUT = timedelta(minutes=5)
"""A process that did not answer for so long is given up."""
TIMEOUT_VARIABLE = "DAYBREAK_PEER_TIMEOUT"
"""Environment variable: seconds in the place of TIMEOUT."""


@dataclass(frozen=True)
class World:
    """The ranks of a run. All ranks call the same methods in the same order.

    Raises:
        PeerLost: by every method, where another rank ended or is cut off. No method can be called after that.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def agree(self, *values: float) -> tuple[float, ...]:
        """Return rank 0's float64 values on every rank: the only way a clock or a decision may spread."""
        if self.size == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64)
        with peers():
            dist.broadcast(shared, src=0)
        return tuple(shared.tolist())

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value, any small object, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        with peers():
            # Named, for it would be the GPU where there is one.
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def spread(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """Return rank 0's tensors, on the CPU, on every rank: hosts need not share a disk.

        Args:
            tensors: on rank 0 what is spread; elsewhere ignored.
        """
        if self.size == 1:
            return tensors or {}
        if not self.is_first or tensors is None:
            tensors = {}
        kinds = self.broadcast({name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()})
        held = {}
        for name, (shape, dtype) in kinds.items():
            held[name] = tensors[name].cpu().contiguous() if self.is_first else torch.empty(shape, dtype=dtype)
            with peers():
                dist.broadcast(held[name], src=0)
        return held

    def any(self, flag: bool) -> bool:
        """Return whether any rank holds True."""
        if self.size == 1:
            return flag
        shared = torch.tensor(int(flag))
        with peers():
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return bool(shared.item())

    def sum(self, value: float) -> float:
        """Return the sum of all ranks' values."""
        return float(self.add(torch.tensor(value, dtype=torch.float64)))

    def add(self, vector: Tensor) -> Tensor:
        """Return the sum of a small tensor over all ranks, where it lies; ``vector`` itself is left alone."""
        if self.size == 1:
            return vector
        total = vector.clone()
        with peers():
            dist.all_reduce(total)
        return total


@contextmanager
def peers() -> Iterator[None]:
    """Turn what torch says of a lost peer into PeerLost. Only messages between ranks belong inside."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        # Nobody waits any longer for what the peer still owed: neither this process' end nor a GPU's queue.
        abort()
        how = "did not answer in time" if re.search("timed? ?out", str(error), re.IGNORECASE) else "ended"
        raise PeerLost(f"Another process of this run {how}.") from error


def timeout() -> timedelta:
    """How long a message may take.

    Raises:
        UserError: DAYBREAK_PEER_TIMEOUT is no number of seconds.
    """
    told = os.environ.get(TIMEOUT_VARIABLE)
    if told is None:
        return TIMEOUT
    try:
        found = timedelta(seconds=float(told))
    except (ValueError, OverflowError):
        found = timedelta(0)
    if found < timedelta(seconds=1):
        raise UserError(f"{TIMEOUT_VARIABLE} cannot be '{told}'.", "Give seconds, 1 or more, or leave it unset.")
    return found


def start() -> World:
    """Join the world that torchrun describes in the environment, or be alone.

    Raises:
        PeerLost: not all ranks came.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    patience = timeout()
    with peers():
        # Some take long to load: only once all are there does the time for a message count.
        store, rank, _ = next(dist.rendezvous("env://", timeout=max(TIMEOUT, patience)))
        store = met(store, rank, size, max(TIMEOUT, patience))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    return World(rank=rank, size=size)


def met(store: dist.Store, rank: int, size: int, patience: timedelta) -> dist.Store:
    """Wait until all ranks are there; return a part of ``store`` that nobody has written to.

    torchrun keeps one store over its restarts, and what a process of the last start wrote there (the address at which
    it listened) would be taken for its successor's. Restarts are counted by each host for itself, so their number
    cannot tell the starts apart: every process draws a name, rank 0 puts those that it finds on a list, a name of the
    last start perhaps among them, and renews the list until all who are on it have seen it.

    Raises:
        PeerLost: not all ranks came.
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
    """Leave the world, however the run ended. Nobody is waited for: what the ranks owed each other is behind them."""
    if world.size > 1 and dist.is_initialized():
        abort()
        dist.destroy_process_group()


def abort() -> None:
    """Give up all messages under way, on this rank."""
    if dist.is_initialized() and dist.group.WORLD is not None:
        dist.group.WORLD.abort()
