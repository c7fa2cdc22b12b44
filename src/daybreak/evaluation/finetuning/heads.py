"""Daybreak's own classification heads, for encoders that learn little with a stock head.

B sequences, L tokens, D hidden_size, C outputs.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HEADS = ("stock", "mean", "segments")


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the positions where ``mask`` [B, L] is true: [B, L, D] -> [B, D]; zeros if there is none."""
    weights = mask.to(states.dtype)[:, :, None]
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


def compared(first: Tensor, second: Tensor) -> list[Tensor]:
    """Return the features of a pair of vectors [B, D]: u, v, |u - v| and u * v.

    Source: InferSent (Conneau et al. 2017, arXiv:1705.02364, section 3.1).
    """
    return [first, second, (first - second).abs(), first * second]


class PooledClassifier(nn.Module):
    """An encoder with a head of two layers on the mean of the states; ``head`` is a name of ``HEADS``.

    The head is computed in the precision of its weights, which is float32 in fine-tuning, also under autocast.
    ``segments``, a head for pairs, adds ``compared`` means over the tokens of each text.
    """

    base_model_prefix = "encoder"

    def __init__(self, encoder: nn.Module, config: Any, head: str):
        super().__init__()
        self.encoder, self.config, self.head = encoder, config, head
        hidden_size = config.hidden_size
        self.dense = nn.Linear((5 if head == "segments" else 1) * hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)
        self.drop = nn.Dropout(0.0)
        self.classifier = nn.Linear(hidden_size, config.num_labels)
        self._takes_types = "token_type_ids" in inspect.signature(encoder.forward).parameters

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Any:
        """Logits [B, C] from int64[B, L] inputs; ``segments`` is 1 and 2 on the tokens of the two texts, else 0."""
        from transformers.modeling_outputs import SequenceClassifierOutput

        types = {} if token_type_ids is None or not self._takes_types else {"token_type_ids": token_type_ids}
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **types)[0]
        with torch.autocast(states.device.type, enabled=False):
            return SequenceClassifierOutput(logits=self._logits(states.float(), attention_mask, segments))

    def _logits(self, states: Tensor, attention_mask: Tensor, segments: Tensor | None) -> Tensor:
        features = [masked_mean(states, attention_mask > 0)]
        if self.head == "segments":
            assert segments is not None
            features += compared(masked_mean(states, segments == 1), masked_mean(states, segments == 2))
        joined = torch.cat(features, dim=-1).to(self.dense.weight.dtype)
        hidden = self.norm(functional.gelu(self.dense(joined)))
        logits: Tensor = self.classifier(self.drop(hidden))
        return logits
