"""The second and last training loop: a few epochs over labelled rows, in float32, and predictions in row order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import expit
from torch import nn
from torch.nn import functional

from daybreak.evaluation.batches import EncodedRows, collate, prediction_batches, training_batches
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


def batch_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error where ``targets`` are numbers (one logit a row), cross-entropy where they are class ids.

    Args:
        logits: [rows, outputs].
        targets: float32[rows] or int64[rows].
    """
    if targets.is_floating_point():
        # squeeze(-1), not squeeze(): a last batch of one row must stay a batch.
        return functional.mse_loss(logits.squeeze(-1), targets)
    return functional.cross_entropy(logits, targets)


def set_dropout(model: nn.Module, share: float) -> None:
    """Give every dropout layer this share. A model that was built without some of them stays without."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = share


def _inputs(model: Any, tokenizer: Any, rows: EncodedRows, indices: Sequence[int]) -> dict[str, torch.Tensor]:
    """What the model takes of these rows: a BERT tokenizer makes token types, and not every encoder knows them."""
    device = next(model.parameters()).device
    taken = inspect.signature(model.forward).parameters
    features = collate(tokenizer, rows, indices)
    return {name: value.to(device) for name, value in features.items() if name in taken}


def fine_tune(
    model: Any, tokenizer: Any, rows: EncodedRows, protocol: Protocol, setting: Setting, seed: int, show: Show
) -> float:
    """Train ``model`` in place with AdamW; ``seed`` draws the order of the batches.

    Returns:
        The mean loss of the last epoch; not finite when training diverged.
    """
    rate = setting.rate
    targets = torch.tensor(rows.targets, device=next(model.parameters()).device)
    optimizer = torch.optim.AdamW(parameter_groups(model, protocol.weight_decay), lr=rate, betas=(0.9, 0.999), eps=1e-8)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = len(training_batches(rows.lengths, protocol.batch, torch.Generator()))
    steps = setting.epochs * per_epoch
    warmup = max(1, round(protocol.warmup * steps))
    step, losses = 0, [0.0]
    if protocol.dropout is not None:
        set_dropout(model, protocol.dropout)
    model.train()
    for _ in range(setting.epochs):
        losses = []
        for indices in training_batches(rows.lengths, protocol.batch, generator):
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_share(step, steps, warmup)
            loss = batch_loss(model(**_inputs(model, tokenizer, rows, indices)).logits, targets[indices])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), protocol.clip)
            optimizer.step()
            step += 1
            losses.append(loss.item())
            show(step / steps, losses[-1])
    return float(np.mean(losses))


@torch.inference_mode()
def predict(model: Any, tokenizer: Any, rows: EncodedRows) -> np.ndarray:
    """Logits float32[rows, outputs] in the order of ``rows``."""
    model.eval()
    found = np.empty((len(rows), model.config.num_labels), dtype=np.float32)
    for indices in prediction_batches(rows.lengths):
        found[indices] = model(**_inputs(model, tokenizer, rows, indices)).logits.float().cpu().numpy()
    return found


def answers(logits: np.ndarray, kind: str) -> list[float]:
    """Class ids, or the numbers themselves for regression; one a row."""
    return (logits[:, 0] if kind == "regression" else logits.argmax(axis=1)).tolist()


def chances(logits: np.ndarray) -> list[float] | None:
    """The probability of label id 1, one a row, where there are two labels; None elsewhere.

    In float64: in float32 sure answers would all become 1 and lose the order that the area under the curve is about.
    """
    if logits.shape[1] != 2:
        return None
    return expit(logits[:, 1].astype(np.float64) - logits[:, 0]).tolist()
