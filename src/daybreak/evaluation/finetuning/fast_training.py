"""What makes a fine-tuning fast: a working copy in half precision, and only the used part of the embedding table.

Autocast converts each weight at each use. A working copy is converted once a step: the copy computes the gradients in
bfloat16, and the model itself, whose weights the optimizer changes, stays in float32.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from daybreak.evaluation.finetuning.heads import PooledClassifier
from daybreak.evaluation.protocols.protocol import Protocol
from daybreak.evaluation.tasks.batches import EncodedRows
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.training.hardware.probe import precisions


def fast_precision(model: Any, kind: Kind, device: torch.device) -> str:
    """``bfloat16`` where this device multiplies matrices faster in it and the model allows it, else ``float32``.

    A number that is judged by its rank wants a head in float32 (``Kind.exact``), which only Daybreak's own heads keep.
    """
    own_head = isinstance(model, PooledClassifier)
    encoder = getattr(model, model.base_model_prefix)
    if (kind.exact and not own_head) or not hasattr(encoder, "set_attn_implementation"):
        return "float32"
    return "bfloat16" if "bfloat16" in precisions(device) else "float32"


class Direct:
    """The model computes itself, in the type of its weights."""

    def __init__(self, model: Any):
        self.model = model

    def gather(self) -> None:
        """Bring the gradients to the model's parameters."""

    def spread(self) -> None:
        """Bring the changed weights to what computes."""


class WorkingCopy(Direct):
    """A copy in bfloat16 computes; a head of Daybreak's own stays in float32.

    Attention uses plain matrix products ("eager"): the backward pass of torch's fused attention is slow in half
    precision on processors.
    """

    def __init__(self, model: Any):
        self._master = model
        self.model = copy.deepcopy(model)
        encoder = getattr(self.model, model.base_model_prefix)
        encoder.set_attn_implementation("eager")
        (encoder if isinstance(model, PooledClassifier) else self.model).bfloat16()
        # Both lists run in the same order, and a weight that is shared appears once in each.
        self._pairs = list(zip(model.parameters(), self.model.parameters(), strict=True))

    def gather(self) -> None:
        for weight, worked in self._pairs:
            weight.grad = None if worked.grad is None else worked.grad.float()
            worked.grad = None

    @torch.no_grad()
    def spread(self) -> None:
        torch._foreach_copy_([worked for _, worked in self._pairs], [weight for weight, _ in self._pairs])


ID_FEATURES = ("input_ids", "first_ids", "second_ids")
"""The inputs that hold token ids."""


def shrinks(model: Any, protocol: Protocol) -> bool:
    """Whether ``UsedRows`` fits: stock heads may look for special tokens by their ids, and a frozen table is free."""
    return isinstance(model, PooledClassifier) and not protocol.frozen


class UsedRows:
    """A model whose embedding table holds only the rows of the tokens that occur in the training samples.

    The gradient of every other row is zero, so AdamW does nothing to it but decay. ``restore`` puts the whole table
    back and applies that decay: the model ends as if the whole table had been trained, up to the order of sums.
    """

    def __init__(self, model: Any, rows: EncodedRows):
        self._table: nn.Embedding = getattr(model, model.base_model_prefix).get_input_embeddings()
        self._whole = self._table.weight.detach()
        present = {token for name in ID_FEATURES for ids in rows.features.get(name, ()) for token in ids}
        # Ids up to that of padding stay as they are: some encoders count positions from it.
        self._kept = sorted(present | set(range((self._table.padding_idx or 0) + 1)))
        place = {token: number for number, token in enumerate(self._kept)}
        self.rows = replace(
            rows,
            features={
                name: [[place[token] for token in ids] for ids in values] if name in ID_FEATURES else values
                for name, values in rows.features.items()
            },
        )
        self._table.weight = nn.Parameter(self._whole[self._kept].clone())

    def restore(self, decay: float) -> None:
        """Put the whole table back.

        Args:
            decay: what AdamW's decay has left of a weight without gradients, in [0, 1].
        """
        whole = self._whole * decay
        whole[self._kept] = self._table.weight.detach()
        self._table.weight = nn.Parameter(whole)
