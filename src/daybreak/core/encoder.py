"""What training asks of a model, so that neither wing has to know the other.

B rows, L positions, K chosen positions a row, D hidden_size, V vocabulary.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from daybreak.core.errors import UserError
from daybreak.core.serialization import Component
from daybreak.schemas.run import SpecialIds


class Encoder(nn.Module, ABC):
    """A transformer with a masked-LM head whose decoder is a linear map over the vocabulary."""

    vocabulary: int
    hidden_size: int
    blocks: nn.ModuleList
    """The layers of the trunk, first to last: called through ``run_block``, they get plain tensors and a flag."""
    gradient_checkpointing: bool = False
    """Gradient checkpointing (arXiv 1604.06174): keep only what enters a block, and run it again on the way back."""
    compiled: Callable[..., Tensor] | None = None
    """Calls a block by compiled code, while training only; takes what ``called`` takes. None calls it as written."""

    @abstractmethod
    def states(
        self,
        ids: Tensor,
        slots: Tensor | None = None,
        *,
        causal: bool = False,
        attend: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """Return what the last layer leaves.

        Args:
            ids: int64 [B, L].
            slots: int64 [B, K], positions whose states are wanted; all of them when None.
            causal: let each position see itself and its left only.
            attend: bool [B, L], False for padding; None when nothing is padded.
            types: int64 [B, L], segments 0 and 1; None for all 0. Ignored by models without segments.

        Returns:
            [B, K, D], or [B, L, D] without ``slots``.
        """

    @abstractmethod
    def transform(self, states: Tensor) -> Tensor:
        """Turn states [..., D] into what the decoder reads, of the same shape: the head without its decoder."""

    @property
    @abstractmethod
    def decoder(self) -> nn.Linear:
        """The map from transformed states to V logits; its weight may be the embedding's, its bias None."""

    def features(
        self,
        ids: Tensor,
        slots: Tensor | None = None,
        *,
        causal: bool = False,
        attend: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Tensor:
        """Return what the decoder reads: [B, K, D], or [B, L, D] without ``slots``."""
        return self.transform(self.states(ids, slots, causal=causal, attend=attend, types=types))

    def logits(
        self, ids: Tensor, slots: Tensor | None = None, *, attend: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        """Return [B, K or L, V]."""
        return self.decoder(self.features(ids, slots, attend=attend, types=types))

    def run_block(
        self, block: nn.Module, x: Tensor, mask: Tensor | None, causal: bool, slots: Tensor | None, *tables: Tensor
    ) -> Tensor:
        """Call a block; while training, by compiled code and once more for its gradients, where that is asked.

        Run again, dropout draws the same, so the gradients are those of a plain call to the last bit.

        Args:
            x: [B, L, D].
            mask: bool [1 or B, 1, L or K, L] of who sees whom; None for everyone, or as ``causal`` says.
            slots: int64 [B, K], positions whose states are wanted; all of them when None.
            tables: what else the architecture's blocks read.

        Returns:
            [B, K, D], or [B, L, D] without ``slots``.
        """
        # Judging has shapes of its own and comes seldom: compiling for them would not pay.
        call = self.compiled if self.training and self.compiled else called
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(call, block, x, mask, causal, slots, *tables, use_reentrant=False)
        return call(block, x, mask, causal, slots, *tables)

    def parts(self, name: str) -> int:
        """How many matrices of equal shape the parameter ``name`` stacks along its first dimension."""
        return 1

    def next_logits(self, states: Tensor) -> Tensor:
        """Return the next-sentence logits [B, 2] from the states [B, D] of each row's first position."""
        raise NotImplementedError

    def parameter_count(self) -> int:
        """Trainable numbers, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def called(
    block: nn.Module, x: Tensor, mask: Tensor | None, causal: bool, slots: Tensor | None, *tables: Tensor
) -> Tensor:
    """Call a block as it is written; the arguments are those of ``Encoder.run_block``."""
    return block(x, mask, causal, slots, *tables)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Component):
    """An architecture before it is built."""

    @abstractmethod
    def build(self, vocabulary: int) -> Encoder:
        """Return a freshly initialised model; random numbers come from torch's default generator."""

    @abstractmethod
    def to_hugging_face(self, vocabulary: int, length: int, special: SpecialIds = SpecialIds()) -> dict[str, Any]:
        """Return the ``config.json`` of the class for this shape, trained at ``length`` positions."""

    @abstractmethod
    def export_weights(self, model: Encoder) -> dict[str, Tensor]:
        """Return the state dict of that class, each tensor contiguous float32 on the CPU."""

    def modelling_files(self) -> dict[str, Path]:
        """Return the code that must travel with the weights, file name -> our copy; none for a stock class."""
        return {}

    @property
    def longest(self) -> int | None:
        """Most positions that a row may have; None without such a limit."""
        return None

    @property
    def predicts_next(self) -> bool:
        """Whether the built model has ``next_logits``."""
        return False


def check_positive(**values: float) -> None:
    """Raise UserError for the first of these fields of --model that is no number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"--model.{name.replace('_', '-')} is {value:g}.", "Give a number above 0.")


@dataclass(frozen=True)
class LossSum:
    """A loss before its division: gradients over microbatches and ranks add up, and are divided once."""

    sum: Tensor
    """Scalar with gradient: nats summed over the targets."""
    count: int
    """Number of targets."""
    masked: Tensor | None = None
    """Of ``sum``, what the masked words cost, where it holds more than that; no gradient. What a run reports."""
    embeddings: Tensor | None = None
    """[B, D] of unit length, with gradient: the sequences' embeddings, where they were asked for."""


def exported(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Detach, move to the CPU, make float32 and contiguous: the form that safetensors stores."""
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in state.items()}


def special_entries(special: SpecialIds) -> dict[str, int]:
    """What every ``config.json`` says of the special ids; stock defaults lie beyond a small vocabulary."""
    return {
        "pad_token_id": special.pad,
        "cls_token_id": special.cls,
        "bos_token_id": special.cls,
        "sep_token_id": special.sep,
        "eos_token_id": special.sep,
    }
