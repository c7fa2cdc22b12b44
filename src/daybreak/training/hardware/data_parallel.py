"""Data parallelism: one model on several ranks, whose gradients are summed during the backward pass.

DistributedDataParallel (Li et al., arXiv 2006.15704) with three differences. Gradients are summed, not averaged: the
step divides once, by the number of targets of all ranks. Their order in messages is fixed in advance: torch's default
is the order of a process' first backward pass, so a resumed run would send other messages, and sums over three or more
ranks round differently by position in a message. A rank that runs out of memory still takes part in all messages, so
that the other ranks receive this information instead of waiting.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.world import World, peers
from daybreak.training.objectives.finish import WithEmbeddings
from daybreak.training.objectives.objective import Objective


class DataParallel:
    """The model as one of several that sum their gradients; with one process, only the model.

    All ranks start with the weights of rank 0. Every parameter must take part in every loss.

    Raises:
        PeerLost: in every method but ``loss`` and ``take_wait``, if another rank ended or is cut off.
    """

    def __init__(self, model: Encoder, world: World):
        self._model = model
        self._world = world
        self._wait = 0.0
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._sums = BucketSums()
        self._shared: DistributedDataParallel | None = None
        self.rebuild()

    def rebuild(self) -> None:
        """Start again without gradients: on all ranks, after a step that one of them could not complete."""
        if self._world.size == 1:
            return
        self._sums, self._shared = BucketSums(), None
        gc.collect()  # the old engine keeps hooks on the parameters until it is collected
        with peers():
            self._shared = distributed_engine(self._model, self._sums)
            for _ in range(2):  # torch rebuilds its buckets once, after the first backward pass
                self._sums.start()
                self._shared(None).backward()
        self._model.zero_grad(set_to_none=True)

    @contextmanager
    def microbatch(self, last: bool) -> Iterator[None]:
        """Wrap the forward and backward pass of one microbatch; the ``last`` one of a step sums the gradients over
        ranks.

        All gradients of the step are then sums over all ranks. A rank without a successful backward pass in the last
        one has taken part in all messages too, with meaningless numbers. The ranks must then agree (``World.any``) to
        drop the step and call ``rebuild``.
        """
        if self._shared is None:
            yield
            return
        if not last:
            with self._shared.no_sync():
                yield
            return
        self._sums.start()
        try:
            yield
        except RuntimeError:
            if not self._sums.failed:
                raise
            with peers():
                raise
        with peers():
            self._sums.complete()
        if (sent := self._sums.sent_on_device) is None:
            self._wait += time.monotonic() - self._sums.last_sent
        else:
            self._waits.append((sent, recorded_event()))

    def loss(self, objective: Objective | WithEmbeddings, batch: Batch, **arguments: Any) -> LossSum:
        """Return ``objective.loss`` of the model with these arguments; call it inside ``microbatch``."""
        if self._shared is None:
            return objective.loss(self._model, batch, **arguments)
        return self._shared(objective, batch, **arguments)

    def take_wait(self) -> float:
        """Return the seconds of waiting for messages since the last call, with nothing left to compute.

        This includes the wait for the slowest rank. On a GPU its queue waits and not this process: events in the queue
        measure it. Call it after the queue has been read to its end.
        """
        waited, self._wait = self._wait, 0.0
        waited += sum(sent.elapsed_time(done) for sent, done in self._waits) / 1000.0  # events count milliseconds
        self._waits.clear()
        return waited


class BucketSums:
    """Sums in progress in one step; torch passes each bucket of gradients as soon as it is full."""

    def __init__(self) -> None:
        self.failed = False
        """Whether a message failed; other errors in a backward pass do not mean a lost peer."""
        self.last_sent = 0.0
        self.sent_on_device: torch.cuda.Event | None = None
        """Event in the queue of a GPU after all computation before the last message; None on a CPU."""
        self.sent = 0
        self._buckets: dict[int, Tensor] = {}
        self._works: list[dist.Work] = []

    def start(self) -> None:
        """Start a step."""
        self.sent = 0
        self._works.clear()

    def add(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start the sum of one bucket over all ranks."""
        self._buckets[bucket.index()] = bucket.buffer()
        return self._send(bucket.buffer()).get_future().then(self._summed)

    def complete(self) -> None:
        """Take part in the missing sums, and wait for all sums that a backward pass left unfinished."""
        if self.sent == len(self._buckets):
            return
        for index in range(self.sent, len(self._buckets)):
            self._send(self._buckets[index])
        for work in self._works:
            work.wait()

    def _send(self, buffer: Tensor) -> dist.Work:
        self.last_sent = time.monotonic()
        self.sent_on_device = recorded_event() if buffer.device.type == "cuda" else None
        try:
            work = dist.all_reduce(buffer, async_op=True)
        except RuntimeError:
            self.failed = True
            raise
        self.sent += 1
        self._works.append(work)
        return work

    def _summed(self, future: Future[list[Tensor]]) -> Tensor:
        try:
            return future.value()[0]
        except RuntimeError:
            self.failed = True
            raise


def recorded_event() -> torch.cuda.Event:
    """An event at the end of the GPU's queue, which records when the queue reaches it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Losses(nn.Module):
    """The module that DistributedDataParallel wraps: batches in, a loss out."""

    def __init__(self, model: Encoder):
        super().__init__()
        self.model = model

    def forward(self, objective: Objective | WithEmbeddings | None, *arguments: Any, **more: Any) -> Any:
        """The loss; without an objective a zero in which every parameter takes part, in the order of the model."""
        if objective is None:
            return 0.0 * torch.stack([parameter.flatten()[0] for parameter in self.model.parameters()]).sum()
        return objective.loss(self.model, *arguments, **more)


def distributed_engine(model: Encoder, sums: BucketSums) -> DistributedDataParallel:
    """DistributedDataParallel with ``sums`` instead of its own average."""
    engine = DistributedDataParallel(Losses(model), gradient_as_bucket_view=True)
    # The hook must not hold more than the sums: otherwise the engine would keep itself alive.
    engine.register_comm_hook(None, lambda _, bucket: sums.add(bucket))
    return engine
