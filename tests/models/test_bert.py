"""BERT against transformers' classes: any shape, its start, its export, its gradients and its dropout."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from encoder_layouts import (
    LAYOUTS,
    LENGTH,
    VOCABULARY,
    assert_same_model,
    blank_stock,
    built,
    padding,
    stock_of,
    tokens,
    two_segments,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from small_models import assert_close
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
)

from daybreak.models.bert import Bert, BertEncoder
from daybreak.recipe import load_recipe
from daybreak.schemas.run import SpecialIds


@settings(max_examples=25, deadline=None)
@given(st.data())
@torch.inference_mode()
def test_any_small_shape_equals_stock(data: st.DataObject) -> None:
    draw, small = data.draw, st.integers(1, 3)
    heads, positions = draw(small), draw(st.integers(1, 12))
    next_sentence = draw(st.booleans())
    shape = BertEncoder(
        layers=draw(small),
        hidden_size=heads * draw(st.integers(1, 8)),
        heads=heads,
        intermediate_size=draw(st.integers(1, 20)),
        positions=positions,
        segments=draw(st.integers(2 if next_sentence else 1, 3)),
        activation=draw(st.sampled_from(["gelu", "gelu_new"])),
        epsilon=draw(st.sampled_from([1e-5, 1e-2])),  # with fewer, a width of 1 or 2 divides rounding by rounding
        next_sentence=next_sentence,
        init_std=draw(st.sampled_from([0.02, 0.5])),
    )
    model = built(shape, draw(st.integers(1, 30)))
    rows, length = draw(small), draw(st.integers(1, positions))
    ids = tokens(model.vocabulary, rows, length)
    real = torch.tensor(draw(st.lists(st.integers(1, length), min_size=rows, max_size=rows)))
    attention_mask = draw(st.sampled_from([None, torch.arange(length)[None] < real[:, None]]))
    token_type_ids = draw(st.sampled_from([None, torch.arange(rows * length).view(rows, length) % shape.segments]))
    assert_same_model(model, stock_of(shape, model), ids, attention_mask, token_type_ids)
    chosen = torch.randint(0, length, (rows, draw(small)))
    full = model.features(ids, attention_mask=attention_mask, token_type_ids=token_type_ids).gather(
        1, chosen[:, :, None].expand(-1, -1, model.hidden_size)
    )
    assert_close(model.features(ids, chosen, attention_mask=attention_mask, token_type_ids=token_type_ids), full)


@torch.inference_mode()
def test_padding_and_segments_are_seen_in_the_logits() -> None:
    """Without this, parity might hold because neither matters."""
    model, ids = built(LAYOUTS["bert, masked only"]), tokens()
    plain = model.logits(ids)
    assert (model.logits(ids, token_type_ids=two_segments()) - plain).abs().max() > 0.1
    assert (model.logits(ids, attention_mask=padding()) - plain)[padding()].abs().max() > 0.01
    torch.testing.assert_close(model.logits(ids, token_type_ids=torch.zeros_like(ids)), plain)


# ---------------------------------------------------------------- sizes and initialisation


@pytest.mark.parametrize(
    ("shape", "vocabulary", "parameters"),
    [
        (BertEncoder(layers=12, hidden_size=768, heads=12, intermediate_size=3072, positions=128), 32_768, 110_946_560),
        (
            BertEncoder(layers=12, hidden_size=768, heads=12, intermediate_size=3072, next_sentence=True),
            30_522,
            110_106_428,
        ),
        (
            BertEncoder(layers=24, hidden_size=1024, heads=16, intermediate_size=4096, next_sentence=True),
            30_522,
            336_226_108,
        ),
    ],
    ids=["bert-8gb", "base", "large"],
)
def test_parameters_are_counted_as_in_stock(shape: BertEncoder, vocabulary: int, parameters: int) -> None:
    with torch.device("meta"):
        ours = Bert(shape, vocabulary)
        stock = blank_stock(shape, vocabulary, 128)
    assert ours.parameter_count() == stock.num_parameters() == parameters


def test_initial_weights_are_a_truncated_normal() -> None:
    torch.manual_seed(0)
    model = BertEncoder(
        layers=1, hidden_size=64, heads=2, intermediate_size=256, positions=64, next_sentence=True
    ).build(500)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == (0 if name.endswith("bias") else 1)).all(), name
        else:
            assert parameter.abs().max() <= 0.04, name
    # A standard normal cut at two deviations has a deviation of 0.8796.
    assert model.embedding.weight.std().item() == pytest.approx(0.02 * 0.8796, rel=0.02)


def test_initial_weights_of_recipes_on_hugging_faces_bert_are_a_whole_normal() -> None:
    shape = load_recipe("bert-8gb", faithful=True).model
    assert isinstance(shape, BertEncoder)
    torch.manual_seed(0)
    weight = replace(shape, layers=1, hidden_size=64, heads=2, intermediate_size=256).build(500).embedding.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.02) and weight.abs().max() > 0.05


# ---------------------------------------------------------------- the exported folder


@pytest.mark.parametrize("name", ["bert, masked only", "bert, next sentence"])
@torch.inference_mode()
def test_the_exported_files_load_by_name(name: str, tmp_path: Path) -> None:
    shape = LAYOUTS[name]
    model, ids, attention_mask = built(shape), tokens(), padding()
    config = shape.to_hugging_face(VOCABULARY, LENGTH, SpecialIds(pad=7, cls=9, sep=11))
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(shape.export_weights(model), tmp_path / "model.safetensors", metadata={"format": "pt"})
    inputs = {"input_ids": ids, "attention_mask": attention_mask.long(), "token_type_ids": two_segments()}
    ours = model.logits(ids, attention_mask=attention_mask, token_type_ids=two_segments())[attention_mask]

    masked, found = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(masked) is BertForMaskedLM and not masked.training
    assert not found["missing_keys"] and not found["mismatched_keys"]
    extra = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    extra |= {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
    assert set(found["unexpected_keys"]) == (extra if shape.next_sentence else set())
    assert_close(ours, masked(**inputs).logits[attention_mask])

    both, found = AutoModelForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert type(both) is BertForPreTraining and not found["unexpected_keys"]
    assert set(found["missing_keys"]) == (set() if shape.next_sentence else extra)
    theirs = both(**inputs)
    assert_close(ours, theirs.prediction_logits[attention_mask])
    states = model.states(ids, attention_mask=attention_mask, token_type_ids=two_segments())[:, 0]
    if shape.next_sentence:
        assert_close(model.next_logits(states), theirs.seq_relationship_logits)

    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert_close(states, classifier.bert(**inputs).last_hidden_state[:, 0])
    if shape.next_sentence:  # the classifier reads the pooler that was trained
        assert torch.equal(classifier.bert.pooler.dense.weight, model.pooler.weight)
    assert {module.p for module in classifier.modules() if isinstance(module, nn.Dropout)} == {0.1}
    assert (classifier.config.pad_token_id, classifier.config.sep_token_id) == (7, 11)


def test_positions_can_start_as_sinusoids() -> None:
    """Near positions are similar and far ones are not; the standard deviation stays the same."""
    shape = BertEncoder(
        layers=1, hidden_size=128, heads=2, intermediate_size=256, positions=64, init_std=0.09, sinusoidal_start=True
    )
    positions = shape.build(50).positions.weight.detach()
    cosines = nn.functional.cosine_similarity(positions[None], positions[:, None], dim=-1)
    assert cosines.diagonal(1).min() > 0.9 > 0.7 > cosines.diagonal(40).max()
    assert abs(float(positions.square().mean().sqrt()) / 0.09 - 1) < 0.02
    with torch.device("meta"):
        assert shape.build(50).positions.weight.shape == (64, 128)


# ---------------------------------------------------------------- learning

TINY = BertEncoder(layers=1, hidden_size=16, heads=2, intermediate_size=16, positions=6, init_std=0.4)
IDS = torch.tensor([[1, 5, 11, 0, 5, 7]])


def learning_stock(shape: BertEncoder, model: Bert) -> BertForMaskedLM | BertForPreTraining:
    """The stock model with our weights and our dropout (the export names that of fine-tuning)."""
    config = shape.to_hugging_face(12, 6)
    config |= {"hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.attention_dropout}
    kind = BertForPreTraining if shape.next_sentence else BertForMaskedLM
    stock = kind(BertConfig(**config, attn_implementation="eager"))
    stock.load_state_dict(shape.export_weights(model), strict=False)
    stock.tie_weights()
    return stock


def test_gradients_at_positions_are_those_of_stock() -> None:
    """Both losses at once, padded rows of two segments; the gradients are compared under the names of the export."""
    shape = replace(TINY, layers=2, next_sentence=True)
    model = built(shape, 12)
    stock = learning_stock(shape, model).train()
    ids = torch.cat((IDS, IDS.flip(1))).clamp(min=1)  # stock, not Google, holds what it reads at id 0 still
    attention_mask, token_type_ids = (
        torch.arange(6)[None] < torch.tensor([[6], [4]]),
        torch.tensor([[0, 0, 0, 1, 1, 1]] * 2),
    )
    positions, answers = torch.tensor([[0, 2, 5], [0, 1, 3]]), torch.tensor([[3, 9], [2, 4]])
    labels = torch.full_like(ids, -100).scatter(1, positions[:, 1:], answers)
    next_sentence_label = torch.tensor([0, 1])
    theirs = stock(
        ids, attention_mask.long(), token_type_ids, labels=labels, next_sentence_label=next_sentence_label
    ).loss

    states = model.states(ids, positions, attention_mask=attention_mask, token_type_ids=token_type_ids)
    logits = model.decoder(model.transform(states[:, 1:]))
    ours = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
    ours = ours + F.cross_entropy(model.next_logits(states[:, 0]), next_sentence_label)
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
    model = built(shape, 12)
    stock = learning_stock(shape, model)
    ids = IDS.expand(6000, -1)
    ours, theirs = model.train().logits(ids), stock.train()(ids).logits
    scale = theirs.std(dim=0).mean()
    assert (ours.mean(dim=0) - theirs.mean(dim=0)).abs().max() < 0.1 * scale  # five standard errors are 0.09
    assert (ours.std(dim=0) - theirs.std(dim=0)).abs().max() < 0.1 * scale
    assert ours.std(dim=0).min() > 0.02  # each logit is moved
    torch.testing.assert_close(model.eval().logits(IDS), stock.eval()(IDS).logits, rtol=1e-4, atol=1e-4)
