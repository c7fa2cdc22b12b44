"""The crammed encoder for transformers: this one file travels with the weights, for ``trust_remote_code=True``.

Architecture of "Cramming" (arXiv 2212.14034): pre-norm, a gated or plain GELU unit, positions by a scaled sinusoid or
learned. Needs torch and transformers and nothing else; runs on any device in any precision.

B rows, L positions, D hidden size, H heads, V vocabulary, C labels. ``token_type_ids`` are taken and ignored.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)


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


class CrammedPreTrainedModel(PreTrainedModel):
    config_class = CrammedConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - transformers reads it from the class

    def _init_weights(self, module: nn.Module) -> None:
        # torch.nn.init, not tensor methods: transformers guards these against overwriting loaded weights.
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, CrammedModel) and self.config.positions == "sinusoid":
            nn.init.constant_(module.position_scale, self.config.hidden_size**-0.5)


class CrammedModel(CrammedPreTrainedModel):
    """The encoder: ids [B, L] -> states [B, L, D]."""

    def __init__(self, config: CrammedConfig):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.positions == "sinusoid":
            self.position_scale = nn.Parameter(torch.tensor(config.hidden_size**-0.5))
        else:
            self.position_embedding = nn.Embedding(config.longest_row, config.hidden_size)
        self.embedding_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        final = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.final_norm = final if config.final_norm else nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.embedding = value

    def positions(self, length: int) -> Tensor:
        """What is added to the words, [L, D]."""
        if self.config.positions == "sinusoid":
            table = sinusoid(length, self.config.hidden_size, self.position_scale.device)
            return self.position_scale * table.to(self.position_scale.dtype)
        if length > self.config.longest_row:
            raise ValueError(
                f"A row of {length} tokens is longer than the {self.config.longest_row} positions that this model "
                "learned; cut it, for example by the tokenizer's truncation=True."
            )
        return self.position_embedding.weight[:length]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        mask = None
        if attention_mask is not None and not self.config.attend_padding:
            # A row that is all padding would give NaN; each position may see itself.
            itself = torch.eye(input_ids.shape[1], dtype=torch.bool, device=input_ids.device)
            mask = attention_mask.bool()[:, None, None] | itself
        x = self.embedding(input_ids) + self.positions(input_ids.shape[1])
        kept = [x := self.dropout(self.embedding_norm(x))]
        for block in self.blocks:
            kept.append(x := block(x, mask))
        kept[-1] = x = self.final_norm(x)
        return BaseModelOutput(x, tuple(kept) if output_hidden_states else None)


class CrammedForMaskedLM(CrammedPreTrainedModel):
    """Logits [B, L, V]; labels int64 [B, L], -100 where nothing is asked."""

    _tied_weights_keys = {"decoder.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: CrammedConfig):
        super().__init__(config)
        self.model = CrammedModel(config)
        self.head = Head(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size, bias=config.biases)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def set_output_embeddings(self, value: Any) -> None:
        self.decoder = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> MaskedLMOutput:
        encoded = self.model(input_ids, attention_mask, output_hidden_states=output_hidden_states)
        logits = self.decoder(self.head(encoded.last_hidden_state))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return MaskedLMOutput(loss, logits, encoded.hidden_states)


class CrammedForSequenceClassification(CrammedPreTrainedModel):
    """Logits [B, C]; labels int64 [B], or float for regression (C = 1) and several labels at once ([B, C])."""

    def __init__(self, config: CrammedConfig):
        super().__init__(config)
        self.num_labels = int(config.num_labels or 2)
        self.model = CrammedModel(config)
        self.pool = nn.Linear(config.hidden_size, config.classifier_width)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.classifier_width, self.num_labels)
        self.post_init()

    def pooled(self, states: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The first state or the mean [B, D]; padding is left out of the mean unless the model attends to it."""
        if self.config.classifier_pooling == "first":
            return states[:, 0]
        if attention_mask is None or self.config.attend_padding:
            return states.mean(dim=1)
        weight = attention_mask.to(states.dtype)[:, :, None]
        return (states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        encoded = self.model(input_ids, attention_mask, output_hidden_states=output_hidden_states)
        pooled = torch.tanh(self.pool(self.pooled(encoded.last_hidden_state, attention_mask)))
        logits = self.classifier(self.dropout(pooled))
        loss = None if labels is None else self.loss(logits, labels)
        return SequenceClassifierOutput(loss, logits, encoded.hidden_states)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What ``problem_type`` says; unsaid, the label count and the labels' type decide."""
        kind = self.config.problem_type
        if kind == "regression" or (kind is None and self.num_labels == 1):
            return F.mse_loss(logits.float().squeeze(-1), labels.float().view(logits.shape).squeeze(-1))
        if kind == "multi_label_classification" or (kind is None and labels.is_floating_point()):
            return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
        return F.cross_entropy(logits.float(), labels.flatten())


class CrammedForTokenClassification(CrammedPreTrainedModel):
    """Logits [B, L, C]; labels int64 [B, L], -100 where nothing is asked."""

    def __init__(self, config: CrammedConfig):
        super().__init__(config)
        self.num_labels = int(config.num_labels or 2)
        self.model = CrammedModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> TokenClassifierOutput:
        encoded = self.model(input_ids, attention_mask, output_hidden_states=output_hidden_states)
        logits = self.classifier(self.dropout(encoded.last_hidden_state))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return TokenClassifierOutput(loss, logits, encoded.hidden_states)


def sinusoid(length: int, width: int, device: torch.device) -> Tensor:
    """[L, D]: sines of p * 10000^(-2i/D) in the even channels, cosines in the odd ones (arXiv 1706.03762, 3.5)."""
    steps = torch.exp(torch.arange(0, width, 2, dtype=torch.float32, device=device) * (-math.log(10_000.0) / width))
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * steps
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
