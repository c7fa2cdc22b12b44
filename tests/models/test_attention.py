"""Attention by matrix products: on a processor in half precision, against torch's own in float32; and on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from daybreak.models import layers
from daybreak.models.layers import attend_heads, rotary_table, rotate, visibility_mask

ROWS, HEADS, LENGTH, CHANNELS = 3, 2, 24, 16
CPU = torch.device("cpu")


def heads(dtype: torch.dtype, asked: int = LENGTH) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as the blocks hand them over: views of one tensor, the heads in front."""
    torch.manual_seed(0)
    whole = torch.randn(ROWS, LENGTH, 3, HEADS, CHANNELS).to(dtype)
    query, key, value = (part.transpose(1, 2).detach() for part in whole.unbind(2))
    return query[:, :, :asked].requires_grad_(), key.requires_grad_(), value.requires_grad_()


def masks() -> dict[str, tuple[Tensor | None, bool, int]]:
    positions = torch.randint(LENGTH, (ROWS, 5), generator=torch.Generator().manual_seed(1))
    attention_mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    attention_mask[1, 15:] = False

    def mask(**settings: object) -> Tensor | None:
        usual = {"causal": False, "window": None, "attention_mask": None, "positions": None}
        return visibility_mask(LENGTH, device=CPU, **{**usual, **settings})  # type: ignore[arg-type]

    return {
        "all": (None, False, LENGTH),
        "causal": (None, True, LENGTH),
        "padding": (mask(attention_mask=attention_mask), False, LENGTH),
        "window": (mask(window=4), False, LENGTH),
        "some positions, causal": (mask(causal=True, positions=positions), True, 5),
    }


@pytest.mark.parametrize("kind", masks())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_give_what_fused_attention_gives(kind: str, dtype: torch.dtype) -> None:
    mask, causal, asked = masks()[kind]
    low = heads(dtype, asked)
    exact = tuple(part.detach().float().requires_grad_() for part in low)
    assert layers._by_products(low[2], mask, 0.0) and not layers._by_products(exact[2], mask, 0.0)
    found = attend_heads(*low, mask, causal=causal)
    wanted = F.scaled_dot_product_attention(*exact, attn_mask=mask, is_causal=causal and mask is None)
    wanted = wanted.transpose(1, 2).flatten(2)
    assert found.dtype == dtype and found.shape == (ROWS, asked, HEADS * CHANNELS)
    slope = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2))
    found.backward(slope.to(dtype))
    wanted.backward(slope.to(dtype).float())
    for ours, theirs in zip((found, *(part.grad for part in low)), (wanted, *(part.grad for part in exact))):
        assert ours is not None and theirs is not None
        assert torch.allclose(ours.float(), theirs, rtol=0.02, atol=0.02 * theirs.detach().abs().max().item())


def test_under_autocast_the_products_stay_low() -> None:
    query, key, value = heads(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = attend_heads(query, key, F.linear(value, torch.eye(CHANNELS)), None, causal=False)
    assert found.dtype == torch.bfloat16


def test_long_rows_and_dropout_take_the_fused_way() -> None:
    value = torch.zeros(1, 1, layers.LONGEST_PRODUCT + 1, 2, dtype=torch.bfloat16)
    assert not layers._by_products(value, None, 0.0) and not layers._by_products(value[:, :, 1:], None, 0.1)
    assert layers._by_products(value[:, :, 1:], None, 0.0)


@pytest.mark.parametrize(("rows", "length", "dtype", "masked", "dropout", "products"), [
    (32, 128, "bfloat16", True, 0.0, True),
    (32, 128, "bfloat16", False, 0.0, False),  # FlashAttention: one block of 128 keys
    (32, 128, "float16", False, 0.0, True),
    (32, 65, "float32", False, 0.0, True),
    (128, 128, "float16", True, 0.0, False),  # enough heads: one block of keys after the other
    (32, 64, "float16", True, 0.0, False),  # one block
    (32, 129, "float16", True, 0.0, False),  # always split, whatever is done here
    (32, 128, "float16", True, 0.1, False),
])  # fmt: skip
def test_a_gpu_sums_in_a_fixed_order(
    rows: int, length: int, dtype: str, masked: bool, dropout: float, products: bool
) -> None:
    """Torch's memory-efficient attention does not if it splits the keys, of which a block has 64."""
    with FakeTensorMode():
        value = torch.empty(rows, 2, length, 64, device="cuda", dtype=getattr(torch, dtype))
        mask = torch.empty(rows, 1, 19, length, device="cuda", dtype=torch.bool) if masked else None
        assert layers._by_products(value, mask, dropout) is products


def test_rotation_keeps_the_type_that_it_gets() -> None:
    cosine, sine = rotary_table(LENGTH, CHANNELS, 10_000.0, CPU)
    states = torch.randn(ROWS, LENGTH, CHANNELS)
    exact, low = rotate(states, cosine, sine), rotate(states.bfloat16(), cosine, sine)
    assert exact.dtype == torch.float32 and low.dtype == torch.bfloat16
    assert torch.allclose(low.float(), exact, atol=0.03)
