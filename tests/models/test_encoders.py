"""What holds for every architecture: stock transformers agrees both ways, and the fast forward pass is the full one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

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
from small_models import disturb

from daybreak.core.errors import UserError
from daybreak.models.bert import BertEncoder
from daybreak.models.crammed import CrammedEncoder
from daybreak.models.importing import FAMILIES
from daybreak.models.modern import ModernEncoder

POSITIONS = torch.tensor([[0, 5, 19, 17], [12, 3, 0, 11], [4, 1, 1, 3]])
INPUTS = [(None, None), (padding(), None), (None, two_segments()), (padding(), two_segments())]
"""Padding and segments; only BERT has segments."""


@pytest.fixture(params=LAYOUTS)
def shape(request: pytest.FixtureRequest) -> Any:
    return LAYOUTS[request.param]


def inputs(shape: Any) -> list[Any]:
    return INPUTS if isinstance(shape, BertEncoder) else INPUTS[:2]


@torch.inference_mode()
def test_our_weights_give_the_same_logits_in_the_stock_class(shape: Any) -> None:
    model = built(shape)
    stock = stock_of(shape, model)
    for attention_mask, token_type_ids in inputs(shape):
        assert_same_model(model, stock, tokens(), attention_mask, token_type_ids)
    assert model.parameter_count() == stock.num_parameters()


@torch.inference_mode()
def test_stock_weights_give_the_same_logits_in_our_class(shape: Any) -> None:
    torch.manual_seed(4)
    stock = blank_stock(shape)
    disturb(stock)
    config = json.loads(stock.config.to_json_string())
    read, model = FAMILIES[config["model_type"]](config, stock.state_dict())
    dropout = {"dropout": 0.1, "attention_dropout": 0.1} if isinstance(shape, BertEncoder) else {}
    expected = replace(shape, **dropout).to_hugging_face(VOCABULARY, LENGTH)
    assert model.eval().shape is read  # type: ignore[attr-defined]
    assert read.to_hugging_face(VOCABULARY, LENGTH) == expected and read.longest == shape.longest
    for attention_mask, token_type_ids in inputs(shape):
        assert_same_model(model, stock, tokens(), attention_mask, token_type_ids)


def test_the_export_comes_back_exactly(shape: Any) -> None:
    model = built(shape)
    config = json.loads(json.dumps(shape.to_hugging_face(VOCABULARY, LENGTH)))
    again_shape, again = FAMILIES[config["model_type"]](config, shape.export_weights(model))
    dropout = {"dropout": 0.1, "attention_dropout": 0.1} if isinstance(shape, BertEncoder) else {}
    assert again_shape == replace(shape, **dropout)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@torch.inference_mode()
def test_a_model_in_half_precision_gives_nearly_the_same_states(shape: Any, dtype: torch.dtype) -> None:
    """As in a search, without autocast."""
    exact, low = built(shape), built(shape).to(dtype)
    for attention_mask, token_type_ids in inputs(shape):
        expected = exact.states(tokens(), attention_mask=attention_mask, token_type_ids=token_type_ids)
        found = low.states(tokens(), attention_mask=attention_mask, token_type_ids=token_type_ids)
        assert found.dtype == dtype
        assert torch.cosine_similarity(found.float(), expected, dim=2).min() > 0.99


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@torch.inference_mode()
def test_chosen_positions_are_the_full_forward_gathered(shape: Any, causal: bool, padded: bool) -> None:
    model, how = (
        built(shape),
        {"causal": causal, "attention_mask": padding() if padded else None, "token_type_ids": two_segments()},
    )
    full = model.features(tokens(), **how)
    picked = full.gather(1, POSITIONS[:, :, None].expand(-1, -1, model.hidden_size))
    torch.testing.assert_close(model.features(tokens(), POSITIONS, **how), picked, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@torch.inference_mode()
def test_causal_states_do_not_know_the_future(shape: Any, padded: bool) -> None:
    model, ids = built(shape), tokens()
    attention_mask = torch.ones_like(ids, dtype=torch.bool) if padded else None
    changed = ids.clone()
    changed[:, 10] = (changed[:, 10] - 5 + 7) % (VOCABULARY - 5) + 5
    before, after = (model.states(x, causal=True, attention_mask=attention_mask) for x in (ids, changed))
    torch.testing.assert_close(before[:, :10], after[:, :10], rtol=1e-6, atol=1e-6)
    assert (before[:, 10] - after[:, 10]).abs().max() > 1e-3
    both = model.states(ids, attention_mask=attention_mask) - model.states(changed, attention_mask=attention_mask)
    assert both[:, 8:10].abs().max() > 1e-4  # without the switch the past does see it


@pytest.mark.parametrize("positions", [None, POSITIONS], ids=["all", "positions"])
@pytest.mark.parametrize("name", [name for name in LAYOUTS if not name.startswith("modern")])
@torch.inference_mode()
def test_dropout_is_replayed_from_the_seed_and_absent_in_evaluation(name: str, positions: torch.Tensor | None) -> None:
    shape = LAYOUTS[name]
    dropout = {"dropout": 0.1, **({"attention_dropout": 0.1} if isinstance(shape, BertEncoder) else {})}
    model, plain, ids = built(replace(shape, **dropout)), built(shape), tokens()
    plain.load_state_dict(model.state_dict())

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.train().logits(ids, positions)

    assert torch.equal(drawn(5), drawn(5)) and not torch.equal(drawn(5), drawn(6))
    assert torch.equal(model.eval().logits(ids, positions), plain.train().logits(ids, positions))
    exported = shape.to_hugging_face(VOCABULARY, LENGTH)
    assert exported == replace(shape, **dropout).to_hugging_face(VOCABULARY, LENGTH)


WIDE: dict[str, Any] = {"layers": 2, "hidden_size": 128, "heads": 2, "intermediate_size": 256, "init_std": 0.09}


@pytest.mark.parametrize(
    ("shape", "value_output"),
    [
        (ModernEncoder(**WIDE, query_key_correlation=0.7), 0.0),
        (BertEncoder(**WIDE, query_key_correlation=0.7, value_output_correlation=0.5), 0.5),
        (CrammedEncoder(**WIDE, query_key_correlation=0.7, value_output_correlation=0.5), 0.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_attention_weights_can_start_correlated_at_the_same_variance(shape: Any, value_output: float) -> None:
    for block in shape.build(50).blocks:
        query, key, value = block.attention.qkv.weight.detach().chunk(3)
        out = block.attention.out.weight.detach()
        for first, second, expected in ((query, key, 0.7), (query, value, 0.0), (value.T, out, value_output)):
            pair = torch.stack([first.flatten(), second.flatten()])
            assert abs(float(torch.corrcoef(pair)[0, 1]) - expected) < 0.03
        assert abs(float(key.std() / query.std()) - 1) < 0.03
    for correlation in ("query_key_correlation", "value_output_correlation"):
        if hasattr(shape, correlation):
            with pytest.raises(UserError, match="correlations"):
                replace(shape, **{correlation: 1.5})


SIZES: dict[str, Any] = {"layers": 1, "hidden_size": 32, "heads": 2, "intermediate_size": 8}


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        *((kind, {"heads": 5}, "heads") for kind in (BertEncoder, CrammedEncoder, ModernEncoder)),
        *((kind, {"layers": 0}, "at least 1") for kind in (BertEncoder, CrammedEncoder, ModernEncoder)),
        *((kind, {"dropout": -0.1}, "dropout") for kind in (BertEncoder, CrammedEncoder)),
        *((kind, {"finetune_dropout": 1.0}, "dropout") for kind in (BertEncoder, CrammedEncoder)),
        *((BertEncoder, {"init_std": wrong}, r"--model\.init-std is") for wrong in (0.0, -0.02, math.nan, math.inf)),
        (CrammedEncoder, {"init_std": math.nan}, r"--model\.init-std is nan"),
        *((ModernEncoder, {name: 0.0}, "above 0") for name in ("init_std", "global_rope_base", "local_rope_base")),
        (ModernEncoder, {"hidden_size": 6}, "even"),
        (ModernEncoder, {"pooling": "max"}, "max"),
        (BertEncoder, {"attention_dropout": -0.1}, "dropout"),
        (BertEncoder, {"activation": "relu"}, "relu"),
        (BertEncoder, {"next_sentence": True, "segments": 1}, "two segments"),
        (BertEncoder, {"hidden_size": 127, "heads": 1, "sinusoidal_start": True}, "even hidden size"),
        (CrammedEncoder, {"hidden_size": 33, "heads": 3}, "even"),
        (CrammedEncoder, {"positions": "rotary"}, "rotary"),
        (CrammedEncoder, {"head": "round"}, "square"),
        (CrammedEncoder, {"pooling": "max"}, "max"),
        (CrammedEncoder, {"position_scale": -1.0}, "applies to sinusoids only"),
        (CrammedEncoder, {"position_scale": 0.3, "positions": "learned"}, "applies to sinusoids only"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(kind: Any, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        kind(**{**SIZES, **changes}).build(10)
