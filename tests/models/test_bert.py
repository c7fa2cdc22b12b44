"""Our BERT against the evaluates: transformers' BertForMaskedLM and BertForPreTraining, both ways."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from small_models import assert_close, disturb
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
)

from daybreak.core.errors import UserError
from daybreak.models.bert import Bert, BertEncoder, from_hugging_face
from daybreak.schemas.run import SpecialIds

VOCABULARY, ROWS, LENGTH = 97, 3, 20

LAYOUTS = {
    "masked only": BertEncoder(layers=2, hidden_size=32, heads=4, intermediate_size=40, positions=20, init_std=0.2),
    "next sentence": BertEncoder(
        layers=3, hidden_size=24, heads=3, intermediate_size=50, next_sentence=True, init_std=0.2
    ),
    "tanh": BertEncoder(
        layers=2,
        hidden_size=32,
        heads=2,
        intermediate_size=64,
        positions=32,
        activation="gelu_new",
        epsilon=1e-5,
        init_std=0.3,
    ),
    "one layer": BertEncoder(
        layers=1, hidden_size=16, heads=1, intermediate_size=16, segments=3, next_sentence=True, init_std=0.2
    ),
}


@pytest.fixture(params=LAYOUTS)
def shape(request: pytest.FixtureRequest) -> BertEncoder:
    return LAYOUTS[request.param]


def built(shape: BertEncoder, vocabulary: int = VOCABULARY) -> Bert:
    torch.manual_seed(3)
    model = shape.build(vocabulary)
    disturb(model)
    return model.eval()


def stock_class(shape: BertEncoder) -> Any:
    return BertForPreTraining if shape.next_sentence else BertForMaskedLM


def blank_stock(shape: BertEncoder, vocabulary: int = VOCABULARY) -> Any:
    """A stock model with random weights."""
    config = BertConfig(**shape.to_hugging_face(vocabulary, LENGTH), attn_implementation="eager")
    stock = stock_class(shape)(config)
    for parameter in stock.parameters():
        nn.init.normal_(parameter, std=shape.init_std)
    return stock.eval()


def stock_of(shape: BertEncoder, model: Bert) -> Any:
    stock = blank_stock(shape, model.vocabulary)
    outcome = stock.load_state_dict(shape.export_weights(model), strict=False)
    assert outcome.unexpected_keys == []
    assert outcome.missing_keys == ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]
    stock.tie_weights()
    return stock


def tokens(vocabulary: int = VOCABULARY, rows: int = ROWS, length: int = LENGTH) -> Tensor:
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))


def padding() -> Tensor:
    """Rows of 20, 13 and 5 real positions."""
    return torch.arange(LENGTH)[None] < torch.tensor([[20], [13], [5]])


def two_segments() -> Tensor:
    """The second segment begins at 8, 4 and 2."""
    return (torch.arange(LENGTH)[None] >= torch.tensor([[8], [4], [2]])).long()


def assert_same_model(model: Bert, stock: Any, ids: Tensor, attend: Tensor | None, types: Tensor | None) -> None:
    """Masked-LM logits at the real positions, and next-sentence logits where the model has them."""
    theirs = stock(input_ids=ids, attention_mask=None if attend is None else attend.long(), token_type_ids=types)
    seen = torch.ones_like(ids, dtype=torch.bool) if attend is None else attend
    scores = theirs.prediction_logits if model.shape.next_sentence else theirs.logits
    assert_close(model.logits(ids, attend=attend, types=types)[seen], scores[seen])
    if model.shape.next_sentence:
        first = model.states(ids, torch.zeros(len(ids), 1, dtype=torch.long), attend=attend, types=types)[:, 0]
        assert_close(model.next_logits(first), theirs.seq_relationship_logits)


INPUTS = [(None, None), (padding(), None), (None, two_segments()), (padding(), two_segments())]


@torch.inference_mode()
def test_our_weights_give_the_same_logits_in_the_stock_class(shape: BertEncoder) -> None:
    model = built(shape)
    stock = stock_of(shape, model)
    for attend, types in INPUTS:
        assert_same_model(model, stock, tokens(), attend, types)
    assert model.parameter_count() == stock.num_parameters()


@torch.inference_mode()
def test_stock_weights_give_the_same_logits_in_our_class(shape: BertEncoder) -> None:
    torch.manual_seed(4)
    stock = blank_stock(shape)
    config = json.loads(stock.config.to_json_string())
    read, model = from_hugging_face(config, stock.state_dict())
    assert read == model.shape == replace(shape, dropout=0.1, attention_dropout=0.1)
    assert (read.longest, read.predicts_next) == (shape.positions, shape.next_sentence)
    for attend, types in INPUTS:
        assert_same_model(model.eval(), stock, tokens(), attend, types)


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
    attend = draw(st.sampled_from([None, torch.arange(length)[None] < real[:, None]]))
    types = draw(st.sampled_from([None, torch.arange(rows * length).view(rows, length) % shape.segments]))
    assert_same_model(model, stock_of(shape, model), ids, attend, types)
    chosen = torch.randint(0, length, (rows, draw(small)))
    full = model.features(ids, attend=attend, types=types).gather(
        1, chosen[:, :, None].expand(-1, -1, model.hidden_size)
    )
    assert_close(model.features(ids, chosen, attend=attend, types=types), full)


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@torch.inference_mode()
def test_chosen_positions_are_the_full_forward_gathered(shape: BertEncoder, causal: bool, padded: bool) -> None:
    model, ids, attend = built(shape), tokens(), padding() if padded else None
    positions = torch.tensor([[0, 5, 19, 17], [12, 3, 0, 11], [4, 1, 1, 3]])
    full = model.states(ids, causal=causal, attend=attend, types=two_segments())
    picked = full.gather(1, positions[:, :, None].expand(-1, -1, model.hidden_size))
    at_positions = model.states(ids, positions, causal=causal, attend=attend, types=two_segments())
    torch.testing.assert_close(at_positions, picked, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@torch.inference_mode()
def test_causal_states_do_not_know_the_future(shape: BertEncoder, padded: bool) -> None:
    model, ids = built(shape), tokens()
    attend = torch.ones_like(ids, dtype=torch.bool) if padded else None
    changed = ids.clone()
    changed[:, 10] = (changed[:, 10] + 7) % VOCABULARY
    before, after = (model.states(x, causal=True, attend=attend) for x in (ids, changed))
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=1e-6, atol=1e-6)
    assert (before[:, 10] - after[:, 10]).abs().max() > 1e-3
    both = model.states(ids, attend=attend) - model.states(changed, attend=attend)
    assert both[:, 5:10].abs().max() > 1e-4  # without the switch the past does see it


@torch.inference_mode()
def test_padding_and_segments_are_seen_in_the_logits() -> None:
    """Without this, parity might hold because neither matters."""
    model, ids = built(LAYOUTS["masked only"]), tokens()
    plain = model.logits(ids)
    assert (model.logits(ids, types=two_segments()) - plain).abs().max() > 0.1
    assert (model.logits(ids, attend=padding()) - plain)[padding()].abs().max() > 0.01
    torch.testing.assert_close(model.logits(ids, types=torch.zeros_like(ids)), plain)


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
        stock = stock_class(shape)(BertConfig(**shape.to_hugging_face(vocabulary, 128)))
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


# ---------------------------------------------------------------- the exported folder


def write_folder(folder: Path, shape: BertEncoder, model: Bert) -> Path:
    config = shape.to_hugging_face(VOCABULARY, LENGTH, SpecialIds(pad=7, cls=9, sep=11))
    (folder / "config.json").write_text(json.dumps(config))
    save_file(shape.export_weights(model), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("name", ["masked only", "next sentence"])
@torch.inference_mode()
def test_the_exported_files_load_by_name(name: str, tmp_path: Path) -> None:
    shape = LAYOUTS[name]
    model, ids, attend = built(shape), tokens(), padding()
    write_folder(tmp_path, shape, model)
    inputs = {"input_ids": ids, "attention_mask": attend.long(), "token_type_ids": two_segments()}
    ours = model.logits(ids, attend=attend, types=two_segments())[attend]

    masked, found = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(masked) is BertForMaskedLM and not masked.training
    assert not found["missing_keys"] and not found["mismatched_keys"]
    extra = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    extra |= {"cls.seq_relationship.weight", "cls.seq_relationship.bias"}
    assert set(found["unexpected_keys"]) == (extra if shape.next_sentence else set())
    assert_close(ours, masked(**inputs).logits[attend])

    both, found = AutoModelForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert type(both) is BertForPreTraining and not found["unexpected_keys"]
    assert set(found["missing_keys"]) == (set() if shape.next_sentence else extra)
    theirs = both(**inputs)
    assert_close(ours, theirs.prediction_logits[attend])
    states = model.states(ids, attend=attend, types=two_segments())[:, 0]
    if shape.next_sentence:
        assert_close(model.next_logits(states), theirs.seq_relationship_logits)

    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert_close(states, classifier.bert(**inputs).last_hidden_state[:, 0])
    if shape.next_sentence:  # the classifier reads the pooler that was trained
        assert torch.equal(classifier.bert.pooler.dense.weight, model.pooler.weight)
    assert {module.p for module in classifier.modules() if isinstance(module, nn.Dropout)} == {0.1}
    assert (classifier.config.pad_token_id, classifier.config.sep_token_id) == (7, 11)


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 0},
        {"activation": "relu"},
        {"dropout": 1.0},
        {"attention_dropout": -0.1},
        {"next_sentence": True, "segments": 1},
        {"hidden_size": 33},
        {"init_std": 0.0},
        {"init_std": float("nan")},
    ],
)
def test_an_impossible_shape_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        BertEncoder(**{"layers": 1, "hidden_size": 32, "heads": 2, "intermediate_size": 8, **changes}).build(10)


def test_positions_can_start_as_sinusoids_and_attention_weights_correlated() -> None:
    """Near positions are similar and far ones are not; the standard deviation of all weights stays the same."""
    plain = BertEncoder(layers=1, hidden_size=128, heads=2, intermediate_size=256, positions=64, init_std=0.09)
    shape = replace(plain, sinusoidal_start=True, query_key_correlation=0.7, value_output_correlation=0.5)
    model = shape.build(50)
    positions = model.positions.weight.detach()
    cosines = nn.functional.cosine_similarity(positions[None], positions[:, None], dim=-1)
    assert cosines.diagonal(1).min() > 0.9 > 0.7 > cosines.diagonal(40).max()
    assert abs(float(positions.square().mean().sqrt()) / 0.09 - 1) < 0.02
    attention = model.blocks[0].attention
    query, key, value = attention.qkv.weight.detach().chunk(3)
    for first, second, expected in ((query, key, 0.7), (value.T, attention.out.weight.detach(), 0.5)):
        pair = torch.stack([first.flatten(), second.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1]) - expected) < 0.03
        assert abs(float(pair[1].std() / pair[0].std()) - 1) < 0.03
    with torch.device("meta"):
        assert shape.build(50).positions.weight.shape == (64, 128)
    with pytest.raises(UserError, match="correlations"):
        replace(plain, query_key_correlation=1.5)
    with pytest.raises(UserError, match="even hidden size"):
        replace(plain, hidden_size=127, heads=1, sinusoidal_start=True)
