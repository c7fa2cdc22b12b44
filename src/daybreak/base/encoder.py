"""What training asks of a model, so that neither wing has to know the other.

B rows, L positions, K chosen positions a row, D width, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from daybreak.base.plain import Component


class Encoder(nn.Module, ABC):
    """A transformer with a masked-LM head whose decoder is a linear map over the vocabulary."""

    vocabulary: int
    width: int

    @abstractmethod
    def features(
        self, ids: Tensor, slots: Tensor | None = None, *, causal: bool = False, attend: Tensor | None = None
    ) -> Tensor:
        """Return what the decoder reads.

        Args:
            ids: int64 [B, L].
            slots: int64 [B, K], positions whose features are wanted; all of them when None.
            causal: let each position see itself and its left only.
            attend: bool [B, L], False for padding; None when nothing is padded.

        Returns:
            [B, K, D], or [B, L, D] without ``slots``.
        """

    @property
    @abstractmethod
    def decoder(self) -> nn.Linear:
        """The map from features to V logits; its weight may be the embedding's."""

    def logits(self, ids: Tensor, slots: Tensor | None = None, *, attend: Tensor | None = None) -> Tensor:
        """Return [B, K or L, V]."""
        return self.decoder(self.features(ids, slots, attend=attend))

    def parameter_count(self) -> int:
        """Trainable numbers, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Component):
    """An architecture before it is built."""

    def build(self, vocabulary: int) -> Encoder:
        """Return a freshly initialised model; random numbers come from torch's default generator."""
        raise NotImplementedError

    def to_hugging_face(self, vocabulary: int, length: int) -> dict[str, Any]:
        """Return the ``config.json`` of the stock class for this shape, trained at ``length`` positions."""
        raise NotImplementedError

    def export_weights(self, model: Encoder) -> dict[str, Tensor]:
        """Return the state dict of the stock class, each tensor contiguous float32 on the CPU."""
        raise NotImplementedError


@dataclass(frozen=True)
class LossSum:
    """A loss before its division: gradients over microbatches and ranks add up, and are divided once."""

    sum: Tensor
    """Scalar with gradient: nats summed over the targets."""
    count: int
    """Number of targets."""


def exported(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Detach, move to the CPU, make float32 and contiguous: the form that safetensors stores."""
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in state.items()}
