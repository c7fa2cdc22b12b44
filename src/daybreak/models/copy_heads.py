"""Initial weights with which a model finds copies of the text around a masked token, instead of learning it.

Small models learn late to attend from a token to the place where its neighbors occur again: ``tiny`` after some ten
million tokens, in runs that train on sequences of views. Comparing two segments begins with this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daybreak.core.encoder import Encoder

SHARED = 0.7
"""Length of the direction that all embeddings share, in units of their mean length."""
FAST, SLOW = 0.04, 1 / 128
"""Angles per position: channels that turn faster than FAST tell neighbors apart, and those that turn slower than SLOW
hardly change over a sequence."""
SHARPNESS, MATCH = 60.0, 2.0
"""Attention score of a neighbor, and scale of the score of a position with the same neighbors."""
PASSED = 2.0
"""Scale of what the heads write, in units of what they read."""
QUIET = 0.3
"""Factor of the random queries and keys of these heads."""


def can_plant(channels: int, bases: Sequence[float]) -> bool:
    """Whether heads of so many channels can hold the circuit: the second layer needs rotary pairs that turn slowly."""
    return bool((_angles(channels, bases[1]) <= SLOW).any())


@torch.no_grad()
def plant_copy_heads(model: Encoder, bases: Sequence[float]) -> None:
    """Write an induction circuit (Olsson et al. 2022, arXiv 2209.11895) into the weights of a new model.

    Two heads of the first layer attend to the previous and to the next position and write its token into the stream.
    Two heads of the second layer attend to the positions with the same neighbors and pass on their tokens, so that a
    masked token attends to its copy. The heads of the first layer need a direction that all embeddings share; it
    changes all logits of the tied decoder by the same number.

    Args:
        model: has at least two layers, and two heads in each, for which ``can_plant`` is true.
        bases: bases of the rotary positions of the first two layers.
    """
    network: Any = model
    first, second = (block.attention for block in network.blocks[:2])
    size, channels = model.hidden_size, first.channels
    angles, slow_angles = (_angles(channels, base) for base in bases)
    fast = torch.nonzero(angles >= FAST).flatten()
    slow = torch.nonzero(slow_angles <= SLOW).flatten()

    def orthogonal(rows: int, columns: int) -> Tensor:
        return nn.init.orthogonal_(torch.empty(rows, columns))

    shared = torch.randn(size)
    shared = F.normalize(shared - shared.mean(), dim=0)
    table = network.embedding.weight
    table += SHARED * table.square().sum(dim=1).mean().sqrt() * shared
    along = math.sqrt(size) * SHARED / math.sqrt(1 + SHARED**2)  # of a normalized embedding
    query, key, value = first.qkv.weight.chunk(3)
    amplitude = math.sqrt(SHARPNESS / len(fast) * math.sqrt(channels))
    for head, offset in enumerate((-1, 1)):
        rows = slice(head * channels, (head + 1) * channels)
        constant_query, constant_key = torch.zeros(channels), torch.zeros(channels)
        constant_query[fast] = amplitude
        constant_key[fast] = amplitude * torch.cos(offset * angles[fast])
        constant_key[fast + channels // 2] = -amplitude * torch.sin(offset * angles[fast])
        query[rows] = QUIET * query[rows] + torch.outer(constant_query, shared) / along
        key[rows] = QUIET * key[rows] + torch.outer(constant_key, shared) / along
        value[rows], first.out.weight[:, rows] = orthogonal(channels, size), PASSED * orthogonal(size, channels)
    query, key, value = second.qkv.weight.chunk(3)
    passed = orthogonal(2 * channels, size)
    for head in range(2):
        rows = slice(head * channels, (head + 1) * channels)
        neighbors = [
            orthogonal(len(slow), channels) @ first.out.weight[:, place * channels : (place + 1) * channels].T / PASSED
            for place in range(2)
        ]
        same = math.sqrt(MATCH) * torch.cat(neighbors)
        query[rows] *= QUIET
        key[rows] *= QUIET
        matched = torch.cat([slow, slow + channels // 2]) + head * channels
        query[matched] += same
        key[matched] += same
        value[rows], second.out.weight[:, rows] = passed[rows], PASSED * passed[rows].T
    network.head_dense.weight += PASSED * torch.eye(size)


def _angles(channels: int, base: float) -> Tensor:
    """Return float[channels / 2]: the angle by which each rotary pair turns from one position to the next."""
    return base ** (-torch.arange(0, channels, 2) / channels)
