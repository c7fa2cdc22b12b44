"""How much arithmetic a recipe asks for; nothing is allocated for it."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from daybreak.recipe import Recipe

TARGET_SHARE = 0.15
"""Share of a row's positions that is predicted, for counting arithmetic; recipes differ by a few hundredths."""
BACKWARD = 2
"""Products of the backward pass for each one of the forward pass."""


def flops_per_token(recipe: Recipe, vocabulary: int) -> int:
    """Floating-point operations of a training step for each token read, matrix products and attention only."""
    length = recipe.length
    with torch.device("meta"):
        model = recipe.model.build(vocabulary).eval()
        ids = torch.zeros(1, length, dtype=torch.int64)
        slots = torch.zeros(1, max(1, round(TARGET_SHARE * length)), dtype=torch.int64)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.logits(ids, slots)
    return (1 + BACKWARD) * counter.get_total_flops() // length
