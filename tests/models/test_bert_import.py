"""Checkpoints of other hands: old names, what else they hold, and what our BERT refuses to take for its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel

from daybreak.core.errors import UserError
from daybreak.models.bert import BertEncoder, from_hugging_face, shape_from_hugging_face

VOCABULARY, LENGTH = 61, 12
MASKED = BertEncoder(layers=2, hidden_size=32, heads=4, intermediate_size=40, positions=12)
PAIRS = replace(MASKED, next_sentence=True)


def stock_config(shape: BertEncoder, **changes: Any) -> dict[str, Any]:
    return {**shape.to_hugging_face(VOCABULARY, LENGTH), **changes}


def stock(shape: BertEncoder, **changes: Any) -> Any:
    """A stock model with random weights, biases and norms too."""
    config = BertConfig(**stock_config(shape, **changes))
    model = (BertForPreTraining if shape.next_sentence else BertForMaskedLM)(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.mark.parametrize("shape", [MASKED, PAIRS], ids=["masked only", "next sentence"])
def test_names_of_2018_are_understood(shape: BertEncoder) -> None:
    weights = stock(shape).state_dict()
    _, today = from_hugging_face(stock_config(shape), weights)
    old = {}
    for name, tensor in weights.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        if not name.startswith("cls.predictions.decoder"):
            old[name.removeprefix("bert.")] = tensor
    old["embeddings.position_ids"] = torch.arange(LENGTH)[None]
    config = stock_config(shape)
    for name in ("model_type", "position_embedding_type", "tie_word_embeddings", "pad_token_id"):
        del config[name]
    read, model = from_hugging_face(config, old)
    assert read == replace(shape, dropout=0.1, attention_dropout=0.1)
    for name, tensor in today.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_a_bias_under_the_decoders_name_a_lone_pooler_and_half_precision_are_taken() -> None:
    weights = {name: tensor.half() for name, tensor in stock(PAIRS).state_dict().items()}
    bias = weights.pop("cls.predictions.bias").float()
    alone = {name: tensor for name, tensor in weights.items() if "seq_relationship" not in name}
    read, model = from_hugging_face(stock_config(PAIRS), alone)
    assert not read.next_sentence and model.output.bias.dtype == torch.float32
    assert torch.equal(model.output.bias, bias)
    with pytest.raises(NotImplementedError):
        model.next_logits(torch.zeros(1, model.hidden_size))


@pytest.mark.parametrize("name", ["gelu_new", "gelu_pytorch_tanh"])
@torch.inference_mode()
def test_both_names_of_the_tanh_formula_are_known(name: str) -> None:
    other = stock(MASKED, hidden_act=name)
    read, model = from_hugging_face(json.loads(other.config.to_json_string()), other.state_dict())
    assert read.activation == "gelu_new"
    ids = torch.arange(24).view(2, 12)
    torch.testing.assert_close(model.eval().logits(ids), other(ids).logits, rtol=1e-4, atol=1e-4)


def test_dropout_is_taken_over() -> None:
    config = stock_config(MASKED, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.05)
    read = shape_from_hugging_face(config, next_sentence=False)
    assert (read.dropout, read.attention_dropout, read.finetune_dropout) == (0.2, 0.05, 0.2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "roberta"}, "'roberta'"),
        ({"position_embedding_type": "relative_key_query"}, "relative_key_query"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"num_attention_heads": 5}, "not a multiple"),
    ],
)
def test_a_config_that_we_cannot_hold_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        shape_from_hugging_face(stock_config(MASKED, **changes), next_sentence=False)


def test_weights_that_we_cannot_hold_are_refused() -> None:
    config = stock_config(MASKED)
    whole = stock(MASKED).state_dict()
    query = "bert.encoder.layer.1.attention.self.query.weight"
    distance = "bert.encoder.layer.0.attention.self.distance_embedding.weight"
    wrong: list[tuple[dict[str, Tensor], str]] = [
        ({**whole, "cls.predictions.decoder.weight": torch.rand(VOCABULARY, 32)}, "decoder.weight' is not tied"),
        ({**whole, "cls.predictions.decoder.bias": torch.rand(VOCABULARY)}, "decoder.bias' is not tied"),
        ({name: tensor for name, tensor in whole.items() if name != query}, f"lacks '{query}'"),
        ({**whole, distance: torch.zeros(3, 8)}, f"holds '{distance}'"),
        (BertModel(BertConfig(**config)).state_dict(), "no masked-language-model head"),
    ]
    for weights, sentence in wrong:
        with pytest.raises(UserError, match=sentence):
            from_hugging_face(config, weights)
