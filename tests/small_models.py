"""Helpers for the tests of every architecture."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def disturb(model: nn.Module) -> None:
    """Move norms away from 1 and biases away from 0, so that an error with them changes the output."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() <= 1:
                parameter += 0.3 * torch.randn_like(parameter)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 1e-4 * max(1.0, theirs.abs().max().item() / 10)
