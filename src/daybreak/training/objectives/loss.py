"""Cross-entropy with a large decoder, computed in chunks so that the full logits are never stored.

N targets, D hidden size, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CHUNK = 512
CPU_LOGITS, CPU_CHUNK = 1 << 22, 64
"""On a CPU a chunk has at most CHUNK targets and CPU_LOGITS logits (16 MiB in float32), but at least CPU_CHUNK targets.
Larger buffers, or new ones for each chunk, come as fresh pages from the system every time: their page faults cost as
much as the softmax."""
GPU_LOGITS, GPU_CHUNK = 1 << 27, 8192
"""On a GPU a chunk has at most GPU_CHUNK targets and GPU_LOGITS logits (256 MiB in half precision beside 512 MiB of
float32, and as much again for the softmax in bfloat16), but at least CHUNK targets. Every chunk adds a whole gradient
of the decoder, so few large ones are faster."""


def chunk(device: torch.device, vocabulary: int) -> int:
    """Number of targets per chunk."""
    if device.type == "cpu":
        return max(CPU_CHUNK, min(CHUNK, CPU_LOGITS // vocabulary))
    return max(CHUNK, min(GPU_CHUNK, GPU_LOGITS // vocabulary))


Compiled = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Compiled code of ``loss_and_gradient``."""


class Buffers(threading.local):
    """Memory of the loss that is used again in the next step on a CPU.

    There, fresh pages cost as much time as the softmax. The allocator of a GPU does the same by itself.
    """

    def __init__(self) -> None:
        self._key: tuple[torch.Size, torch.dtype] | None = None
        self._kept: tuple[Tensor, Tensor, Tensor] | None = None

    def take(self, rows: int, weight: Tensor, product: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return uninitialized logits [rows, V] in ``product``, probabilities [rows, V] in float32, and a gradient of
        ``weight`` [V, D] in ``product``; they are valid until the next call."""
        # Never keep meta, fake or inference-mode tensors: a later training step cannot use them.
        if type(weight.data) is not Tensor or weight.device.type != "cpu" or torch.is_inference_mode_enabled():
            return self._made(rows, weight, product)
        key = (weight.shape, product)
        if self._kept is None or self._key != key or len(self._kept[0]) < rows:
            self._key, self._kept = key, self._made(rows, weight, product)
        logits, probabilities, gradient = self._kept
        return logits[:rows], probabilities[:rows], gradient

    def _made(self, rows: int, weight: Tensor, product: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        size, device = (rows, len(weight)), weight.device
        # In float32 the products of all chunks are added to the gradient itself.
        low = tuple(weight.shape) if product != torch.float32 else (0,)
        return (
            torch.empty(size, dtype=product, device=device),
            torch.empty(size, device=device),
            torch.empty(low, dtype=product, device=device),
        )


BUFFERS = Buffers()


def loss_and_gradient(logits: Tensor, answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summed cross-entropy of a chunk, its gradient with regard to the logits, and the sum of that over the targets.

    A compiler makes two passes over the logits of it; uncompiled, ``LinearCrossEntropy`` needs fewer.

    Args:
        logits: [N, V].
        answers: int64 [N, 1].

    Returns:
        Scalar float32, [N, V] in the dtype of ``logits``, [V] float32.
    """
    exact = logits.float()
    top = exact.amax(dim=1, keepdim=True)
    powers = (exact - top).exp()
    total = powers.sum(dim=1, keepdim=True)
    loss = (top + total.log() - exact.gather(1, answers)).sum()
    is_answer = torch.arange(logits.shape[1], device=logits.device) == answers
    gradient = powers / total - is_answer.float()
    return loss, gradient.to(logits.dtype), gradient.sum(dim=0)


def _in_place(logits: Tensor, answers: Tensor, probabilities: Tensor, *, biased: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What ``loss_and_gradient`` returns, uncompiled; ``logits`` and ``probabilities`` [N, V] are overwritten.

    Args:
        biased: whether the third result is needed.
    """
    top, picked = logits.amax(dim=1, keepdim=True).float(), logits.gather(1, answers).float()
    # One pass over float16 logits on a GPU; torch copies others to float32 first. The largest probability gives the
    # sum of all exponentials.
    gradient = torch.softmax(logits, dim=1, dtype=torch.float32, out=probabilities)
    loss = (top - gradient.amax(dim=1, keepdim=True).log() - picked).sum()
    gradient.scatter_add_(1, answers, torch.full_like(answers, -1, dtype=gradient.dtype))
    bias_slope = gradient.sum(dim=0) if biased else gradient[0]
    return loss, gradient if logits.dtype == torch.float32 else logits.copy_(gradient), bias_slope


class LinearCrossEntropy(torch.autograd.Function):
    """Sum over targets of -log softmax(features @ weight.T + bias)[target]; the forward pass also computes the
    gradients.

    The logits of a chunk become probabilities, and these in place their gradient; all chunks share the two buffers (the
    idea of Cut Your Losses, arXiv 2411.09009, with plain matrix products). Under autocast the products run in its
    dtype; the softmax and all sums are float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        compiled: Compiled | None = None,
    ) -> Tensor:
        """features [N, D], weight [V, D], bias [V] or None, targets int64 [N] -> scalar float32, nats.

        Args:
            compiled: ``loss_and_gradient``, compiled; used for whole chunks in half precision.
        """
        device = features.device
        product = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else torch.float32
        with torch.autocast(device.type, enabled=False):
            low_weight = weight.to(product)
            low_bias = None if bias is None else bias.to(product)
            features_gradient = torch.empty_like(features, dtype=product)
            weight_gradient = torch.zeros_like(weight)
            bias_gradient = None if bias is None else torch.zeros_like(bias)
            total = torch.zeros((), dtype=torch.float32, device=device)
            rows = chunk(device, len(weight))
            logit_buffer, probabilities, weight_buffer = BUFFERS.take(min(rows, len(targets)), weight, product)
            for start in range(0, len(targets), rows):
                part, answers = features[start : start + rows].to(product), targets[start : start + rows, None]
                logits = logit_buffer[: len(part)]
                if low_bias is None:
                    torch.mm(part, low_weight.T, out=logits)
                else:
                    torch.addmm(low_bias, part, low_weight.T, out=logits)
                if compiled is not None and len(part) == rows and product != torch.float32:
                    loss, slope, bias_slope = compiled(logits, answers)
                else:
                    used = probabilities[: len(part)]
                    loss, slope, bias_slope = _in_place(logits, answers, used, biased=bias is not None)
                total += loss
                if bias_gradient is not None:
                    bias_gradient += bias_slope
                torch.mm(slope, low_weight, out=features_gradient[start : start + rows])
                if product == weight_gradient.dtype:
                    weight_gradient.addmm_(slope.T, part)
                else:
                    weight_gradient += torch.mm(slope.T, part, out=weight_buffer)
        ctx.save_for_backward(features_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        features_gradient, weight_gradient, bias_gradient = ctx.saved_tensors
        bias_slope = None if bias_gradient is None else bias_gradient * gradient
        return features_gradient.float() * gradient, weight_gradient * gradient, bias_slope, None, None
