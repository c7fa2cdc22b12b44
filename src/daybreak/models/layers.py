"""Layers that the architectures share. They take sizes and tensors, not names of variants.

The export of the crammed family contains this file, so it imports nothing of Daybreak.

B sequences, L positions, K masked positions, D hidden size, H heads, C channels of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rotary_table(length: int, channels: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [L, C/2] of rotary position embedding (RoFormer, arXiv 2104.09864, section 3.4)."""
    frequencies = 1.0 / (base ** (torch.arange(0, channels, 2, dtype=torch.float32, device=device) / channels))
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def sinusoid_table(length: int, hidden_size: int, device: torch.device) -> Tensor:
    """Return fixed positions [L, D]: sines of p * 10000^(-2i/D) in even channels, cosines in odd ones.

    Source: Transformer (arXiv 1706.03762), section 3.5.
    """
    steps = torch.exp(
        torch.arange(0, hidden_size, 2, dtype=torch.float32, device=device) * (-math.log(10_000.0) / hidden_size)
    )
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * steps
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


@torch.no_grad()
def correlate(weights: Tensor, source: Tensor, correlation: float) -> None:
    """Mix ``source`` into random ``weights`` of the same shape and variance, so that they have this correlation."""
    if correlation:
        weights.mul_(math.sqrt(1 - correlation**2)).add_(source, alpha=correlation)


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each channel pair (c, c + C/2) of ``states`` [..., C] by its angle; the tables broadcast as [..., C/2].

    The tables are converted to the type of ``states``, as in transformers, so that half precision stays half.
    """
    cosine, sine = cosine.to(states.dtype), sine.to(states.dtype)
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def halves(linear: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two halves of ``linear(x)``, for a gated unit.

    Inductor joins the gradients of two halves in one kernel that computes both at every place, which takes twice as
    long as the memory needs. Of two products there is nothing to join.
    """
    if not (torch.compiler.is_compiling() and x.is_cuda):
        first, second = linear(x).chunk(2, dim=-1)
        return first, second
    weights = linear.weight.chunk(2)
    biases = (None, None) if linear.bias is None else linear.bias.chunk(2)
    return F.linear(x, weights[0], biases[0]), F.linear(x, weights[1], biases[1])


class Dropout(nn.Dropout):
    """Dropout that costs nothing at a rate of 0."""

    def forward(self, states: Tensor) -> Tensor:
        return F.dropout(states, self.p, self.training) if self.p else states


def take(states: Tensor, positions: Tensor) -> Tensor:
    """Pick positions: states [B, L, D], positions int64 [B, K] -> [B, K, D]."""
    rows, length, hidden_size = states.shape
    flat = positions + torch.arange(rows, device=positions.device)[:, None] * length
    return states.reshape(rows * length, hidden_size).index_select(0, flat.reshape(-1)).view(rows, -1, hidden_size)


def visibility_mask(
    length: int,
    *,
    causal: bool,
    window: int | None,
    attention_mask: Tensor | None,
    positions: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """Return which positions a query sees, bool [1 or B, 1, L or K, L], or None if all positions attend to all.

    Args:
        window: number of visible positions on each side; None for no limit.
        attention_mask: bool [B, L], False for padding.
        positions: int64 [B, K], positions of the queries; None for all.
    """
    keys = torch.arange(length, device=device)
    queries = keys[None] if positions is None else positions
    visible = None
    if causal:
        visible = keys[None, None] <= queries[:, :, None]
    if window is not None and window < length - 1:
        near = (keys[None, None] - queries[:, :, None]).abs() <= window
        visible = near if visible is None else visible & near
    if attention_mask is not None:
        visible = attention_mask[:, None] if visible is None else visible & attention_mask[:, None]
        # A sequence of padding alone would give NaN, so its positions attend to themselves; the result is not used.
        visible = visible | (keys[None, None] == queries[:, :, None])
    return None if visible is None else visible[:, None]


def attend_heads(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool, dropout: float = 0.0
) -> Tensor:
    """Scaled dot-product attention [B, H, *, C] -> [B, *, H * C].

    Args:
        causal: each position attends to itself and its left context; only used if ``mask`` is None.
        dropout: dropout of the attention probabilities; 0 outside training.
    """
    if _by_products(value, mask, dropout):
        mixed = _attend_by_products(query, key, value, mask, causal=causal and mask is None)
    else:
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
        )
    return mixed.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Attention with one fused projection for queries, keys and values."""

    def __init__(self, hidden_size: int, heads: int, *, biases: bool = True, dropout: float = 0.0):
        super().__init__()
        self.heads = heads
        self.dropout = nn.Dropout(dropout)  # holds the rate of the probabilities; SDPA applies it
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=biases)
        self.out = nn.Linear(hidden_size, hidden_size, bias=biases)

    def forward(self, x: Tensor, queries: Tensor | None, mask: Tensor | None, causal: bool) -> Tensor:
        """Attend to ``x`` [B, L, D] from ``queries`` [B, K, D], a part of its positions, or from all for None."""
        rows, length, hidden_size = x.shape
        per_head = (self.heads, hidden_size // self.heads)
        if queries is None:
            query, key, value = self.qkv(x).view(rows, length, 3, *per_head).unbind(2)
        else:
            weight, bias = self.qkv.weight, self.qkv.bias
            query_bias, key_value_bias = (None, None) if bias is None else (bias[:hidden_size], bias[hidden_size:])
            query = F.linear(queries, weight[:hidden_size], query_bias).view(rows, -1, *per_head)
            key, value = F.linear(x, weight[hidden_size:], key_value_bias).view(rows, length, 2, *per_head).unbind(2)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        dropout = self.dropout.p if self.training else 0.0
        return self.out(attend_heads(query, key, value, mask, causal=causal, dropout=dropout))


LONGEST_PRODUCT = 1024
"""Largest length at which the scores of a head are stored: 2 MiB."""
KEYS, SPLIT_BELOW = 64, 256
"""Keys in a block of torch's memory-efficient attention on a GPU, and the heads of all sequences below which it handles
all blocks at once."""


def _by_products(value: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether to use matrix products instead of torch's fused attention.

    On a CPU in half precision they are faster: the backward pass of the fused attention does not use the CPU's
    half-precision instructions and takes several times as long (docs/log.md).

    On a GPU the memory-efficient attention, which torch takes for a mask and without bfloat16, adds up the gradient of
    a query over blocks of keys in the order in which they finish, if there are few heads (attention_backward.cu). With
    few heads the products cost little, and a replay gives the same bits. More than two blocks are always split.
    """
    rows, heads, length, _ = value.shape
    if dropout:
        return False
    if value.device.type == "cuda":
        efficient = mask is not None or value.dtype != torch.bfloat16
        return efficient and rows * heads < SPLIT_BELOW and KEYS < length <= 2 * KEYS
    return value.dtype in (torch.bfloat16, torch.float16) and value.device.type == "cpu" and length <= LONGEST_PRODUCT


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    with torch.autocast(value.device.type, enabled=False):  # autocast would convert the softmax to float32 and back
        query = (query * query.shape[-1] ** -0.5).to(value.dtype)
        scores = query @ key.to(value.dtype).transpose(2, 3)
        if causal:
            mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=value.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1) @ value
