"""One model on several ranks, whose gradients are summed while they are computed.

DistributedDataParallel (Li et al., arXiv 2006.15704) with three habits of our own. Gradients are summed, not averaged:
the step divides once, by the true number of targets of all ranks. They are put into messages in an order that is fixed
beforehand: left alone, torch takes the order of a process' first backward pass, so that a resumed run would send other
messages than the run before it, and three or more ranks round by a number's place in a message. And a rank that has no
memory for its share still takes part in all messages, so that the others learn of it instead of waiting for it.
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
    """The model as one of several that share their gradients; with one process, just the model.

    Weights are those of rank 0 afterwards. Every parameter must have a part in every loss.

    Raises:
        PeerLost: here and in every method but ``loss`` and ``take_wait``, where another rank ended or is cut off.
    """

    def __init__(self, model: Encoder, world: World):
        self._model = model
        self._world = world
        self._wait = 0.0
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._messages = Messages()
        self._shared: DistributedDataParallel | None = None
        self.renew()

    def renew(self) -> None:
        """Begin afresh, without gradients: on all ranks, after a step that any of them could not finish."""
        if self._world.size == 1:
            return
        self._messages, self._shared = Messages(), None
        gc.collect()  # the old one listens to the parameters for as long as it is there
        with peers():
            self._shared = shared(self._model, self._messages)
            for _ in range(2):  # the messages are laid out anew after the first backward pass, then never again
                self._messages.begin()
                self._shared(None).backward()
        self._model.zero_grad(set_to_none=True)

    @contextmanager
    def sharing(self, last: bool) -> Iterator[None]:
        """Hold one microbatch, forward and backward: gradients of the ``last`` one of a step are shared.

        All gradients of the step are then sums over all ranks. Whoever leaves the last one without a backward pass, or
        with one that failed, has taken part in all messages too, with numbers that mean nothing: the ranks must then
        agree (``World.any``) to drop the step and ``renew``.
        """
        if self._shared is None:
            yield
            return
        if not last:
            with self._shared.no_sync():
                yield
            return
        self._messages.begin()
        try:
            yield
        except RuntimeError:
            if not self._messages.failed:
                raise
            with peers():
                raise
        with peers():
            self._messages.complete()
        if (sent := self._messages.sent_on_device) is None:
            self._wait += time.monotonic() - self._messages.last_sent
        else:
            self._waits.append((sent, recorded_event()))

    def loss(
        self,
        objective: Objective | WithEmbeddings,
        batch: Batch,
        *,
        seed: int,
        position: int,
        progress: float,
        per_row: float = 1.0,
    ) -> LossSum:
        """Return ``objective.loss`` of the model; inside ``sharing``."""
        arguments: dict[str, Any] = {"seed": seed, "position": position, "progress": progress, "per_row": per_row}
        if self._shared is None:
            return objective.loss(self._model, batch, **arguments)
        return self._shared(objective, batch, **arguments)

    def take_wait(self) -> float:
        """Return the seconds spent since last asked in waiting for messages, with nothing left to compute.

        The slowest rank is waited for as well. On a GPU messages are waited for by its queue, not by this process:
        events in the queue time them. Call it once the queue has been read to its end.
        """
        waited, self._wait = self._wait, 0.0
        waited += sum(sent.elapsed_time(done) for sent, done in self._waits) / 1000.0  # events count milliseconds
        self._waits.clear()
        return waited


class Messages:
    """The sums under way in one step: torch hands over each bucket of gradients as soon as it is full."""

    def __init__(self) -> None:
        self.failed = False
        """Whether a message did; what else fails in a backward pass is no lost peer."""
        self.last_sent = 0.0
        self.sent_on_device: torch.cuda.Event | None = None
        """In the queue of a GPU, behind all that was computed before the last message; None on a CPU."""
        self.sent = 0
        self._buckets: dict[int, Tensor] = {}
        self._works: list[dist.Work] = []

    def begin(self) -> None:
        """Begin a step."""
        self.sent = 0
        self._works.clear()

    def add(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Begin the sum of one bucket over all ranks."""
        self._buckets[bucket.index()] = bucket.buffer()
        return self._send(bucket.buffer()).get_future().then(self._summed)

    def complete(self) -> None:
        """Take part in the sums that are still owed, and wait for all that a backward pass left behind."""
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
    """An event at the end of the GPU's queue, which knows when the queue has come to it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Losses(nn.Module):
    """What the engine sees as the model: batches in, a loss out."""

    def __init__(self, model: Encoder):
        super().__init__()
        self.model = model

    def forward(self, objective: Objective | WithEmbeddings | None, *arguments: Any, **more: Any) -> Any:
        """The loss; without an objective a zero in which every parameter has a part, in the order of the model."""
        if objective is None:
            return 0.0 * torch.stack([parameter.flatten()[0] for parameter in self.model.parameters()]).sum()
        return objective.loss(self.model, *arguments, **more)


def shared(model: Encoder, messages: Messages) -> DistributedDataParallel:
    """The engine, with ``messages`` in place of its own average."""
    engine = DistributedDataParallel(Losses(model), gradient_as_bucket_view=True)
    # No more than the messages may be held here: torch's engine would keep itself alive.
    engine.register_comm_hook(None, lambda _, bucket: messages.add(bucket))
    return engine
