"""Config and layers of the crammed encoder, exported together with the models in ``modeling_crammed.py``.

B sequences, L positions, D hidden size, H heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig


class CrammedConfig(PretrainedConfig):
    """Configuration; ``dropout`` is for fine-tuning."""

    model_type = "daybreak-crammed"

    vocab_size: int = 32_768
    hidden_size: int = 768
    num_hidden_layers: int = 16
    num_attention_heads: int = 12
    intermediate_size: int = 1_536  # hidden size of the unit; with ``gated`` its first map has twice as many outputs
    gated: bool = True
    biases: bool = False  # in the linear maps, including the decoder; norms always have them
    positions: str = "sinusoid"  # with one learned scale, any length; or "learned": ``longest_row`` positions
    longest_row: int = 128
    max_position_embeddings: int = 128  # the trained length
    mlm_head: str = "none"  # before the decoder: "none", "square" (a linear map) or "dense" (linear, GELU, norm)
    final_norm: bool = True
    norm_eps: float = 1e-12
    attend_padding: bool = False  # ignore the attention mask, as version 1 was trained and fine-tuned
    dropout: float = 0.1  # of states, attention and the classifier
    classifier_pooling: str = "first"  # or "mean": pooling of the sequence classifier
    classifier_width: int = 1_024
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0


class Attention(nn.Module):
    def __init__(self, config: CrammedConfig):
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout = nn.Dropout(config.dropout)  # only holds the rate; SDPA applies it
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=config.biases)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=config.biases)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows, length, hidden_size = x.shape
        qkv = self.qkv(x).view(rows, length, 3, self.heads, hidden_size // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, hidden_size))


class Unit(nn.Module):
    def __init__(self, config: CrammedConfig):
        super().__init__()
        self.gated = config.gated
        size = config.intermediate_size
        self.up = nn.Linear(config.hidden_size, 2 * size if config.gated else size, bias=config.biases)
        self.down = nn.Linear(size, config.hidden_size, bias=config.biases)

    def forward(self, x: Tensor) -> Tensor:
        intermediate = self.up(x)
        if not self.gated:
            return self.down(F.gelu(intermediate))
        passed, gate = intermediate.chunk(2, dim=-1)
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
    """Head between the encoder and the decoder."""

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


def sinusoid(length: int, hidden_size: int, device: torch.device) -> Tensor:
    """[L, D]: sines of p * 10000^(-2i/D) in the even channels, cosines in the odd ones (arXiv 1706.03762, 3.5)."""
    steps = torch.exp(
        torch.arange(0, hidden_size, 2, dtype=torch.float32, device=device) * (-math.log(10_000.0) / hidden_size)
    )
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * steps
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
