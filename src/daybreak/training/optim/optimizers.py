"""Optimizers, as configurations that build torch's own or BERT's."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from daybreak.core.errors import UserError
from daybreak.core.serialization import Component
from daybreak.training.optim.bert_adam import BertAdamOptimizer

ROLES = ("matrices", "embeddings", "norms", "biases", "scalars")
MEANS = ("momentum", "beta1", "beta2")
"""Weights of running means, under these names in every optimizer that has them."""
NOT_NEGATIVE = ("weight_decay", "epsilon", "adam_lr")


def roles(model: nn.Module) -> dict[str, str]:
    """Return what each parameter is for, under its name in ``model.named_parameters()``.

    embeddings: tables of nn.Embedding, a decoder tied to one included; norms: their weights; biases: all of them, of
    norms too; scalars: single numbers; matrices: everything else. By the module that owns it, not by its name.
    """
    found: dict[int, str] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding):
                found[id(parameter)] = "embeddings"
            elif name == "bias":
                found.setdefault(id(parameter), "biases")
            elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
                found.setdefault(id(parameter), "norms")
            elif parameter.numel() == 1:
                found.setdefault(id(parameter), "scalars")
    return {name: found.get(id(parameter), "matrices") for name, parameter in model.named_parameters()}


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

    @abstractmethod
    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer over the model's parameters; each group's ``lr`` holds the peak."""

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
