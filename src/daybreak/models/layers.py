"""Leaves that architectures share: they take sizes and tensors, never names of variants.

B rows, L positions, K chosen positions, H heads, C channels of a head.
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


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each channel pair (c, c + C/2) of ``states`` [..., C] by its angle; tables broadcast as [..., C/2].

    In the type of ``states``, as transformers does: half precision would become float32 here, and then half again.
    """
    cosine, sine = cosine.to(states.dtype), sine.to(states.dtype)
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def dropping(share: float) -> nn.Module:
    """Dropout, or nothing at all when it drops nothing."""
    return nn.Dropout(share) if share else nn.Identity()


def take(states: Tensor, slots: Tensor) -> Tensor:
    """Pick positions: states [B, L, D], slots int64 [B, K] -> [B, K, D]."""
    rows, length, hidden_size = states.shape
    flat = slots + torch.arange(rows, device=slots.device)[:, None] * length
    return states.reshape(rows * length, hidden_size).index_select(0, flat.reshape(-1)).view(rows, -1, hidden_size)


def attention_mask(
    length: int, *, causal: bool, window: int | None, attend: Tensor | None, slots: Tensor | None, device: torch.device
) -> Tensor | None:
    """Return the bool mask [1 or B, 1, L or K, L] of who sees whom, or None when everyone sees everyone.

    Args:
        window: a position sees at most this many neighbours on each side; None for no limit.
        attend: bool [B, L], False for padding.
        slots: int64 [B, K], the asking positions; None for all.
    """
    keys = torch.arange(length, device=device)
    queries = keys[None] if slots is None else slots
    visible = None
    if causal:
        visible = keys[None, None] <= queries[:, :, None]
    if window is not None and window < length - 1:
        near = (keys[None, None] - queries[:, :, None]).abs() <= window
        visible = near if visible is None else visible & near
    if attend is not None:
        visible = attend[:, None] if visible is None else visible & attend[:, None]
        # A row that is all padding would give NaN; its positions may see themselves, nobody reads the result.
        visible = visible | (keys[None, None] == queries[:, :, None])
    return None if visible is None else visible[:, None]


def attend_heads(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool, dropout: float = 0.0
) -> Tensor:
    """Scaled dot-product attention [B, H, *, C] -> [B, *, H * C].

    Args:
        causal: each position sees itself and its left; looked at only where ``mask`` is None.
        dropout: share of the attention probabilities that is dropped; 0 outside of training.
    """
    if _by_products(value, dropout):
        mixed = _attend_by_products(query, key, value, mask, causal=causal and mask is None)
    else:
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
        )
    return mixed.transpose(1, 2).flatten(2)


LONGEST_PRODUCT = 1024
"""Positions up to which all scores of a head are kept: 2 MiB of them."""


def _by_products(value: Tensor, dropout: float) -> bool:
    """Whether plain matrix products are faster than torch's fused attention: in half precision on a processor.

    Its backward pass does not use the processor's instructions for such numbers, and takes several times as long as
    the products do (docs/log.md).
    """
    low = value.dtype in (torch.bfloat16, torch.float16)
    return low and value.device.type == "cpu" and value.shape[2] <= LONGEST_PRODUCT and dropout == 0


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    with torch.autocast(value.device.type, enabled=False):  # which would take the softmax to float32 and back
        query = (query * query.shape[-1] ** -0.5).to(value.dtype)
        scores = query @ key.to(value.dtype).transpose(2, 3)
        if causal:
            mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=value.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1) @ value
