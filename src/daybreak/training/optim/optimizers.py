"""Optimizer configurations, which build torch's optimizers or that of the original BERT."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from daybreak.core.errors import UserError
from daybreak.core.serialization import Component

ROLES = ("matrices", "embeddings", "norms", "biases", "scalars")
MEANS = ("momentum", "beta1", "beta2")
"""Weights of running means, under these names in every optimizer that has them."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of the running means of gradients and of their squares, as in torch."""
NOT_NEGATIVE = ("weight_decay", "adam_lr")


def roles(model: nn.Module) -> dict[str, str]:
    """Return the role of each parameter, by its name in ``model.named_parameters()``.

    embeddings: tables of nn.Embedding, including a tied decoder; norms: their weights; biases: all of them, including
    those of norms; scalars: single numbers; matrices: everything else. The module that owns a parameter decides, not
    its name.
    """
    role_of: dict[int, str] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding):
                role_of[id(parameter)] = "embeddings"
            elif name == "bias":
                role_of.setdefault(id(parameter), "biases")
            elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                role_of.setdefault(id(parameter), "norms")
            elif parameter.numel() == 1:
                role_of.setdefault(id(parameter), "scalars")
    return {name: role_of.get(id(parameter), "matrices") for name, parameter in model.named_parameters()}


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Component):
    """An optimizer before it is built: its numbers, and which parameters decay."""

    lr: float
    """Peak learning rate; the schedule multiplies it."""
    weight_decay: float = 0.01
    decay: tuple[str, ...] = ("matrices",)
    """Roles of the parameters that decay: matrices, embeddings, norms, biases, scalars."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.decay) - set(ROLES))
        if unknown:
            raise UserError(f"--optimizer.decay cannot name '{unknown[0]}'.", f"Use some of: {', '.join(ROLES)}.")
        for field in fields(self):
            value, flag = getattr(self, field.name), f"--optimizer.{field.name.replace('_', '-')}"
            if field.name in MEANS and not 0 <= value < 1:
                raise UserError(f"{flag} is {value:g}.", "Give a number from 0 to below 1.")
            if field.name in NOT_NEGATIVE and not value >= 0:
                raise UserError(f"{flag} is {value:g}.", "Give a number that is not negative.")
            if field.name == "epsilon" and not value > 0:  # with 0, a parameter without a gradient becomes 0 / 0
                raise UserError(f"{flag} is {value:g}.", "Give a small number above 0, such as 1e-8.")

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer over the model's parameters; each group's ``lr`` holds the peak."""

    def at_rate(self, factor: float) -> Self:
        """Return the same optimizer with ``factor`` times its learning rates."""
        return replace(self, lr=self.lr * factor)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return torch's parameter groups: those that decay, then the others; an empty one is left out."""
        role = roles(model)
        groups = []
        for decays in (True, False):
            parameters = [p for name, p in model.named_parameters() if (role[name] in self.decay) is decays]
            if parameters:
                groups.append({"params": parameters, "weight_decay": self.weight_decay if decays else 0.0})
        return groups


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerConfig):
    """AdamW (arXiv 1711.05101), torch's fused kernel."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.05

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(self.groups(model), lr=self.lr, betas=betas, eps=self.epsilon, fused=True)


@dataclass(frozen=True, kw_only=True)
class Adam(OptimizerConfig):
    """Adam (arXiv 1412.6980), torch's fused kernel; the decay is added to the gradient, an L2 penalty."""

    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.Adam(self.groups(model), lr=self.lr, betas=betas, eps=self.epsilon, fused=True)


class BertAdamOptimizer(torch.optim.Optimizer):
    """Adam without bias correction and with decoupled weight decay (arXiv 1810.04805, its published code).

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  p <- p - lr (m / (sqrt(v) + eps) + decay p)

    Its early steps are larger than Adam's: after one step m / sqrt(v) is (1 - b1) / sqrt(1 - b2), 3.2 for the defaults;
    the warm-up compensates for this. There is no step count, so the moments are its whole state.
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
        """Update every parameter that has a gradient."""
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


@dataclass(frozen=True, kw_only=True)
class BertAdam(OptimizerConfig):
    """The optimizer of the original BERT: Adam without bias correction, with decoupled decay."""

    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    decay: tuple[str, ...] = ("matrices", "embeddings")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return BertAdamOptimizer(self.groups(model), lr=self.lr, betas=betas, eps=self.epsilon)
