"""Config and layers of the crammed encoder; travels with ``modeling_crammed.py``, which has the models.

B rows, L positions, D hidden size, H heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig


class CrammedConfig(PretrainedConfig):
    """Sizes and choices; ``dropout`` is meant for fine-tuning."""

    model_type = "daybreak-crammed"

    vocab_size: int = 32_768
    hidden_size: int = 768
    num_hidden_layers: int = 16
    num_attention_heads: int = 12
    intermediate_size: int = 1_536  # width of the unit; ``gated`` makes its first map twice as wide
    gated: bool = True
    biases: bool = False  # of the linear maps, the decoder too; norms always have theirs
    positions: str = "sinusoid"  # one learned scale, any length; or "learned": ``longest_row`` of them
    longest_row: int = 128
    max_position_embeddings: int = 128  # the trained length
    mlm_head: str = "none"  # before the decoder: "none", "square" (a linear map) or "dense" (map, GELU, norm)
    final_norm: bool = True
    norm_eps: float = 1e-12
    attend_padding: bool = False  # ignore the attention mask, as version 1 was trained and fine-tuned
    dropout: float = 0.1  # of states, attention and the classifier
    classifier_pooling: str = "first"  # or "mean": the state that the sequence classifier reads
    classifier_width: int = 1_024
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0


class Attention(nn.Module):
    def __init__(self, config: CrammedConfig):
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout = nn.Dropout(config.dropout)  # SDPA drops; here it holds the share, where others look for it
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.biases)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=config.biases)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Unit(nn.Module):
    def __init__(self, config: CrammedConfig):
        super().__init__()
        self.gated = config.gated
        inner = config.intermediate_size
        self.up = nn.Linear(config.hidden_size, 2 * inner if config.gated else inner, bias=config.biases)
        self.down = nn.Linear(inner, config.hidden_size, bias=config.biases)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        if not self.gated:
            return self.down(F.gelu(inner))
        passed, gate = inner.chunk(2, dim=-1)
        return self.down(passed * F.gelu(gate))


class Block(nn.Module):
    def __init__(self, config: CrammedConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.attention = Attention(config)
        self.unit_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.unit = Unit(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        return x + self.dropout(self.unit(self.unit_norm(x)))


class Head(nn.Module):
    """What stands between the encoder and the decoder."""

    def __init__(self, config: CrammedConfig):
        super().__init__()
        self.kind = config.mlm_head
        if self.kind != "none":
            self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.biases)
        if self.kind == "dense":
            self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)

    def forward(self, states: Tensor) -> Tensor:
        if self.kind == "none":
            return states
        return self.dense(states) if self.kind == "square" else self.norm(F.gelu(self.dense(states)))


def sinusoid(length: int, width: int, device: torch.device) -> Tensor:
    """[L, D]: sines of p * 10000^(-2i/D) in the even channels, cosines in the odd ones (arXiv 1706.03762, 3.5)."""
    steps = torch.exp(torch.arange(0, width, 2, dtype=torch.float32, device=device) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * steps
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
