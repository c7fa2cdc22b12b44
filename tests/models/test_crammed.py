"""Our crammed encoder: its published sizes, how it starts, and that the fast forward is the full one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import disturb
from torch import Tensor

from daybreak.core.errors import UserError
from daybreak.models.crammed import Crammed, CrammedEncoder, from_hugging_face
from daybreak.models.modeling_crammed import CrammedConfig, CrammedForMaskedLM
from daybreak.training.optim.optimizers import roles

VOCABULARY, ROWS, LENGTH = 97, 3, 20
SMALL = {"layers": 2, "hidden_size": 24, "heads": 3, "intermediate_size": 20, "init_std": 0.2}

LAYOUTS = {
    "version 2": CrammedEncoder(**SMALL),
    "version 1": CrammedEncoder(**SMALL, head="square", attend_padding=True, pooling="mean"),
    "simple": CrammedEncoder(
        **SMALL, gated=False, biases=True, positions="learned", longest_row=32, head="dense", final_norm=False
    ),
    "one layer": CrammedEncoder(**{**SMALL, "layers": 1}, biases=True, epsilon=1e-6, pooling="mean"),
}
VERSION_2 = CrammedEncoder(layers=16, hidden_size=768, heads=12, intermediate_size=1536)
VERSION_1 = CrammedEncoder(
    layers=16, hidden_size=768, heads=12, intermediate_size=1536, head="square", attend_padding=True
)
SIMPLE = CrammedEncoder(
    layers=12, hidden_size=768, heads=12, intermediate_size=3072, gated=False, biases=True,
    positions="learned", head="dense",
    final_norm=False, classifier_width=768,
)  # fmt: skip
LARGE_IZSAK = CrammedEncoder(
    layers=24, hidden_size=1024, heads=16, intermediate_size=4096, gated=False, biases=True,
    positions="learned", head="dense",
    final_norm=False, epsilon=1e-6,
)  # fmt: skip


@pytest.fixture(params=LAYOUTS)
def shape(request: pytest.FixtureRequest) -> CrammedEncoder:
    return LAYOUTS[request.param]


def built(shape: CrammedEncoder) -> Crammed:
    torch.manual_seed(3)
    model = shape.build(VOCABULARY)
    disturb(model)
    return model.eval()


def tokens(rows: int = ROWS, length: int = LENGTH) -> Tensor:
    return torch.randint(5, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def padding() -> Tensor:
    """Rows of 20, 13 and 7 real positions."""
    return torch.arange(LENGTH)[None] < torch.tensor([[20], [13], [7]])


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "count"),
    [(VERSION_2, 119_589_889), (VERSION_1, 120_179_713), (SIMPLE, 110_945_024), (LARGE_IZSAK, 337_081_344)],
    ids=["version 2", "version 1", "simple", "large izsak"],
)
def test_parameters_are_those_of_the_published_models(shape: CrammedEncoder, count: int) -> None:
    with torch.device("meta"):
        ours = Crammed(shape, 32_768)
        theirs = CrammedForMaskedLM(CrammedConfig(**shape.to_hugging_face(32_768, 128)))
    assert ours.parameter_count() == theirs.num_parameters() == count


def test_weights_start_normal_and_the_padding_row_like_the_others() -> None:
    torch.manual_seed(0)
    model = CrammedEncoder(layers=2, hidden_size=128, heads=2, intermediate_size=256, biases=True, head="dense").build(
        2_000
    )
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
            assert parameter.abs().max() > 0.06, name  # a normal truncated at two deviations ends at 0.04
        elif parameter.dim() == 1:
            assert (parameter == (0.0 if name.endswith("bias") else 1.0)).all(), name
    assert model.embedding.weight[0].std().item() == pytest.approx(0.02, rel=0.3)
    assert model.decoder.weight is model.embedding.weight


def test_one_learned_number_scales_the_sinusoid() -> None:
    model = CrammedEncoder(layers=1, hidden_size=768, heads=12, intermediate_size=8).build(10)
    assert model.position_scale.item() == pytest.approx(0.0361, abs=5e-5)  # 768^(-1/2)
    table = model.positions(50) / model.position_scale
    for position, channel in ((0, 0), (1, 0), (7, 10), (7, 11), (49, 766), (49, 767)):
        angle = position * 10_000 ** (-2 * (channel // 2) / 768)
        expected = math.cos(angle) if channel % 2 else math.sin(angle)
        assert table[position, channel].item() == pytest.approx(expected, abs=1e-5)
    model.logits(torch.tensor([[1, 2, 3]]))[..., 0].sum().backward()
    assert model.position_scale.grad is not None and model.position_scale.grad != 0
    assert [name for name, role in roles(model).items() if role == "scalars"] == ["position_scale"]


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@torch.inference_mode()
def test_chosen_positions_are_the_full_forward_gathered(shape: CrammedEncoder, causal: bool, padded: bool) -> None:
    model, ids = built(shape), tokens()
    attend = padding() if padded else None
    positions = torch.tensor([[0, 5, 19, 17], [12, 3, 0, 11], [6, 1, 2, 3]])
    full = model.features(ids, causal=causal, attend=attend)
    picked = full.gather(1, positions[:, :, None].expand(-1, -1, model.hidden_size))
    assert_same(model.features(ids, positions, causal=causal, attend=attend), picked)


@torch.inference_mode()
def test_causal_features_do_not_know_the_future(shape: CrammedEncoder) -> None:
    model, ids = built(shape), tokens()
    changed = ids.clone()
    changed[:, 10] = (ids[:, 10] - 5 + 7) % (VOCABULARY - 5) + 5
    before, after = model.features(ids, causal=True), model.features(changed, causal=True)
    assert_same(before[:, :10], after[:, :10])
    assert (before[:, 10] - after[:, 10]).abs().amax() > 1e-3


def test_dropout_is_replayed_and_is_off_in_evaluation(shape: CrammedEncoder) -> None:
    model, ids = built(replace(shape, dropout=0.1)), tokens()
    positions = torch.tensor([[2, 0], [4, 5], [6, 6]])
    assert torch.equal(model.logits(ids, positions), built(shape).logits(ids, positions))
    model.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model.logits(ids, positions))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    asked = shape.to_hugging_face(VOCABULARY, LENGTH)["dropout"]
    assert asked == replace(shape, dropout=0.3).to_hugging_face(VOCABULARY, LENGTH)["dropout"] == 0.1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads": 5}, "heads"),
        ({"hidden_size": 33, "heads": 3}, "even"),
        ({"layers": 0}, "at least 1"),
        ({"positions": "rotary"}, "rotary"),
        ({"head": "round"}, "square"),
        ({"pooling": "max"}, "max"),
        ({"finetune_dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"init_std": -0.02}, "--model.init-std is -0.02"),
        ({"init_std": float("nan")}, "--model.init-std is nan"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        CrammedEncoder(**{**SMALL, **changes}).build(10)


def test_the_export_comes_back_exactly(shape: CrammedEncoder) -> None:
    model = built(shape)
    config = json.loads(json.dumps(shape.to_hugging_face(VOCABULARY, LENGTH)))
    again_shape, again = from_hugging_face(config, shape.export_weights(model))
    assert again_shape == shape
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))


def test_positions_have_the_given_scale_and_attention_weights_can_start_correlated() -> None:
    plain = CrammedEncoder(layers=1, hidden_size=128, heads=2, intermediate_size=256, init_std=0.09)
    assert float(plain.build(50).position_scale.detach()) == pytest.approx(128**-0.5)
    model = replace(plain, position_scale=0.3, query_key_correlation=0.7, value_output_correlation=0.5).build(50)
    assert float(model.position_scale.detach()) == pytest.approx(0.3)
    attention = model.blocks[0].attention
    query, key, value = attention.qkv.weight.detach().chunk(3)
    for first, second, expected in ((query, key, 0.7), (value.T, attention.out.weight.detach(), 0.5)):
        pair = torch.stack([first.flatten(), second.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1]) - expected) < 0.03
        assert abs(float(pair[1].std() / pair[0].std()) - 1) < 0.03
    for changes in ({"position_scale": -1.0}, {"position_scale": 0.3, "positions": "learned"}):
        with pytest.raises(UserError, match="scale of sinusoids"):
            replace(plain, **changes)
    with pytest.raises(UserError, match="correlations"):
        replace(plain, value_output_correlation=-0.1)
