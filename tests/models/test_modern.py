"""ModernBERT against transformers' ModernBertForMaskedLM: its window, the family's shapes, its learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoder_layouts import LAYOUTS, LENGTH, VOCABULARY, built, stock_of, tokens
from small_models import assert_close

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.models.modern import ModernEncoder, from_hugging_face, shape_from_hugging_face
from daybreak.recipe import load_recipe
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.optim.optimizers import AdamW


@torch.inference_mode()
def test_a_local_window_is_seen_in_the_logits() -> None:
    """Without this, parity of the mixed layouts might hold because the window never matters."""
    mixed = LAYOUTS["modern, mixed"]
    wide = ModernEncoder(**{**vars(mixed), "window": 2 * LENGTH})
    near, far = built(mixed), built(wide)
    assert (near.logits(tokens()) - far.logits(tokens())).abs().max() > 0.01


@pytest.mark.parametrize("name", ["tiny", "mini", "small"])
@torch.inference_mode()
def test_the_family_equals_stock_at_its_own_shapes(name: str) -> None:
    recipe = load_recipe(name)
    assert isinstance(recipe.model, ModernEncoder)
    model = built(recipe.model, recipe.tokenizer.vocabulary)
    ids = tokens(recipe.tokenizer.vocabulary, 1, 24)
    stock = stock_of(recipe.model, model, recipe.length)
    assert_close(model.logits(ids), stock(input_ids=ids).logits)
    assert model.parameter_count() == stock.num_parameters()


# ---------------------------------------------------------------- what cannot be held exactly is refused


def stock_config(**changes: Any) -> dict[str, Any]:
    return {**LAYOUTS["modern, mixed"].to_hugging_face(VOCABULARY, LENGTH), **changes}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"norm_bias": True}, "norm_bias"),
        ({"decoder_bias": False}, "decoder_bias"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"norm_eps": 1e-12}, "norm_eps"),
        ({"model_type": "bert"}, "'bert'"),
        ({"layer_types": ["full_attention"] + ["sliding_attention"] * 2 + ["full_attention"] * 2}, "no fixed period"),
        ({"layer_types": ["sliding_attention"] * 5}, "no fixed period"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}}, "full_attention"),
    ],
)
def test_a_checkpoint_that_we_cannot_hold_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        shape_from_hugging_face(stock_config(**changes))


def test_a_checkpoint_with_a_loose_decoder_or_a_missing_or_unknown_tensor_is_refused() -> None:
    shape = LAYOUTS["modern, mixed"]
    weights = shape.export_weights(built(shape))
    loose = {**weights, "decoder.weight": weights["model.embeddings.tok_embeddings.weight"] + 1}
    with pytest.raises(UserError, match="not tied"):
        from_hugging_face(stock_config(), loose)
    for name in ("model.layers.2.attn.Wo.weight", "model.embeddings.tok_embeddings.weight"):
        with pytest.raises(UserError, match=name):
            from_hugging_face(stock_config(), {key: value for key, value in weights.items() if key != name})
    with pytest.raises(UserError, match=r"'model.layers.0.attn.Wo.bias', which is not part of"):
        from_hugging_face(stock_config(), {**weights, "model.layers.0.attn.Wo.bias": torch.zeros(1)})


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("stage", ["causal", "masked"])
def test_one_batch_is_learned_by_heart(stage: str) -> None:
    torch.manual_seed(0)
    model = ModernEncoder(
        layers=2, hidden_size=48, heads=2, intermediate_size=48, global_every=2, window=8, init_std=0.1
    ).build(60)
    optimizer = AdamW(lr=5e-3, weight_decay=0.0).build(model)
    objective = CausalThenMasked(causal_fraction=0.999 if stage == "causal" else 0.0, mask_rates=(0.3,))
    ids = tokens(60, 4, 16)
    ids[:, 0] = 2
    for _ in range(300):
        loss = objective.loss(model, Batch(input_ids=ids), seed=1, position=0, progress=0.5)
        mean = loss.sum / loss.count
        if mean.item() < 0.1:
            break
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
    assert mean.item() < 0.1
