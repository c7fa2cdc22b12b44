"""Blocks of the crammed encoder: Daybreak trains with them, and the export contains this file.

B sequences, L positions, K masked positions, D hidden size.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .layers import Attention, Dropout, halves, take


class Unit(nn.Module):
    """Feed-forward unit: x * GELU(gate) over the two halves of the first map, or GELU without a gate."""

    def __init__(self, hidden_size: int, size: int, *, gated: bool, biases: bool):
        super().__init__()
        self.gated = gated
        self.up = nn.Linear(hidden_size, 2 * size if gated else size, bias=biases)
        self.down = nn.Linear(size, hidden_size, bias=biases)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.down(F.gelu(self.up(x)))
        passed, gate = halves(self.up, x)
        return self.down(passed * F.gelu(gate))


class Block(nn.Module):
    """Pre-norm block."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        intermediate_size: int,
        *,
        gated: bool,
        biases: bool,
        epsilon: float,
        dropout: float,
    ):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size, eps=epsilon)
        self.attention = Attention(hidden_size, heads, biases=biases, dropout=dropout)
        self.unit_norm = nn.LayerNorm(hidden_size, eps=epsilon)
        self.unit = Unit(hidden_size, intermediate_size, gated=gated, biases=biases)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, causal: bool = False, positions: Tensor | None = None
    ) -> Tensor:
        """[B, L, D] -> [B, L, D], or [B, K, D] with ``positions``."""
        stream, normed = x, self.attention_norm(x)
        queries = None
        if positions is not None:
            stream, queries = take(x, positions), take(normed, positions)
        stream = stream + self.dropout(self.attention(normed, queries, mask, causal))
        return stream + self.dropout(self.unit(self.unit_norm(stream)))


class Head(nn.Module):
    """Head between the encoder and the decoder: none, square (a linear map) or dense (linear, GELU, norm)."""

    def __init__(self, kind: str, hidden_size: int, *, biases: bool, epsilon: float):
        super().__init__()
        self.kind = kind
        if kind != "none":
            self.dense = nn.Linear(hidden_size, hidden_size, bias=biases)
        if kind == "dense":
            self.norm = nn.LayerNorm(hidden_size, eps=epsilon)

    def forward(self, states: Tensor) -> Tensor:
        if self.kind == "none":
            return states
        return self.dense(states) if self.kind == "square" else self.norm(F.gelu(self.dense(states)))
