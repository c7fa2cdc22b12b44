"""The update rule of the original BERT, which torch does not have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the running means of gradients and of their squares, torch's own."""


class BertAdamOptimizer(torch.optim.Optimizer):
    """Adam without bias correction, with decay beside the gradient's moments (arXiv 1810.04805, its published code).

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  p <- p - lr (m / (sqrt(v) + eps) + decay p)

    Its early steps are larger than Adam's: after one step m / sqrt(v) is (1 - b1) / sqrt(1 - b2), 3.2 for the defaults,
    which the warm-up hides. No step is counted, so the moments are all of its state.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if moved:
                self._move(moved, group)

    def _move(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        first, second = ([self._moment(parameter, name) for parameter in parameters] for name in MOMENTS)
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(first, gradients, 1.0 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1.0 - beta2)
        size = torch._foreach_sqrt(second)
        torch._foreach_add_(size, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(parameters, first, size, -group["lr"])

    def _moment(self, parameter: Tensor, name: str) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state[name]
