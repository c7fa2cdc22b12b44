"""The ranks of one run and what they agree on. One process is a world of size 1 and needs no backend."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
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
        dist.broadcast(shared, src=0)
        return tuple(shared.tolist())

    def share(self, value: Any) -> Any:
        """Return rank 0's value, any small object, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def any(self, flag: bool) -> bool:
        """Return whether any rank holds True."""
        if self.size == 1:
            return flag
        shared = torch.tensor(int(flag))
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return bool(shared.item())

    def sum(self, value: float) -> float:
        """Return the sum of all ranks' values."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(shared)
        return float(shared.item())

    def sum_gradients(self, parameters: list[torch.nn.Parameter], extra: torch.Tensor) -> torch.Tensor:
        """Add the gradients over all ranks in place, with ``extra`` (a small vector) in the same message.

        Returns:
            The sum of ``extra``.
        """
        if self.size == 1:
            return extra
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients] + [extra.to(gradients[0])])
        dist.all_reduce(flat)
        offset = 0
        for parameter in parameters:
            parameter.grad = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        return flat[offset:]


def start() -> World:
    """Join the world that torchrun describes in the environment, or be alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World()
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return World(rank=dist.get_rank(), size=size)


def stop(world: World) -> None:
    """Leave the world."""
    if world.size > 1:
        dist.destroy_process_group()
