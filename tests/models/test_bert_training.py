"""BERT while it learns: stock's gradients; dropout in stock's places, replayed from the seed, absent in evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

from daybreak.models.bert import Bert, BertEncoder

TINY = BertEncoder(layers=1, hidden_size=16, heads=2, intermediate_size=16, positions=6, init_std=0.4)
VOCABULARY = 12
IDS = torch.tensor([[1, 5, 11, 0, 5, 7]])


def built(shape: BertEncoder) -> Bert:
    torch.manual_seed(3)
    model = shape.build(VOCABULARY)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5)
    return model


def stock_of(shape: BertEncoder, model: Bert) -> BertForMaskedLM | BertForPreTraining:
    """The stock model with our weights and our dropout (the export names that of fine-tuning)."""
    config = shape.to_hugging_face(VOCABULARY, 6)
    config |= {"hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.attention_dropout}
    kind = BertForPreTraining if shape.next_sentence else BertForMaskedLM
    stock = kind(BertConfig(**config, attn_implementation="eager"))
    stock.load_state_dict(shape.export_weights(model), strict=False)
    stock.tie_weights()
    return stock


def test_gradients_at_positions_are_those_of_stock() -> None:
    """Both losses at once, padded rows of two segments; the gradients are compared under the names of the export."""
    shape = replace(TINY, layers=2, next_sentence=True)
    model = built(shape)
    stock = stock_of(shape, model).train()
    ids = torch.cat((IDS, IDS.flip(1))).clamp(min=1)  # stock, not Google, holds what it reads at id 0 still
    attend, types = torch.arange(6)[None] < torch.tensor([[6], [4]]), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    positions, answers = torch.tensor([[0, 2, 5], [0, 1, 3]]), torch.tensor([[3, 9], [2, 4]])
    labels = torch.full_like(ids, -100).scatter(1, positions[:, 1:], answers)
    follows = torch.tensor([0, 1])
    theirs = stock(ids, attend.long(), types, labels=labels, next_sentence_label=follows).loss

    states = model.states(ids, positions, attend=attend, types=types)
    logits = model.decoder(model.transform(states[:, 1:]))
    ours = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
    ours = ours + F.cross_entropy(model.next_logits(states[:, 0]), follows)
    torch.testing.assert_close(ours, theirs)
    ours.backward()
    theirs.backward()
    expected = {name: parameter.grad for name, parameter in stock.named_parameters()}
    for parameter in model.parameters():
        parameter.data = parameter.grad
    found = shape.export_weights(model)
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dropout", "attention"), [(0.3, 0.0), (0.0, 0.4), (0.2, 0.2)])
@torch.inference_mode()
def test_dropout_spreads_the_logits_as_in_stock(dropout: float, attention: float) -> None:
    """One row 6,000 times in a batch: as many independent draws."""
    shape = replace(TINY, dropout=dropout, attention_dropout=attention)
    model = built(shape)
    stock = stock_of(shape, model)
    ids = IDS.expand(6000, -1)
    ours, theirs = model.train().logits(ids), stock.train()(ids).logits
    scale = theirs.std(dim=0).mean()
    assert (ours.mean(dim=0) - theirs.mean(dim=0)).abs().max() < 0.1 * scale  # five standard errors are 0.09
    assert (ours.std(dim=0) - theirs.std(dim=0)).abs().max() < 0.1 * scale
    assert ours.std(dim=0).min() > 0.02  # each logit is moved
    torch.testing.assert_close(model.eval().logits(IDS), stock.eval()(IDS).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", [None, torch.tensor([[0, 3]] * 4)], ids=["all", "positions"])
@torch.inference_mode()
def test_dropout_is_replayed_from_the_seed_and_absent_in_evaluation(positions: Tensor | None) -> None:
    shape = replace(TINY, layers=2, dropout=0.1, attention_dropout=0.1)
    model, ids = built(shape), IDS.expand(4, -1)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model.train().logits(ids, positions)

    assert torch.equal(drawn(5), drawn(5))
    assert not torch.equal(drawn(5), drawn(6))
    plain = Bert(replace(shape, dropout=0.0, attention_dropout=0.0), VOCABULARY)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.eval().logits(ids, positions), plain.train().logits(ids, positions))
