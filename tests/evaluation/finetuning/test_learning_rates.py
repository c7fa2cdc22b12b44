"""How fast each parameter learns at each step: schedules as transformers', layers as ELECTRA's, decay as Trainer's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from daybreak.evaluation.finetuning.classifier import build_classifier
from daybreak.evaluation.finetuning.finetune import layer_scales, parameter_groups, rate_fraction
from daybreak.evaluation.tasks.kinds import KINDS


@settings(deadline=None)  # the first call waits for an import
@given(st.integers(1, 200), st.integers(1, 60))
def test_rates_are_those_of_transformers(steps: int, warmup: int) -> None:
    """Theirs begin at 0 and waste a step; from there on ours are the same, the rising ones a step earlier."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    for shape, stock in (
        ("linear", transformers.get_linear_schedule_with_warmup),
        ("cosine", transformers.get_cosine_schedule_with_warmup),
    ):
        (theirs,) = stock(optimizer, warmup, steps).lr_lambdas
        for step in range(steps):
            expected = theirs(step) if step >= warmup else (theirs(step + 1) if step + 1 < warmup else 1.0)
            assert rate_fraction(step, steps, warmup, shape) == pytest.approx(expected), (shape, step)


def electras_rates(layers: int, decay: float) -> dict[str, float]:
    """As _get_layer_lrs in model/optimization.py of google-research/electra has it, at a rate of 1."""
    depths = {"embeddings": 0, "task": layers + 2, **{f"layer {i}": i + 1 for i in range(layers)}}
    return {key: decay ** (layers + 2 - depth) for key, depth in depths.items()}


TINY = {
    "vocab_size": 200, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 12,
    "num_attention_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2,
    "sep_token_id": 3,
}  # fmt: skip


def parts_of(kind: str) -> tuple[Any, dict[str, str]]:
    """A model of 12 layers, and for the start of each parameter's name what ELECTRA would call its place."""
    if kind == "crammed":
        from daybreak.models import modeling_crammed as ours

        config = ours.CrammedConfig(**TINY)
        model = ours.CrammedForSequenceClassification(config)
        layers, embeddings, head = "model.blocks", ["model.embedding", "model.position"], ["pool", "classifier"]
    elif kind == "modernbert":
        config = transformers.ModernBertConfig(**TINY)
        model = transformers.ModernBertForSequenceClassification(config)
        layers, embeddings, head = "model.layers", ["model.embeddings"], ["head", "classifier"]
    else:
        config = transformers.AutoConfig.for_model(kind, **TINY)
        model = transformers.AutoModelForSequenceClassification.from_config(config)
        layers, embeddings, head = f"{kind}.encoder.layer", [f"{kind}.embeddings"], ["classifier"]
    places = {f"{layers}.{i}.": f"layer {i}" for i in range(12)}
    return model, {**places, **dict.fromkeys(embeddings, "embeddings"), **dict.fromkeys(head, "task")}


@pytest.mark.parametrize("kind", ["electra", "bert", "modernbert", "crammed"])
def test_layers_learn_at_electras_rates(kind: str) -> None:
    model, places = parts_of(kind)
    scales, expected = layer_scales(model, 0.8), electras_rates(12, 0.8)
    seen = set()
    for name, scale in scales.items():
        found = [place for start, place in places.items() if name.startswith(start)]
        if found:
            assert scale == pytest.approx(expected[found[0]]), name
            seen.add(found[0])
        else:
            assert any(word in name for word in ("pooler", "final_norm")), name
            assert scale == pytest.approx(0.8), name
    assert seen == set(expected)
    assert set(layer_scales(model, 1.0).values()) == {1.0}
    groups = parameter_groups(model, 0.01, 0.8)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert {group["scale"] for group in groups} == set(scales.values())


def test_norms_and_biases_do_not_decay(encoder: Path) -> None:
    from transformers import Trainer, TrainingArguments

    model = build_classifier(encoder, KINDS["classification"], ("a", "b"), 0, untrained=False)
    decayed = {id(p) for group in parameter_groups(model, 0.01) if group["weight_decay"] for p in group["params"]}
    trainer = Trainer(model, TrainingArguments(output_dir=str(encoder / "unused"), report_to="none"))
    assert decayed == {id(p) for n, p in model.named_parameters() if n in trainer.get_decay_parameter_names(model)}
