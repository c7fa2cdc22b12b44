"""The loop: training is AdamW's, a frozen encoder stays as it is, the same seed gives the same answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from daybreak.evaluation.finetuning.classifier import build_classifier, load_tokenizer
from daybreak.evaluation.finetuning.finetune import (
    Batches,
    autocast,
    epoch_batches,
    fine_tune,
    layer_scales,
    predict,
    rate_fraction,
    set_dropout,
)
from daybreak.evaluation.protocols.known_protocols import PROTOCOLS
from daybreak.evaluation.protocols.protocol import Protocol, Setting
from daybreak.evaluation.tasks.batches import EncodedRows, Padding
from daybreak.evaluation.tasks.kinds import KINDS, load_task
from daybreak.evaluation.tasks.task import LabeledRows
from daybreak.evaluation.tasks.task_file import read_task_file

QUICK = PROTOCOLS["quick"]
CLASSIFICATION = KINDS["classification"]
VOCABULARY = 200


def classifier(folder: Path, seed: int = 0, untrained: bool = False) -> Any:
    return build_classifier(folder, CLASSIFICATION, ("rainy", "sunny"), seed, untrained)


def quiet(share: float, loss: float) -> None:
    pass


def encoded(folder: Path, rows: LabeledRows) -> EncodedRows:
    return CLASSIFICATION.encode(load_tokenizer(folder), rows, 64, VOCABULARY)


def train(
    model: Any, folder: Path, task: Path, protocol: Protocol, setting: Setting, seed: int = 0
) -> tuple[Any, EncodedRows]:
    rows = encoded(folder, load_task(read_task_file(task)).train)
    fine_tune(model, CLASSIFICATION, Padding.of(load_tokenizer(folder)), rows, protocol, setting, seed, quiet)
    return model, rows


@pytest.mark.parametrize("name", ["quick", "cramming", "electra", "transfer", "bert", "scibert"])
def test_training_is_that_of_a_plain_loop(encoder: Path, weather: Path, name: str) -> None:
    """Without dropout: AdamW written out, a parameter at a time, on the same batches."""
    protocol = dataclasses.replace(PROTOCOLS[name], dropout=None)
    setting = Setting(2, 1e-3, 48, weight_decay=0.5)
    model, rows = train(classifier(encoder), encoder, weather, protocol, setting, seed=5)
    plain = classifier(encoder).train()
    batches = Batches(plain, CLASSIFICATION, Padding.of(load_tokenizer(encoder)), rows)
    scales = layer_scales(plain, protocol.layer_decay_at(32))
    generator = torch.Generator().manual_seed(5)
    epochs = [epoch_batches(rows.lengths, 48, protocol.drop_last, generator) for _ in range(2)]
    order = [indices for epoch in epochs for indices in epoch]
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in plain.named_parameters()}
    warmup = round(protocol.warmup * len(order))
    for step, indices in enumerate(order):
        targets = torch.tensor([rows.targets[index] for index in indices])
        loss = nn.functional.cross_entropy(plain(**batches.inputs(indices)).logits, targets)
        gradients = dict(zip(moments, torch.autograd.grad(loss, list(plain.parameters()))))
        norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
        short = 1.0 if protocol.max_grad_norm is None else min(1.0, protocol.max_grad_norm / (norm.item() + 1e-6))
        for each, parameter in plain.named_parameters():
            rate = setting.rate * scales[each] * rate_fraction(step, len(order), warmup, protocol.shape)
            (beta1, beta2), gradient = protocol.betas, gradients[each] * short
            first, second = moments[each]
            first.mul_(beta1).add_(gradient, alpha=1 - beta1)
            second.mul_(beta2).add_(gradient**2, alpha=1 - beta2)
            hat1, hat2 = first / (1 - beta1 ** (step + 1)), second / (1 - beta2 ** (step + 1))
            with torch.no_grad():
                parameter.mul_(1 - rate * 0.5 * (parameter.ndim >= 2))
                parameter.sub_(rate * hat1 / (hat2.sqrt() + protocol.eps))
    for each, parameter in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(each), parameter, atol=2e-5, rtol=1e-3, msg=each)
    start = classifier(encoder)
    assert all((model.get_parameter(each) - p).abs().max() > 1e-4 for each, p in start.named_parameters())


def test_a_frozen_encoder_keeps_every_bit_and_its_head_learns(encoder: Path, weather: Path) -> None:
    protocol = dataclasses.replace(PROTOCOLS["cramming"].changed(frozen=True), dropout=0.5)
    start, (model, _) = (
        classifier(encoder),
        train(classifier(encoder), encoder, weather, protocol, Setting(1, 1e-2, 32)),
    )
    inside, outside = set(), set()
    for name, parameter in start.named_parameters():
        same = torch.equal(model.get_parameter(name), parameter)
        (inside if name.startswith("model.") else outside).add(same)
    assert inside == {True}
    assert outside == {False}, "head.dense and head.norm are of the head"
    assert not model.model.training
    assert not any(p.requires_grad for p in model.model.parameters())


def test_a_pooler_learns_with_the_head(encoder: Path, weather: Path, tmp_path: Path) -> None:
    folder = bert_folder(encoder, tmp_path / "bert", transformers.BertConfig(**SHAPE))
    model, _ = train(classifier(folder), folder, weather, QUICK.changed(frozen=True), Setting(1, 1e-2, 64))
    start = classifier(folder)
    changed = {n for n, p in start.named_parameters() if not torch.equal(model.get_parameter(n), p)}
    assert changed == {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"}


def test_only_classes_on_a_gpu_are_computed_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, is_it=supported: is_it)
        assert not autocast(cpu, CLASSIFICATION)._enabled
        monkeypatch.setattr(torch, "autocast", lambda kind, dtype, enabled: (kind, dtype, enabled))
        assert autocast(gpu, CLASSIFICATION) == ("cuda", torch.bfloat16, supported)
        assert autocast(gpu, KINDS["regression"]) == ("cuda", torch.bfloat16, False)
        monkeypatch.undo()


def test_answers_keep_the_order_of_the_rows(encoder: Path, weather: Path) -> None:
    padding, model = Padding.of(load_tokenizer(encoder)), classifier(encoder)
    rows = encoded(encoder, load_task(read_task_file(weather)).dev)
    assert len(set(rows.lengths)) > 5
    together = predict(model, CLASSIFICATION, padding, rows)
    batches = Batches(model, CLASSIFICATION, padding, rows)
    with torch.inference_mode():
        alone = [model(**batches.inputs([index])).logits[0].numpy() for index in range(len(rows))]
    np.testing.assert_allclose(np.stack(together), np.stack(alone), atol=1e-5)


def trained(encoder: Path, task: Path, seed: int, untrained: bool = False) -> np.ndarray:
    model, _ = train(classifier(encoder, seed, untrained), encoder, task, QUICK, Setting(1, 5e-4, 16), seed)
    dev = encoded(encoder, load_task(read_task_file(task)).dev)
    return np.stack(predict(model, CLASSIFICATION, Padding.of(load_tokenizer(encoder)), dev))


@pytest.mark.parametrize("untrained", [False, True])
def test_the_seed_decides_everything(encoder: Path, weather: Path, untrained: bool) -> None:
    first = trained(encoder, weather, 3, untrained)
    torch.manual_seed(99)
    np.testing.assert_array_equal(first, trained(encoder, weather, 3, untrained))
    assert np.abs(first - trained(encoder, weather, 4, untrained)).max() > 1e-3


def test_dropout_of_a_protocol_reaches_every_dropout_layer(encoder: Path) -> None:
    model = classifier(encoder)
    set_dropout(model, 0.25)
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert layers
    assert {layer.p for layer in layers} == {0.25}


def test_dropout_of_a_protocol_reaches_attention_that_has_no_dropout_layer(encoder: Path) -> None:
    """ModernBERT's, whose config of an export has none."""
    model = build_classifier(encoder, CLASSIFICATION, ("a", "b"), 1, False, dropout=0.25)
    attention = model.model.layers[0].attn
    assert attention.attention_dropout == 0.25 and attention.out_drop.p == 0.25
    assert build_classifier(encoder, CLASSIFICATION, ("a", "b"), 1, False).model.layers[0].attn.attention_dropout == 0.0


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
PAIRS = LabeledRows([("sun warm", "rain"), ("rain", "sun"), ("dark", "cold winter storm")], [0, 1, 0])


def test_bert_gets_token_types(encoder: Path, tmp_path: Path) -> None:
    folder = bert_folder(encoder, tmp_path / "bert", transformers.BertConfig(**SHAPE))
    tokenizer = load_tokenizer(folder)
    rows = encoded(folder, PAIRS)
    assert rows.features["token_type_ids"][0] == [0, 0, 0, 0, 1, 1]
    model = classifier(folder).eval()
    stock = tokenizer(*map(list, zip(*PAIRS.texts)), padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = model(**stock).logits.numpy()
        without = model(stock["input_ids"], stock["attention_mask"]).logits.numpy()
    found = np.stack(predict(model, CLASSIFICATION, Padding.of(tokenizer), rows))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected - without).max() > 1e-3, "types matter to this model"


def test_a_crammed_export_is_fine_tuned(
    encoder: Path, weather: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from daybreak.commands.evaluate import evaluate
    from daybreak.exporting.hugging_face import write_model_folder
    from daybreak.models.crammed import CrammedEncoder

    shape = CrammedEncoder(layers=1, hidden_size=32, heads=2, intermediate_size=64, longest_row=64, classifier_width=32)
    torch.manual_seed(0)
    model = shape.build(VOCABULARY)
    folder = tmp_path / "crammed"
    write_model_folder(folder, model=model, shape=shape, tokenizer=encoder, length=64)
    kept = tmp_path / "kept"
    (result,) = evaluate(folder, [str(weather)], seeds=1, out=tmp_path, rate=2e-3, workers=1, save=kept)
    assert f"Classifier: {kept}  (" in (said := capsys.readouterr().out) and "trust_remote_code=True" in said
    assert result.mean > 0.9
    assert (result.model_name, result.settings["length"]) == ("crammed", 64)


def test_untrained_shares_no_weight_with_the_folder(encoder: Path) -> None:
    kept, fresh, other = (classifier(encoder, s, u) for s, u in ((0, False), (0, True), (1, True)))
    assert fresh.config.to_dict() == other.config.to_dict()
    for name, matrix in fresh.named_parameters():
        if matrix.ndim == 2:
            assert not torch.equal(matrix, kept.get_parameter(name)) or name.startswith("classifier"), name
            assert not torch.equal(matrix, other.get_parameter(name)), name
