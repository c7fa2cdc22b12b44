"""Gradient checkpointing: the same loss and gradients to the last bit, for fewer bytes kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from daybreak.core.encoder import Encoder, EncoderConfig
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.modern import ModernEncoder

VOCABULARY, ROWS, LENGTH, ASKED = 101, 3, 40, 7

SHAPES = {
    "modern": ModernEncoder(layers=4, hidden_size=48, heads=4, intermediate_size=40, global_every=3, window=10),
    "bert": BertEncoder(layers=4, hidden_size=48, heads=4, intermediate_size=96, dropout=0.1, attention_dropout=0.1),
    "crammed": CrammedEncoder(layers=4, hidden_size=48, heads=4, intermediate_size=40, dropout=0.1),
}


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> EncoderConfig:
    return SHAPES[request.param]


def built(shape: EncoderConfig, *, gradient_checkpointing: bool) -> Encoder:
    torch.manual_seed(3)
    model = shape.build(VOCABULARY).train()
    model.gradient_checkpointing = gradient_checkpointing
    return model


def rows() -> tuple[Tensor, Tensor, Tensor]:
    """Ids, positions that are asked, and which are no padding: 40, 31 and 20 of the rows."""
    chance = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCABULARY, (ROWS, LENGTH), generator=chance)
    positions = torch.rand((ROWS, LENGTH), generator=chance).argsort(dim=1)[:, :ASKED].sort(dim=1).values
    return ids, positions, torch.arange(LENGTH)[None] < torch.tensor([[40], [31], [20]])


def learned(
    model: Encoder, positions: Tensor | None, attention_mask: Tensor | None, causal: bool
) -> tuple[Tensor, dict]:
    torch.manual_seed(11)  # dropout's
    loss = model.features(rows()[0], positions, causal=causal, attention_mask=attention_mask).square().sum()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


class Kept:
    """Counts the distinct bytes that autograd keeps for the way back."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage  # held, so that no other gets its address
        return tensor

    def bytes(self, model: Encoder) -> int:
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        return sum(storage.nbytes() for at, storage in self.storages.items() if at not in weights)


def kept(model: Encoder) -> int:
    counter = Kept()
    with torch.autograd.graph.saved_tensors_hooks(counter.pack, lambda tensor: tensor):
        model.features(rows()[0])
    return counter.bytes(model)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_loss_and_gradients_are_the_same_to_the_last_bit(
    shape: EncoderConfig, causal: bool, padded: bool, asked: bool
) -> None:
    _, positions, attention_mask = rows()
    how = (positions if asked else None, attention_mask if padded else None, causal)
    loss, gradients = learned(built(shape, gradient_checkpointing=False), *how)
    again, others = learned(built(shape, gradient_checkpointing=True), *how)
    assert torch.equal(loss, again)
    assert gradients.keys() == others.keys() and len(gradients) > 20
    for name, gradient in gradients.items():
        assert torch.equal(gradient, others[name]), name


def test_much_less_is_kept_for_the_way_back(shape: EncoderConfig) -> None:
    plain, saving = kept(built(shape, gradient_checkpointing=False)), kept(built(shape, gradient_checkpointing=True))
    stream = ROWS * LENGTH * 48 * 4
    assert saving < plain / 2
    # What enters each of the four blocks, and what stands before and after them (masks and rotary tables included).
    assert saving < 12 * stream


def test_blocks_run_again_only_while_training(shape: EncoderConfig) -> None:
    model = built(shape, gradient_checkpointing=True)
    calls = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda *_: calls.append(1))
    learned(model, None, None, False)
    assert len(calls) == 8
    calls.clear()
    with torch.no_grad():
        model.features(rows()[0])
    assert len(calls) == 4
    calls.clear()
    learned(model.eval(), None, None, False)
    assert len(calls) == 4


def test_stacked_matrices_are_counted(shape: EncoderConfig) -> None:
    model = built(shape, gradient_checkpointing=False)
    parts = {name: model.parts(name) for name, _ in model.named_parameters()}
    ups = 2 if not isinstance(shape, BertEncoder) else 1
    for name, parameter in model.named_parameters():
        expected = 3 if ".qkv." in name else ups if ".up." in name else 1
        assert parts[name] == expected, name
        assert parameter.dim() == 0 or parameter.shape[0] % expected == 0
    assert sum(count == 3 for count in parts.values()) >= 4


def test_a_unit_without_a_gate_is_one_matrix() -> None:
    model = CrammedEncoder(layers=1, hidden_size=32, heads=2, intermediate_size=32, gated=False, biases=True).build(
        VOCABULARY
    )
    assert model.parts("blocks.0.unit.up.weight") == 1
    assert model.parts("blocks.0.attention.qkv.bias") == 3
