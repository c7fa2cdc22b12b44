"""Our fast forward against the evaluate: transformers' ModernBertForMaskedLM, both ways, at several layouts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_models import assert_close, disturb
from torch import Tensor
from transformers import AutoModelForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

from daybreak.core.batch import Batch
from daybreak.core.errors import UserError
from daybreak.models.modern import ModernBert, ModernEncoder, from_hugging_face, shape_from_hugging_face
from daybreak.recipe import load_recipe
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.optim.optimizers import AdamW

VOCABULARY, ROWS, LENGTH = 211, 3, 40

LAYOUTS = {
    "global": ModernEncoder(layers=3, hidden_size=48, heads=4, intermediate_size=40, init_std=0.2),
    "mixed": ModernEncoder(
        layers=5,
        hidden_size=48,
        heads=3,
        intermediate_size=40,
        global_every=3,
        window=10,
        global_rope_base=160_000.0,
        init_std=0.2,
    ),
    "one global": ModernEncoder(
        layers=3, hidden_size=32, heads=2, intermediate_size=32, global_every=3, window=6, init_std=0.2
    ),
    "one layer": ModernEncoder(layers=1, hidden_size=32, heads=2, intermediate_size=32, init_std=0.2),
}


def built(shape: ModernEncoder, vocabulary: int = VOCABULARY) -> ModernBert:
    torch.manual_seed(3)
    model = shape.build(vocabulary)
    disturb(model)
    return model.eval()


def stock_of(shape: ModernEncoder, model: ModernBert, length: int = LENGTH) -> ModernBertForMaskedLM:
    config = ModernBertConfig(**shape.to_hugging_face(model.vocabulary, length), attn_implementation="eager")
    stock = ModernBertForMaskedLM(config).eval()
    outcome = stock.load_state_dict(shape.export_weights(model), strict=False)
    assert outcome.unexpected_keys == [] and outcome.missing_keys == ["decoder.weight"]
    stock.tie_weights()
    return stock


def tokens(vocabulary: int = VOCABULARY, rows: int = ROWS, length: int = LENGTH) -> Tensor:
    return torch.randint(5, vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))


def padding() -> Tensor:
    """Rows of 40, 23 and 7 real positions."""
    return torch.arange(LENGTH)[None] < torch.tensor([[40], [23], [7]])


@pytest.fixture(params=LAYOUTS)
def shape(request: pytest.FixtureRequest) -> ModernEncoder:
    return LAYOUTS[request.param]


@torch.inference_mode()
def test_our_weights_give_the_same_logits_in_the_stock_class(shape: ModernEncoder) -> None:
    model, ids, attend = built(shape), tokens(), padding()
    stock = stock_of(shape, model)
    assert_close(model.logits(ids), stock(input_ids=ids).logits)
    ours = model.logits(ids, attend=attend)
    theirs = stock(input_ids=ids, attention_mask=attend.long()).logits
    assert_close(ours[attend], theirs[attend])
    assert model.parameter_count() == stock.num_parameters()


@torch.inference_mode()
def test_stock_weights_give_the_same_logits_in_our_class(shape: ModernEncoder) -> None:
    torch.manual_seed(4)
    config = ModernBertConfig(**shape.to_hugging_face(VOCABULARY, LENGTH), attn_implementation="eager")
    stock = ModernBertForMaskedLM(config).eval()
    disturb(stock)
    read, model = from_hugging_face(json.loads(config.to_json_string()), stock.state_dict())
    assert model.eval().shape is read
    assert (model.shape.layers, model.shape.window) == (shape.layers, shape.window)
    assert [model.shape.is_global(i) for i in range(shape.layers)] == [shape.is_global(i) for i in range(shape.layers)]
    ids, attend = tokens(), padding()
    assert_close(model.logits(ids), stock(input_ids=ids).logits)
    theirs = stock(input_ids=ids, attention_mask=attend.long()).logits
    assert_close(model.logits(ids, attend=attend)[attend], theirs[attend])


@torch.inference_mode()
def test_a_local_window_is_seen_in_the_logits() -> None:
    """Without this, parity of the mixed layouts might hold because the window never matters."""
    mixed = LAYOUTS["mixed"]
    wide = ModernEncoder(**{**vars(mixed), "window": 2 * LENGTH})
    near, far = built(mixed), built(wide)
    assert (near.logits(tokens()) - far.logits(tokens())).abs().max() > 0.01


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@torch.inference_mode()
def test_chosen_positions_are_the_full_forward_gathered(shape: ModernEncoder, causal: bool, padded: bool) -> None:
    model, ids = built(shape), tokens()
    attend = padding() if padded else None
    positions = torch.tensor([[0, 5, 39, 17], [22, 3, 0, 11], [6, 1, 2, 3]])
    full = model.features(ids, causal=causal, attend=attend)
    picked = full.gather(1, positions[:, :, None].expand(-1, -1, model.hidden_size))
    torch.testing.assert_close(
        model.features(ids, positions, causal=causal, attend=attend), picked, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@torch.inference_mode()
def test_causal_features_do_not_know_the_future(shape: ModernEncoder, padded: bool) -> None:
    model, ids = built(shape), tokens()
    attend = torch.ones_like(ids, dtype=torch.bool) if padded else None
    changed = ids.clone()
    changed[:, 20] = (changed[:, 20] - 5 + 7) % (VOCABULARY - 5) + 5
    before = model.features(ids, causal=True, attend=attend)
    after = model.features(changed, causal=True, attend=attend)
    torch.testing.assert_close(before[:, :20], after[:, :20], rtol=1e-6, atol=1e-6)
    assert (before[:, 20:22] - after[:, 20:22]).abs().amax() > 1e-3
    both = model.features(ids, attend=attend) - model.features(changed, attend=attend)
    assert both[:, 15:20].abs().amax() > 1e-4  # without the switch the past does see it


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


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("tiny", (2, 128, 2, 256, 8_192)),
        ("mini", (4, 256, 4, 512, 8_192)),
        ("small", (6, 384, 6, 768, 16_384)),
        ("base", (12, 768, 12, 2_048, 32_768)),
    ],
)
def test_the_family_has_the_planned_shapes_and_the_parameters_of_stock(name: str, sizes: tuple[int, ...]) -> None:
    recipe = load_recipe(name)
    shape = recipe.model
    assert isinstance(shape, ModernEncoder)
    assert (shape.layers, shape.hidden_size, shape.heads, shape.intermediate_size, recipe.tokenizer.vocabulary) == sizes
    with torch.device("meta"):
        stock = ModernBertForMaskedLM(ModernBertConfig(**shape.to_hugging_face(sizes[4], recipe.length)))
        ours = ModernBert(shape, sizes[4])
    assert ours.parameter_count() == stock.num_parameters()


@pytest.mark.parametrize("name", ["global", "mixed"])
@torch.inference_mode()
def test_the_exported_files_load_by_name(name: str, tmp_path: Path) -> None:
    shape = LAYOUTS[name]
    model = built(shape)
    (tmp_path / "config.json").write_text(json.dumps(shape.to_hugging_face(VOCABULARY, LENGTH)))
    save_file(shape.export_weights(model), tmp_path / "model.safetensors", metadata={"format": "pt"})
    stock = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert type(stock) is ModernBertForMaskedLM
    ids, attend = tokens(), padding()
    assert_close(model.logits(ids), stock(input_ids=ids).logits)
    theirs = stock(input_ids=ids, attention_mask=attend.long()).logits
    assert_close(model.logits(ids, attend=attend)[attend], theirs[attend])


# ---------------------------------------------------------------- what cannot be held exactly is refused


def stock_config(**changes: Any) -> dict[str, Any]:
    return {**LAYOUTS["mixed"].to_hugging_face(VOCABULARY, LENGTH), **changes}


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


def test_a_checkpoint_with_a_loose_decoder_or_a_missing_tensor_is_refused() -> None:
    shape = LAYOUTS["mixed"]
    weights = shape.export_weights(built(shape))
    loose = {**weights, "decoder.weight": weights["model.embeddings.tok_embeddings.weight"] + 1}
    with pytest.raises(UserError, match="not tied"):
        from_hugging_face(stock_config(), loose)
    for name in ("model.layers.2.attn.Wo.weight", "model.embeddings.tok_embeddings.weight"):
        with pytest.raises(UserError, match=name):
            from_hugging_face(stock_config(), {key: value for key, value in weights.items() if key != name})


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="heads"):
        ModernEncoder(layers=1, hidden_size=33, heads=2, intermediate_size=8).build(10)
    with pytest.raises(UserError, match="even"):
        ModernEncoder(layers=1, hidden_size=6, heads=2, intermediate_size=8).build(10)


@pytest.mark.parametrize("field", ["init_std", "global_rope_base", "local_rope_base"])
@pytest.mark.parametrize("value", [0.0, -0.02, math.nan, math.inf])
def test_a_number_that_must_be_above_0_and_is_not_is_refused_by_its_flag(field: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"--model.{field.replace('_', '-')} is .*\. Give a number above 0."):
        ModernEncoder(layers=1, hidden_size=8, heads=2, intermediate_size=8, **{field: value})


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
        loss = objective.loss(model, Batch(ids=ids), seed=1, position=0, progress=0.5)
        mean = loss.sum / loss.count
        if mean.item() < 0.1:
            break
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
    assert mean.item() < 0.1


def test_keys_start_correlated_with_queries_at_the_same_variance() -> None:
    shape = ModernEncoder(layers=2, hidden_size=128, heads=2, intermediate_size=256, query_key_correlation=0.5)
    for block in shape.build(50).blocks:
        query, key, value = block.attention.qkv.weight.detach().chunk(3)  # type: ignore[operator, union-attr]
        assert abs(float(torch.corrcoef(torch.stack([query.flatten(), key.flatten()]))[0, 1]) - 0.5) < 0.03
        assert abs(float(torch.corrcoef(torch.stack([query.flatten(), value.flatten()]))[0, 1])) < 0.03
        assert abs(float(key.std() / query.std()) - 1) < 0.03
