"""Classifier for transformers with the head of Daybreak's protocols ``small`` and ``distilled``.

It is saved with fine-tuned models, together with ``heads.py``, and needs only torch and transformers. Load it with
``AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True)``.

B sequences, L tokens, C outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from .heads import PooledClassifier


class ClassifierConfig(PretrainedConfig):
    """Configuration of the encoder and of the head."""

    model_type = "daybreak-classifier"

    encoder: dict[str, Any] | None = None  # config.json of the encoder
    pooling: str = "mean"  # or "segments": a comparison of the two texts of a pair
    cls_token_id: int | None = None
    sep_token_id: int | None = None
    pad_token_id: int | None = None


class Classifier(PreTrainedModel):
    """An encoder with a head on pooled states, for one text or for a pair of texts."""

    config_class = ClassifierConfig
    base_model_prefix = "pooled"

    def __init__(self, config: ClassifierConfig):
        super().__init__(config)
        described = dict(config.encoder or {})
        inner = AutoConfig.for_model(described.pop("model_type"), **described)
        # The encoder's config names the precision of its own file, and transformers sets that of this model as default.
        encoder = AutoModel.from_config(inner, dtype=torch.get_default_dtype())
        self.pooled = PooledClassifier(encoder, inner, config.pooling)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: the head has torch's initial weights, and the encoder its own."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Logits [B, C] from int64[B, L] inputs as the tokenizer makes them: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        segments = self.segments(input_ids, attention_mask) if self.config.pooling == "segments" else None
        return self.pooled(input_ids, attention_mask, token_type_ids, segments)

    def segments(self, ids: Tensor, attend: Tensor) -> Tensor:
        """1 and 2 on the tokens of the two texts, 0 elsewhere."""
        separators = ids == self.config.sep_token_id
        text = (attend > 0) & ~separators & (ids != self.config.cls_token_id)
        return torch.where(text, 1 + (separators.cumsum(dim=1) > 0).long(), 0)


ClassifierConfig.register_for_auto_class()
Classifier.register_for_auto_class("AutoModelForSequenceClassification")
