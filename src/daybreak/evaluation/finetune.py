"""The second and last training loop: a few epochs over labelled rows, and predictions in row order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from daybreak.evaluation.batches import EncodedRows, Padding, prediction_batches, training_batches
from daybreak.evaluation.kind import Kind
from daybreak.evaluation.protocols import Protocol, Setting

Show = Callable[[float, float], None]
"""Called after each step with the share of the work that is done and the loss of that batch."""


def rate_share(step: int, steps: int, warmup: int) -> float:
    """Share of the peak learning rate at ``step`` (from 0): linear up over ``warmup`` steps, linear down to 0."""
    return (step + 1) / warmup if step < warmup else (steps - step) / max(1, steps - warmup)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; norms and biases, which have one dimension, do not."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def set_dropout(model: nn.Module, share: float) -> None:
    """Give every dropout layer this share. A model that was built without some of them stays without."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share


class Batches:
    """Batches of one part of a task as one model takes them: a BERT tokenizer makes token types, not all know them."""

    def __init__(self, model: Any, kind: Kind, padding: Padding, rows: EncodedRows):
        taken = inspect.signature(model.forward).parameters
        features = {name: values for name, values in rows.features.items() if name in taken}
        self._kind, self._padding = kind, padding
        self._rows = EncodedRows(features, rows.targets, rows.lengths, rows.rows, rows.notes)
        self._device = next(model.parameters()).device

    def inputs(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        found = self._kind.collate(self._padding, self._rows, indices)
        return {name: value.to(self._device) for name, value in found.items()}

    def targets(self, indices: Sequence[int], width: int) -> torch.Tensor:
        return self._kind.targets(self._rows, indices, width).to(self._device)


def fine_tune(
    model: Any,
    kind: Kind,
    padding: Padding,
    rows: EncodedRows,
    protocol: Protocol,
    setting: Setting,
    seed: int,
    show: Show,
) -> float:
    """Train ``model`` in place with AdamW; ``seed`` draws the order of the batches.

    Returns:
        The mean loss of the last epoch; not finite when training diverged.
    """
    batches = Batches(model, kind, padding, rows)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, protocol.weight_decay), lr=setting.rate, betas=(0.9, 0.999), eps=1e-8, fused=True
    )
    generator = torch.Generator().manual_seed(seed)
    per_epoch = len(training_batches(rows.lengths, setting.batch, torch.Generator()))
    steps = setting.epochs * per_epoch
    warmup = max(1, round(protocol.warmup * steps))
    step, losses = 0, [0.0]
    if protocol.dropout is not None:
        set_dropout(model, protocol.dropout)
    model.train()
    for _ in range(setting.epochs):
        losses = []
        for indices in training_batches(rows.lengths, setting.batch, generator):
            for group in optimizer.param_groups:
                group["lr"] = setting.rate * rate_share(step, steps, warmup)
            inputs = batches.inputs(indices)
            loss = kind.loss(model(**inputs), batches.targets(indices, inputs["input_ids"].shape[-1]))
            optimizer.zero_grad()
            loss.backward()
            if protocol.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), protocol.clip)
            optimizer.step()
            step += 1
            losses.append(loss.item())
            show(step / steps, losses[-1])
    return float(np.mean(losses))


@torch.inference_mode()
def predict(model: Any, kind: Kind, padding: Padding, rows: EncodedRows) -> list[np.ndarray]:
    """What the model says of each sample, in the order of ``rows``."""
    model.eval()
    batches = Batches(model, kind, padding, rows)
    found: list[np.ndarray] = [np.empty(0)] * len(rows)
    for indices in prediction_batches(rows.lengths):
        for index, answer in zip(indices, kind.answers(model(**batches.inputs(indices)))):
            found[index] = answer
    return found
