"""The loop: batches lose no row and no order, training learns, the same seed gives the same answers."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daybreak.base.errors import UserError
from daybreak.evaluation.batches import collate, encode, prediction_batches, training_batches
from daybreak.evaluation.classifier import build_classifier, load_tokenizer
from daybreak.evaluation.finetune import answers, batch_loss, fine_tune, parameter_groups, predict, rate_share
from daybreak.evaluation.protocols import PROTOCOLS, find_protocol
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


def test_learning_rate_follows_width() -> None:
    rates = {width: QUICK.learning_rate(width) for width in (32, 128, 256, 384, 512, 768, 1024)}
    assert list(rates.values()) == sorted(rates.values(), reverse=True)
    assert QUICK.learning_rate(300) == QUICK.learning_rate(256)


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'quick'"):
        find_protocol("quik")


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
    once = dataclasses.replace(QUICK, epochs=1)
    fine_tune(model, tokenizer, encode(tokenizer, data.train, 64, VOCABULARY), once, seed, lambda share, loss: None)
    return predict(model, tokenizer, encode(tokenizer, data.dev, 64, VOCABULARY))


@pytest.mark.parametrize("untrained", [False, True])
def test_the_seed_decides_everything(encoder: Path, weather: Path, untrained: bool) -> None:
    first = trained(encoder, weather, 3, untrained)
    torch.manual_seed(99)
    np.testing.assert_array_equal(first, trained(encoder, weather, 3, untrained))
    assert np.abs(first - trained(encoder, weather, 4, untrained)).max() > 1e-3


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
