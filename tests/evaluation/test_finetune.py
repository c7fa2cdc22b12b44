"""The loop: batches lose no row and no order, training learns, the same seed gives the same answers."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from daybreak.base.errors import UserError
from daybreak.evaluation.batches import collate, encode, prediction_batches, training_batches
from daybreak.evaluation.classifier import build_classifier, load_tokenizer
from daybreak.evaluation.finetune import (
    answers,
    batch_loss,
    fine_tune,
    parameter_groups,
    predict,
    rate_share,
    set_dropout,
)
from daybreak.evaluation.protocols import PROTOCOLS, Setting
from daybreak.evaluation.task_file import read_task_file
from daybreak.evaluation.tasks import LabelledRows, load_task

QUICK = PROTOCOLS["quick"]
VOCABULARY = 200


@given(st.lists(st.integers(2, 128), min_size=1, max_size=300), st.integers(1, 20), st.integers(0, 99))
def test_batches_hold_every_row_once(lengths: list[int], batch: int, seed: int) -> None:
    epoch = training_batches(lengths, batch, torch.Generator().manual_seed(seed))
    assert sorted(i for indices in epoch for i in indices) == list(range(len(lengths)))
    assert max(map(len, epoch)) <= batch
    assert epoch == training_batches(lengths, batch, torch.Generator().manual_seed(seed))
    assert sorted(i for indices in prediction_batches(lengths) for i in indices) == list(range(len(lengths)))


def test_little_is_padded_and_epochs_differ() -> None:
    chance = random.Random(0)
    lengths = [min(128, 8 + int(chance.expovariate(1 / 30))) for _ in range(2000)]
    generator = torch.Generator().manual_seed(0)
    first, second = (training_batches(lengths, 16, generator) for _ in range(2))
    places = sum(len(indices) * max(lengths[i] for i in indices) for indices in first)
    assert sum(lengths) / places > 0.93
    assert {tuple(sorted(indices)) for indices in first}.isdisjoint(tuple(sorted(indices)) for indices in second)


def test_rates_rise_and_fall() -> None:
    shares = [rate_share(step, 100, 10) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert shares[9] == shares[10] == 1.0
    assert shares[99] == pytest.approx(1 / 90)
    assert np.diff(shares[10:]) == pytest.approx(-1 / 90)


def test_losses_equal_their_definitions() -> None:
    logits = torch.tensor([[1.0], [3.0]])
    assert batch_loss(logits, torch.tensor([0.0, 1.0])).item() == pytest.approx((1 + 4) / 2)
    assert batch_loss(logits[:1], torch.tensor([0.0])).item() == pytest.approx(1.0)
    assert batch_loss(torch.zeros(3, 4), torch.tensor([0, 1, 3])).item() == pytest.approx(np.log(4))


def test_norms_and_biases_do_not_decay(encoder: Path, weather: Path) -> None:
    from transformers import Trainer, TrainingArguments

    model = build_classifier(encoder, load_task(read_task_file(weather)), 0, untrained=False)
    decayed = {id(p) for p in parameter_groups(model, 0.01)[0]["params"]}
    trainer = Trainer(model, TrainingArguments(output_dir=str(encoder / "unused"), report_to="none"))
    assert decayed == {id(p) for n, p in model.named_parameters() if n in trainer.get_decay_parameter_names(model)}


def test_answers_keep_the_order_of_the_rows(encoder: Path, weather: Path) -> None:
    data = load_task(read_task_file(weather))
    tokenizer = load_tokenizer(encoder)
    model = build_classifier(encoder, data, 0, untrained=False)
    rows = encode(tokenizer, data.dev, 64, VOCABULARY)
    assert len(set(rows.lengths)) > 5
    together = predict(model, tokenizer, rows)
    with torch.inference_mode():
        alone = [model(**collate(tokenizer, rows, [index])).logits[0].numpy() for index in range(len(rows))]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-5)


def test_pairs_keep_their_specials_when_they_are_cut(encoder: Path) -> None:
    tokenizer = load_tokenizer(encoder)
    rows = LabelledRows([("sun " * 50, "rain rain"), ("sun", "rain")], [0, 1])
    encoded = encode(tokenizer, rows, 12, VOCABULARY)
    assert tokenizer.convert_ids_to_tokens(encoded.features["input_ids"][0]) == [
        "[CLS]", *["sun"] * 7, "[SEP]", "rain", "rain", "[SEP]",
    ]  # fmt: skip
    assert encoded.lengths == [12, 5]
    assert set(encoded.features) == {"input_ids", "attention_mask"}


def test_ids_outside_the_model_are_refused(encoder: Path) -> None:
    with pytest.raises(UserError, match="but the model knows only 10 tokens"):
        encode(load_tokenizer(encoder), LabelledRows([("sun",)], [0]), 12, vocabulary=10)


def trained(encoder: Path, task: Path, seed: int, untrained: bool = False) -> np.ndarray:
    data = load_task(read_task_file(task))
    tokenizer = load_tokenizer(encoder)
    model = build_classifier(encoder, data, seed, untrained)
    rows = encode(tokenizer, data.train, 64, VOCABULARY)
    fine_tune(model, tokenizer, rows, QUICK, Setting(1, 5e-4), seed, lambda share, loss: None)
    return predict(model, tokenizer, encode(tokenizer, data.dev, 64, VOCABULARY))


@pytest.mark.parametrize("untrained", [False, True])
def test_the_seed_decides_everything(encoder: Path, weather: Path, untrained: bool) -> None:
    first = trained(encoder, weather, 3, untrained)
    torch.manual_seed(99)
    np.testing.assert_array_equal(first, trained(encoder, weather, 3, untrained))
    assert np.abs(first - trained(encoder, weather, 4, untrained)).max() > 1e-3


def test_dropout_of_a_protocol_reaches_every_dropout_layer(encoder: Path, weather: Path) -> None:
    model = build_classifier(encoder, load_task(read_task_file(weather)), 0, untrained=False)
    set_dropout(model, 0.25)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    assert layers
    assert {layer.p for layer in layers} == {0.25}


def bert_folder(encoder: Path, folder: Path, config: transformers.PreTrainedConfig) -> Path:
    """An encoder whose tokenizer also makes token types, as BERT's does."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    return folder


SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.5,
}  # fmt: skip
PAIRS = LabelledRows([("sun warm", "rain"), ("rain", "sun"), ("dark", "cold winter storm")], [0, 1, 0])


def test_bert_gets_token_types(encoder: Path, weather: Path, tmp_path: Path) -> None:
    folder = bert_folder(encoder, tmp_path / "bert", transformers.BertConfig(**SHAPE))
    tokenizer = load_tokenizer(folder)
    rows = encode(tokenizer, PAIRS, 64, VOCABULARY)
    assert rows.features["token_type_ids"][0] == [0, 0, 0, 0, 1, 1]
    model = build_classifier(folder, load_task(read_task_file(weather)), 0, untrained=False).eval()
    stock = tokenizer(*map(list, zip(*PAIRS.texts)), padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = model(**stock).logits.numpy()
        without = model(stock["input_ids"], stock["attention_mask"]).logits.numpy()
    np.testing.assert_allclose(predict(model, tokenizer, rows), expected, atol=1e-5)
    assert np.abs(expected - without).max() > 1e-3, "types matter to this model"


def test_token_types_are_kept_from_models_that_know_none(encoder: Path, weather: Path, tmp_path: Path) -> None:
    folder = bert_folder(
        encoder,
        tmp_path / "distil",
        transformers.DistilBertConfig(vocab_size=VOCABULARY, dim=32, hidden_dim=64, n_layers=1, n_heads=2),
    )
    tokenizer = load_tokenizer(folder)
    model = build_classifier(folder, load_task(read_task_file(weather)), 0, untrained=False)
    assert predict(model, tokenizer, encode(tokenizer, PAIRS, 64, VOCABULARY)).shape == (3, 2)


def test_a_crammed_export_is_fine_tuned(encoder: Path, weather: Path, tmp_path: Path) -> None:
    from daybreak.evaluate import evaluate
    from daybreak.models.crammed import CrammedEncoder
    from daybreak.packaging.hugging_face import write_model_folder

    shape = CrammedEncoder(layers=1, width=32, heads=2, inner=64, longest_row=64, classifier_width=32)
    torch.manual_seed(0)
    model = shape.build(VOCABULARY)
    folder = tmp_path / "crammed"
    write_model_folder(folder, model=model, shape=shape, tokenizer=encoder, length=64, vocabulary=VOCABULARY)
    (result,) = evaluate(folder, [str(weather)], seeds=1, out=tmp_path, rate=2e-3)
    assert result.mean > 0.9
    assert (result.model_name, result.settings["length"]) == ("crammed", 64)


def test_untrained_shares_no_weight_with_the_folder(encoder: Path, weather: Path) -> None:
    data = load_task(read_task_file(weather))
    kept, fresh, other = (build_classifier(encoder, data, s, u) for s, u in ((0, False), (0, True), (1, True)))
    assert fresh.config.to_dict() == other.config.to_dict()
    for name, matrix in fresh.named_parameters():
        if matrix.ndim == 2:
            assert not torch.equal(matrix, kept.get_parameter(name)) or name.startswith("classifier"), name
            assert not torch.equal(matrix, other.get_parameter(name)), name


def test_regression_gives_numbers(encoder: Path) -> None:
    assert answers(np.array([[0.5], [-2.0]]), "regression") == [0.5, -2.0]
    assert answers(np.array([[0.5, 1.0], [3.0, -2.0]]), "classification") == [1, 0]


def test_attention_is_the_fast_one_and_weights_are_float32(encoder: Path, weather: Path) -> None:
    data = load_task(read_task_file(weather))
    for untrained in (False, True):
        model = build_classifier(encoder, data, 0, untrained)
        assert model.config._attn_implementation == "sdpa"
        assert {p.dtype for p in model.parameters()} == {torch.float32}
