"""Faster fine-tuning on a CPU: a bfloat16 copy of the model, and only the used rows of the embedding table.

Autocast converts each weight at each use. The copy is converted once per step and computes the gradients in bfloat16;
the optimizer updates the float32 model.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from daybreak.evaluation.finetuning.heads import PooledClassifier
from daybreak.evaluation.protocols.protocol import Protocol
from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.task_kind import Kind
from daybreak.training.hardware.probe import faster_precision


def fast_precision(model: Any, kind: Kind, device: torch.device) -> str:
    """Return ``bfloat16`` if this device multiplies matrices faster in it and the model allows it, else ``float32``.

    Regression needs a float32 head (``Kind.exact``), which only Daybreak's own heads keep.
    """
    own_head = isinstance(model, PooledClassifier)
    encoder = getattr(model, model.base_model_prefix)
    if (kind.exact and not own_head) or not hasattr(encoder, "set_attn_implementation"):
        return "float32"
    return faster_precision(device)


class Direct:
    """Train the model directly."""

    def __init__(self, model: Any):
        self.model = model

    def gather(self) -> None:
        """Copy the gradients to the float32 model."""

    def spread(self) -> None:
        """Copy the updated weights to the working copy."""


class WorkingCopy(Direct):
    """Compute with a bfloat16 copy of the model; Daybreak's own heads stay in float32.

    Attention is "eager", because the backward pass of torch's fused attention is slow in half precision on CPUs.
    """

    def __init__(self, model: Any):
        self._master = model
        self.model = copy.deepcopy(model)
        encoder = getattr(self.model, model.base_model_prefix)
        encoder.set_attn_implementation("eager")
        (encoder if isinstance(model, PooledClassifier) else self.model).bfloat16()
        for worked, own in zip(self.model.buffers(), model.buffers(), strict=True):
            worked.data = own.detach().clone()  # frequencies of rotary positions, which are not exact in bfloat16
        # Both iterators have the same order and list a shared weight once.
        self._pairs = list(zip(model.parameters(), self.model.parameters(), strict=True))

    def gather(self) -> None:
        for weight, worked in self._pairs:
            weight.grad = None if worked.grad is None else worked.grad.float()
            worked.grad = None

    @torch.no_grad()
    def spread(self) -> None:
        torch._foreach_copy_([worked for _, worked in self._pairs], [weight for weight, _ in self._pairs])


def shrinks(model: Any, protocol: Protocol) -> bool:
    """Return whether ``UsedRows`` applies: not to stock heads, which may compare token ids, nor to a frozen encoder."""
    return isinstance(model, PooledClassifier) and not protocol.frozen


class UsedRows:
    """Reduce the embedding table of a model to the tokens of the training samples and the padding.

    AdamW only decays the other rows, whose gradients are zero. ``restore`` puts the whole table back and applies that
    decay, so the result equals training the whole table, up to the order of sums.
    """

    def __init__(self, model: Any, rows: EncodedRows, padding: Padding):
        self._table: nn.Embedding = getattr(model, model.base_model_prefix).get_input_embeddings()
        self._whole = self._table.weight.detach()
        filler = padding.values["input_ids"]
        present = {filler, *(token for ids in rows.features["input_ids"] for token in ids)}
        # Ids up to the padding id stay unchanged: some encoders derive positions from it.
        self._kept = sorted(present | set(range((self._table.padding_idx or 0) + 1)))
        place = {token: number for number, token in enumerate(self._kept)}
        ids = [[place[token] for token in ids] for ids in rows.features["input_ids"]]
        self.rows = replace(rows, features={**rows.features, "input_ids": ids})
        self.padding = replace(padding, values={**padding.values, "input_ids": place[filler]})
        self._table.weight = nn.Parameter(self._whole[self._kept].clone())

    def group(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the group of the optimizer that trains the table."""
        return next(group for group in optimizer.param_groups if any(w is self._table.weight for w in group["params"]))

    def restore(self, decay: float) -> None:
        """Put the whole table back.

        Args:
            decay: product of AdamW's decay factors, in [0, 1].
        """
        whole = self._whole * decay
        whole[self._kept] = self._table.weight.detach()
        self._table.weight = nn.Parameter(whole)
