"""Optimizers, as configurations that build torch's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from daybreak.base.plain import Component


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Component):
    lr: float
    """Peak learning rate; the schedule multiplies it."""

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer over the model's parameters; each group's ``lr`` holds the peak."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerConfig):
    """AdamW (arXiv 1711.05101), torch's fused kernel. Matrices decay; embeddings, norms and biases do not."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-8
    weight_decay: float = 0.05

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        matrices = [p for p in model.parameters() if p.dim() > 1 and id(p) not in embeddings]
        others = [p for p in model.parameters() if p.dim() <= 1 or id(p) in embeddings]
        groups = [
            {"params": matrices, "weight_decay": self.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self.lr, betas=(self.beta1, self.beta2), eps=self.epsilon, fused=True)
