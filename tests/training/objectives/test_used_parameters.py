"""No parameter is ever without a gradient: DistributedDataParallel waits for all of them."""

from __future__ import annotations

import pytest
import torch

from daybreak.core.batch import Batch
from daybreak.recipe import load_recipe


@pytest.mark.parametrize(
    "name", "tiny ladder-01 ladder-13 bert-2018 bert-8gb bert-gpu crammed crammed-legacy scibert".split()
)
def test_every_parameter_has_a_part_in_every_loss(name: str) -> None:
    """Or a rank would wait for gradients that never come."""
    recipe = load_recipe(name, size="" if name == "tiny" else "tiny")
    torch.manual_seed(1)
    built = recipe.model.build(400)
    ids = torch.randint(5, 400, (2, 32), generator=torch.Generator().manual_seed(2))
    halves = (torch.arange(32) >= 16).long().expand(2, 32)
    batch = Batch(
        ids=ids, types=halves, follows=torch.tensor([0, 1]), continues=torch.zeros_like(ids, dtype=torch.bool)
    )
    for at in (0.0, 0.999):
        recipe.objective.loss(built, batch, seed=1, position=0, progress=at, per_row=1.0).sum.backward()
        without = [name for name, parameter in built.named_parameters() if parameter.grad is None]
        assert without == []
        built.zero_grad()
