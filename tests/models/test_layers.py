from __future__ import annotations

import pytest
import torch
from torch import nn

from daybreak.models.layers import halves


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]


@pytest.mark.parametrize("bias", [False, True])
def test_two_halves_are_those_of_one_product(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(6, 8, bias=bias), torch.randn(2, 5, 6)
    products = []
    linear.register_forward_hook(lambda *_: products.append(1))
    expected = halves(linear, x)
    assert torch.equal(torch.cat(expected, dim=-1), linear(x)) and len(products) == 2
    # In compiled code on a GPU each half is a product of its own.
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = halves(linear, x.as_subclass(OnGpu))
    assert len(products) == 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.as_subclass(torch.Tensor), other)
