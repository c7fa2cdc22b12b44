"""Functions that the architectures share. They take sizes and tensors, not names of variants.

B sequences, L positions, K masked positions, H heads, C channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daybreak.core.encoder import EncoderConfig
from daybreak.core.errors import UserError


def parameter_sizes(
    shape: EncoderConfig, vocabulary: int, layers: int, weights: Mapping[str, Tensor]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the state dict of the model that a config.json describes, without allocating it.

    A file of a few bytes can describe a model of any size, so it is built with real tensors only after its sizes were
    compared with those of the weights.

    Args:
        weights: tensors of the checkpoint.

    Raises:
        UserError: the config names more layers than there are tensors.
    """
    if layers > len(weights):
        raise UserError(
            f"The config.json says {layers:,} layers, but the checkpoint has only {len(weights)} tensors.",
            "Use weights and config of one checkpoint.",
        )
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in shape.build(vocabulary).state_dict().items()}


def check_sizes(state: Mapping[str, Tensor], sizes: Mapping[str, tuple[int, ...]], names: Mapping[str, str]) -> None:
    """Check that each tensor of ``state`` has the size that the config.json says.

    Args:
        names: names of ``state`` -> names in the checkpoint, for the message.

    Raises:
        UserError: a size differs.
    """
    for ours, tensor in state.items():
        if tuple(tensor.shape) != sizes[ours]:
            raise UserError(
                f"The checkpoint's '{names[ours]}' is {tuple(tensor.shape)}, but its config.json says {sizes[ours]}.",
                "Use weights and config of one checkpoint.",
            )


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


def dropping(rate: float) -> nn.Module:
    """Return a dropout layer, or an identity for a rate of 0."""
    return nn.Dropout(rate) if rate else nn.Identity()


def take(states: Tensor, positions: Tensor) -> Tensor:
    """Pick positions: states [B, L, D], positions int64 [B, K] -> [B, K, D]."""
    rows, length, hidden_size = states.shape
    flat = positions + torch.arange(rows, device=positions.device)[:, None] * length
    return states.reshape(rows * length, hidden_size).index_select(0, flat.reshape(-1)).view(rows, -1, hidden_size)


def attention_mask(
    length: int,
    *,
    causal: bool,
    window: int | None,
    attend: Tensor | None,
    positions: Tensor | None,
    device: torch.device,
) -> Tensor | None:
    """Return the attention mask, bool [1 or B, 1, L or K, L], or None if all positions attend to all.

    Args:
        window: number of visible positions on each side; None for no limit.
        attend: bool [B, L], False for padding.
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
    if attend is not None:
        visible = attend[:, None] if visible is None else visible & attend[:, None]
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
    if _by_products(value, dropout):
        mixed = _attend_by_products(query, key, value, mask, causal=causal and mask is None)
    else:
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
        )
    return mixed.transpose(1, 2).flatten(2)


LONGEST_PRODUCT = 1024
"""Largest length at which the scores of a head are stored: 2 MiB."""


def _by_products(value: Tensor, dropout: float) -> bool:
    """Whether matrix products are faster than torch's fused attention, as in half precision on a CPU.

    The backward pass of the fused attention does not use the CPU's half-precision instructions and takes several times
    as long (docs/log.md).
    """
    low = value.dtype in (torch.bfloat16, torch.float16)
    return low and value.device.type == "cpu" and value.shape[2] <= LONGEST_PRODUCT and dropout == 0


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    with torch.autocast(value.device.type, enabled=False):  # autocast would convert the softmax to float32 and back
        query = (query * query.shape[-1] ** -0.5).to(value.dtype)
        scores = query @ key.to(value.dtype).transpose(2, 3)
        if causal:
            mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=value.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.softmax(dim=-1) @ value
