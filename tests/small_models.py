"""Small models, and what tests of every architecture share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

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


@contextmanager
def copied_code(place: Path) -> Iterator[Path]:
    """Let transformers copy the code of models to ``place`` before it runs it, instead of to the user's cache.

    A process has one such place in its life, so the package of an earlier one is out of the way meanwhile, and that of
    this one goes at the end.
    """
    from transformers import dynamic_module_utils

    paths = [path for path in sys.path if not (Path(path) / "transformers_modules").is_dir()]
    earlier = _take_copied_code()
    with patch.object(sys, "path", paths), patch.object(dynamic_module_utils, "HF_MODULES_CACHE", str(place)):
        yield place
    _take_copied_code()
    sys.modules.update(earlier)


def _take_copied_code() -> dict[str, Any]:
    """Remove the modules of copied code, and return them."""
    names = [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]
    return {name: sys.modules.pop(name) for name in names}
