"""Small models, and what tests of every architecture share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from daybreak.recipe import Recipe, load_recipe


def small_recipe(name: str = "tiny", **changes: Any) -> Recipe:
    """A recipe with the shape that the tests of the command line use, so small that a step takes milliseconds."""
    found = load_recipe(name)
    model = replace(found.model, layers=1, hidden_size=32, heads=2, intermediate_size=32)  # type: ignore[call-arg]
    tokenizer = replace(found.tokenizer, vocabulary=400)  # type: ignore[call-arg]
    changes = {"length": 32, "batch": 8, "precision": "float32", **changes}
    return replace(found, tokenizer=tokenizer, model=model, **changes)


def disturb(model: nn.Module) -> None:
    """Move norms away from 1 and biases away from 0, so that an error with them changes the output."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() <= 1:
                parameter += 0.3 * torch.randn_like(parameter)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, theirs.abs().max().item() / 10)
