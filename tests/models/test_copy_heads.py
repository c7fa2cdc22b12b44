"""The planted heads look where they should, and the new model uses a copy of the text at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from daybreak.models.layers import rotary_table, rotate
from daybreak.models.modern import ModernBert, ModernEncoder

SHAPE = ModernEncoder(layers=2, hidden_size=128, heads=2, intermediate_size=256, init_std=0.09, copy_heads=True)
WORDS, LENGTH, MASK = 1000, 50, 0


def planted(shape: ModernEncoder) -> ModernBert:
    torch.manual_seed(0)
    model = shape.build(WORDS)
    shape.plant(model)
    return model.eval()


def attention(model: ModernBert, layer: int, states: Tensor) -> Tensor:
    """The weights [heads, L, L] of one row of states, from the equations of rotary attention."""
    block, length = model.blocks[layer], states.shape[1]
    heads, channels = block.attention.heads, block.attention.channels
    qkv = block.attention.qkv(block.attention_norm(states)).view(1, length, 3, heads, channels)
    cosine, sine = rotary_table(length, channels, model.shape.global_rope_base, torch.device("cpu"))
    query, key = rotate(qkv[:, :, :2], cosine[:, None, None], sine[:, None, None]).unbind(2)
    scores: Tensor = torch.einsum("bihc,bjhc->bhij", query, key)[0] / channels**0.5
    return scores.softmax(-1)


@torch.no_grad()
def test_heads_of_the_first_layer_attend_to_the_neighbors() -> None:
    model = planted(SHAPE)
    ids = torch.randint(1, WORDS, (1, 100))
    previous, following = attention(model, 0, model.embedding_norm(model.embedding(ids)))
    assert previous.diagonal(-1).mean() > 0.5 and following.diagonal(1).mean() > 0.5
    plain = planted(replace(SHAPE, copy_heads=False))
    weights = attention(plain, 0, plain.embedding_norm(plain.embedding(ids)))
    assert max(weights[0].diagonal(-1).mean(), weights[1].diagonal(1).mean()) < 0.1


@torch.no_grad()
def loss_on_masked(model: ModernBert, copied: bool) -> float:
    """The mean loss on masked tokens of random text, before its copy or before other text."""
    torch.manual_seed(1)
    losses = []
    for _ in range(20):
        text, other = torch.randint(1, WORDS, (2, LENGTH))
        places = torch.arange(3, LENGTH - 3, 6)
        row = torch.cat([text.index_fill(0, places, MASK), text if copied else other])[None]
        logits = model.decoder(model.transform(model.states(row)))[0, places]
        losses.append(float(F.cross_entropy(logits, text[places])))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("changes", [{}, {"layers": 3}, {"hidden_size": 256, "heads": 4}, {"global_every": 2}])
def test_a_new_model_uses_a_copy_of_the_text(changes: dict[str, int]) -> None:
    gains = []
    for copy_heads in (True, False):
        model = planted(replace(SHAPE, **changes, copy_heads=copy_heads))
        gains.append(loss_on_masked(model, copied=False) - loss_on_masked(model, copied=True))
    assert gains[0] > 0.05 and abs(gains[1]) < 0.02


def test_a_seed_gives_the_same_weights_and_models_without_room_stay_as_they_are() -> None:
    one, two = planted(SHAPE), planted(SHAPE)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    for changes in ({"layers": 1}, {"heads": 1}, {"heads": 32}):
        shape = replace(SHAPE, **changes)
        plain = planted(replace(shape, copy_heads=False))
        assert SHAPE.plants_copy_heads and not shape.plants_copy_heads
        assert all(torch.equal(a, b) for a, b in zip(planted(shape).parameters(), plain.parameters())), changes
