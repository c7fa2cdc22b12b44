"""The second and last training loop: a few epochs over labelled rows, in float32, and predictions in row order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from daybreak.evaluation.batches import EncodedRows, collate, prediction_batches, training_batches
from daybreak.evaluation.protocols import Protocol

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


def fine_tune(model: Any, tokenizer: Any, rows: EncodedRows, protocol: Protocol, seed: int, show: Show) -> float:
    """Train ``model`` in place with AdamW; ``seed`` draws the order of the batches.

    Returns:
        The mean loss of the last epoch; not finite when training diverged.
    """
    device = next(model.parameters()).device
    targets = torch.tensor(rows.targets, device=device)
    rate = protocol.learning_rate(model.config.hidden_size)
    optimizer = torch.optim.AdamW(parameter_groups(model, protocol.weight_decay), lr=rate, betas=(0.9, 0.999), eps=1e-8)
    generator = torch.Generator().manual_seed(seed)
    per_epoch = len(training_batches(rows.lengths, protocol.batch, torch.Generator()))
    steps = protocol.epochs * per_epoch
    warmup = max(1, round(protocol.warmup * steps))
    step, losses = 0, [0.0]
    model.train()
    for _ in range(protocol.epochs):
        losses = []
        for indices in training_batches(rows.lengths, protocol.batch, generator):
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_share(step, steps, warmup)
            inputs = {name: value.to(device) for name, value in collate(tokenizer, rows, indices).items()}
            loss = batch_loss(model(**inputs).logits, targets[indices])
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
    device = next(model.parameters()).device
    model.eval()
    found = np.empty((len(rows), model.config.num_labels), dtype=np.float32)
    for indices in prediction_batches(rows.lengths):
        inputs = {name: value.to(device) for name, value in collate(tokenizer, rows, indices).items()}
        found[indices] = model(**inputs).logits.float().cpu().numpy()
    return found


def answers(logits: np.ndarray, kind: str) -> list[float]:
    """Class ids, or the numbers themselves for regression; one a row."""
    return (logits[:, 0] if kind == "regression" else logits.argmax(axis=1)).tolist()
