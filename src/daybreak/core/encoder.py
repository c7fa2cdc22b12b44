"""The interface between models and training, so that neither folder imports the other.

B sequences, L positions, K chosen positions of a sequence, D hidden_size, V vocabulary.
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
    """The layers of the model, first to last: called through ``run_block``, they get plain tensors and a flag."""
    gradient_checkpointing: bool = False
    """Gradient checkpointing (arXiv 1604.06174): store only the input of a block, and run it again in the backward
    pass."""
    compiled: Callable[..., Tensor] | None = None
    """Calls a block by compiled code, during training only, with the arguments of ``call_block``. None calls it
    uncompiled."""
    compiled_loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
    """Computes the loss of a chunk of targets by compiled code, if blocks are ``compiled``; None does so uncompiled."""

    @abstractmethod
    def states(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        *,
        causal: bool = False,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states of the last layer.

        Args:
            ids: int64 [B, L].
            positions: int64 [B, K], positions whose states are returned; None for all of them.
            causal: let each position attend only to itself and to positions before it.
            attend: bool [B, L], False for padding; None if nothing is padded.
            types: int64 [B, L], segments 0 and 1; None for all 0. Ignored by models without segments.

        Returns:
            [B, K, D], or [B, L, D] without ``positions``.
        """

    @abstractmethod
    def transform(self, states: Tensor) -> Tensor:
        """Turn states [..., D] into the decoder's input, of the same shape: the head without its decoder."""

    @property
    @abstractmethod
    def decoder(self) -> nn.Linear:
        """The map from transformed states to V logits; its weight may be the embedding's, its bias None."""

    def features(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        *,
        causal: bool = False,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the decoder's input: [B, K, D], or [B, L, D] without ``positions``."""
        return self.transform(
            self.states(
                input_ids, positions, causal=causal, attention_mask=attention_mask, token_type_ids=token_type_ids
            )
        )

    def logits(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Return [B, K or L, V]."""
        return self.decoder(
            self.features(input_ids, positions, attention_mask=attention_mask, token_type_ids=token_type_ids)
        )

    def run_block(
        self, block: nn.Module, x: Tensor, mask: Tensor | None, causal: bool, positions: Tensor | None, *tables: Tensor
    ) -> Tensor:
        """Call a block; in training use compiled code and gradient checkpointing, if they are enabled.

        The repeated forward pass draws the same dropout, so the gradients equal those of a plain call to the last bit.

        Args:
            x: [B, L, D].
            mask: bool [1 or B, 1, L or K, L], True where a position attends to another; None for all, or as ``causal``
                sets.
            positions: int64 [B, K], positions whose states are returned; None for all of them.
            tables: other inputs of the architecture's blocks.

        Returns:
            [B, K, D], or [B, L, D] without ``positions``.
        """
        # Evaluation has other shapes and is rare: compiling for it would not pay off.
        call = self.compiled if self.training and self.compiled else call_block
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(call, block, x, mask, causal, positions, *tables, use_reentrant=False)
        return call(block, x, mask, causal, positions, *tables)

    def parts(self, name: str) -> int:
        """Number of matrices of equal shape that the parameter ``name`` stacks along its first dimension."""
        return 1

    def next_logits(self, states: Tensor) -> Tensor:
        """Return the next-sentence logits [B, 2] from the states [B, D] of each sequence's first position."""
        raise NotImplementedError

    def parameter_count(self) -> int:
        """Number of trainable parameters, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def call_block(
    block: nn.Module, x: Tensor, mask: Tensor | None, causal: bool, positions: Tensor | None, *tables: Tensor
) -> Tensor:
    """Call a block uncompiled; the arguments are those of ``Encoder.run_block``."""
    return block(x, mask, causal, positions, *tables)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Component):
    """An architecture before it is built."""

    @abstractmethod
    def build(self, vocabulary: int) -> Encoder:
        """Return a freshly initialized model; random numbers come from torch's default generator.

        Args:
            vocabulary: number of token ids, the first dimension of the embedding.
        """

    def plant(self, model: Encoder) -> None:
        """Write a structure into the weights of a new model, after its embeddings; nothing by default."""

    @abstractmethod
    def to_hugging_face(self, vocabulary: int, length: int, special: SpecialIds = SpecialIds()) -> dict[str, Any]:
        """Return the ``config.json`` of the exported class for this shape, trained at ``length`` positions."""

    @abstractmethod
    def export_weights(self, model: Encoder) -> dict[str, Tensor]:
        """Return the state dict of that class, each tensor contiguous float32 on the CPU."""

    def modelling_files(self) -> dict[str, Path]:
        """Return the code files exported with the weights, file name -> Daybreak's copy; none for a stock class."""
        return {}

    @property
    def longest(self) -> int | None:
        """Maximum number of positions of a sequence; None without a limit."""
        return None

    @property
    def predicts_next(self) -> bool:
        """Whether the built model has ``next_logits``."""
        return False


def check_positive(**values: float) -> None:
    """Raise UserError for the first of these fields of --model that is not a number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"--model.{name.replace('_', '-')} is {value:g}.", "Give a number above 0.")


@dataclass(frozen=True)
class LossSum:
    """Sum of a loss over its targets; gradients are added over microbatches and ranks, and divided once."""

    sum: Tensor
    """Scalar with gradient: nats summed over the targets."""
    count: int
    """Number of targets."""
    masked: Tensor | None = None
    """The masked-LM part of ``sum``, if ``sum`` has other parts; no gradient. This is the reported loss."""
    embeddings: Tensor | None = None
    """[B, D] of unit length, with gradient: the embeddings of the sequences, if requested."""


def to_export_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Detach, move to the CPU, make float32 and contiguous: the form that safetensors stores."""
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in state.items()}


def special_entries(special: SpecialIds) -> dict[str, int]:
    """The special ids for ``config.json``; the defaults of transformers may exceed a small vocabulary."""
    return {
        "pad_token_id": special.pad,
        "cls_token_id": special.cls,
        "bos_token_id": special.cls,
        "sep_token_id": special.sep,
        "eos_token_id": special.sep,
    }
