"""Crammed encoder for transformers, exported with the weights together with the files of its layers.

Load it with ``trust_remote_code=True``. Architecture of "Cramming" (arXiv 2212.14034): pre-norm, a GELU unit with or
without a gate, a scaled sinusoid or learned positions. It needs only torch and transformers and runs on any device in
any precision. All models are in this file, because ``save_pretrained`` copies the file of the saved model and its
imports, but not the files that import it.

B sequences, L positions, D hidden size, V vocabulary, C labels, N choices. ``token_type_ids`` are ignored.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from .layers import sinusoid_table
from .modeling_crammed_layers import Block, Head


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
        self.blocks = nn.ModuleList(
            Block(
                config.hidden_size,
                config.num_attention_heads,
                config.intermediate_size,
                gated=config.gated,
                biases=config.biases,
                epsilon=config.norm_eps,
                dropout=config.dropout,
            )
            for _ in range(config.num_hidden_layers)
        )
        final = nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.final_norm = final if config.final_norm else nn.Identity()
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.embedding = value

    def positions(self, length: int) -> Tensor:
        """Position embeddings [L, D]."""
        if self.config.positions == "sinusoid":
            table = sinusoid_table(length, self.config.hidden_size, self.position_scale.device)
            return self.position_scale * table.to(self.position_scale.dtype)
        if length > self.config.longest_row:
            raise ValueError(
                f"A sequence of {length} tokens is longer than the {self.config.longest_row} positions of this model; "
                "truncate it, for example with truncation=True of the tokenizer."
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
            # A sequence of padding alone would give NaN, so each position attends to itself.
            itself = torch.eye(input_ids.shape[1], dtype=torch.bool, device=input_ids.device)
            mask = attention_mask.bool()[:, None, None] | itself
        x = self.embedding(input_ids) + self.positions(input_ids.shape[1])
        states = [x := self.dropout(self.embedding_norm(x))]
        for block in self.blocks:
            states.append(x := block(x, mask))
        states[-1] = x = self.final_norm(x)
        shown = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutput(x, tuple(states) if shown else None)


class CrammedForMaskedLM(CrammedPreTrainedModel):
    """Logits [B, L, V]; labels int64 [B, L], -100 for ignored positions."""

    _tied_weights_keys = {"decoder.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: CrammedConfig):
        super().__init__(config)
        self.model = CrammedModel(config)
        self.head = Head(config.mlm_head, config.hidden_size, biases=config.biases, epsilon=config.norm_eps)
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


class PooledModel(CrammedPreTrainedModel):
    """Outputs for each sequence from its first state or the mean of its states."""

    def __init__(self, config: CrammedConfig, outputs: int):
        super().__init__(config)
        self.model = CrammedModel(config)
        self.pool = nn.Linear(config.hidden_size, config.classifier_width)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.classifier_width, outputs)
        self.post_init()

    def pooled(self, states: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The first state or the mean [B, D]; padding is excluded from the mean unless the model attends to it."""
        if self.config.classifier_pooling == "first":
            return states[:, 0]
        if attention_mask is None or self.config.attend_padding:
            return states.mean(dim=1)
        weight = attention_mask.to(states.dtype)[:, :, None]
        return (states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)

    def classified(self, states: Tensor, attention_mask: Tensor | None) -> Tensor:
        """[B, outputs]."""
        pooled = torch.tanh(self.pool(self.pooled(states, attention_mask)))
        return self.classifier(self.dropout(pooled))


class CrammedForSequenceClassification(PooledModel):
    """Logits [B, C]; labels int64 [B], or float for regression (C = 1) and several labels at once ([B, C])."""

    def __init__(self, config: CrammedConfig):
        super().__init__(config, int(config.num_labels or 2))
        self.num_labels = self.classifier.out_features

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        encoded = self.model(input_ids, attention_mask, output_hidden_states=output_hidden_states)
        logits = self.classified(encoded.last_hidden_state, attention_mask)
        loss = None if labels is None else self.loss(logits, labels)
        return SequenceClassifierOutput(loss, logits, encoded.hidden_states)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Loss for ``problem_type``; if it is None, the number and the type of the labels decide."""
        kind = self.config.problem_type
        if kind == "regression" or (kind is None and self.num_labels == 1):
            return F.mse_loss(logits.float().squeeze(-1), labels.float().view(logits.shape).squeeze(-1))
        if kind == "multi_label_classification" or (kind is None and labels.is_floating_point()):
            return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
        return F.cross_entropy(logits.float(), labels.flatten())


class CrammedForMultipleChoice(PooledModel):
    """Logits [B, N] for ids [B, N, L], one logit per choice; labels int64 [B]."""

    def __init__(self, config: CrammedConfig):
        super().__init__(config, 1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> MultipleChoiceModelOutput:
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        encoded = self.model(input_ids.flatten(0, 1), mask, output_hidden_states=output_hidden_states)
        logits = self.classified(encoded.last_hidden_state, mask).view(input_ids.shape[:2])
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return MultipleChoiceModelOutput(loss, logits, encoded.hidden_states)


class CrammedForTokenClassification(CrammedPreTrainedModel):
    """Logits [B, L, C]; labels int64 [B, L], -100 for ignored positions."""

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


class CrammedForQuestionAnswering(CrammedPreTrainedModel):
    """Start and end logits [B, L]; positions int64 [B], ignored if they are L or more."""

    def __init__(self, config: CrammedConfig):
        super().__init__(config)
        self.model = CrammedModel(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> QuestionAnsweringModelOutput:
        encoded = self.model(input_ids, attention_mask, output_hidden_states=output_hidden_states)
        start, end = self.classifier(self.dropout(encoded.last_hidden_state)).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            length = input_ids.shape[1]
            pairs = ((start, start_positions), (end, end_positions))
            losses = [F.cross_entropy(at.float(), where.clamp(0, length), ignore_index=length) for at, where in pairs]
            loss = (losses[0] + losses[1]) / 2
        return QuestionAnsweringModelOutput(loss, start, end, encoded.hidden_states)
