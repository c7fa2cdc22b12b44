"""Our crammed encoder: its published sizes, how it starts, and the published layouts against their specification.

The specification is restated here with nothing fused, on synthetic checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from encoder_layouts import ROWS, VOCABULARY, padding, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import assert_close
from torch import Tensor

from daybreak.core.errors import UserError
from daybreak.models.crammed import (
    Crammed,
    CrammedEncoder,
    from_hugging_face,
    published_names,
    published_shape,
    queries_keys_values,
)
from daybreak.models.modeling_crammed import CrammedConfig, CrammedForMaskedLM
from daybreak.training.optim.optimizers import roles

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


def test_positions_have_the_given_scale() -> None:
    plain = CrammedEncoder(layers=1, hidden_size=128, heads=2, intermediate_size=256, init_std=0.09)
    assert float(plain.build(50).position_scale.detach()) == pytest.approx(128**-0.5)
    assert float(replace(plain, position_scale=0.3).build(50).position_scale.detach()) == pytest.approx(0.3)


# ---------------------------------------------------------------- published checkpoints


def arch(
    version: int, *, layers: int, hidden_size: int, heads: int, intermediate_size: int, vocabulary: int, **changes: Any
) -> Any:
    """What matters of the published architecture file, as config.json holds it; changes name a group by ``__``."""
    found: dict[str, Any] = {
        "num_transformer_layers": layers, "hidden_size": hidden_size, "intermed_size": intermediate_size,
        "hidden_dropout_prob": 0.1,
        "norm": "LayerNorm", "norm_eps": 1e-12, "norm_scheme": "pre", "nonlin": "GELUglu", "tie_weights": True,
        "decoder_bias": False, "loss": "cross-entropy", "init": {"type": "normal", "std": 0.02}, "num_labels": None,
        "ffn_layer_frequency": 1, "skip_head_transform": True, "use_bias": False, "final_norm": True,
        "embedding": {
            "vocab_size": vocabulary, "pos_embedding": "scaled-sinusoidal", "pad_token_id": 0, "max_seq_length": 128,
            "embedding_dim": hidden_size, "normalization": True,
        },
        "attention": {
            "type": "flash-attention-impl" if version == 1 else "self-attention", "causal_attention": False,
            "num_attention_heads": heads, "skip_output_projection": False, "qkv_bias": False,
            "rotary_embedding": False, "sequence_op": "torch-softmax",
        },
        "classification_head": {"pooler": "avg", "include_ff_layer": True, "head_dim": 1024},
    }  # fmt: skip
    if version == 1:
        found |= {"deepnorm_scaling": False, "layer_drop_theta": None, "recurrent_layers": None}
        found |= {"layer_macro_type": "transformer", "sparse_prediction": True}
    else:
        found |= {"objective_layout": "MLM", "sparse_prediction": 0.25}
    for name, value in changes.items():
        group, _, entry = name.rpartition("__")
        (found[group] if group else found)[entry] = value
    return found


SIMPLE_CHANGES = {
    "nonlin": "GELU", "decoder_bias": True, "use_bias": True, "attention__qkv_bias": True, "final_norm": False,
    "embedding__pos_embedding": "learned", "skip_head_transform": False,
}  # fmt: skip


def documented(config: dict[str, Any], version: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the published files: parameters, then the buffers that lie beside them."""
    width, inner, words = config["hidden_size"], config["intermed_size"], config["embedding"]["vocab_size"]
    halved = inner // 2 if config["nonlin"] == "GELUglu" else inner
    fused = "flash_mha.Wqkv" if version == 1 else "query_key_value"
    linear = {"decoder": (words, width)}
    norms = ["encoder.embedding.norm", *(["encoder.final_norm"] if config["final_norm"] else [])]
    sizes: dict[str, tuple[int, ...]] = {"encoder.embedding.word_embedding.weight": (words, width)}
    if config["embedding"]["pos_embedding"] == "learned":
        sizes["encoder.embedding.pos_embedding.embedding.weight"] = (128, width)
        sizes["encoder.embedding.pos_embedding.position_ids"] = (1, 128)
    else:
        sizes["encoder.embedding.pos_embedding.scale_factor"] = (1,)
    for layer in range(config["num_transformer_layers"]):
        start = f"encoder.layers.{layer}."
        norms += [start + "norm1", start + "norm2"]
        linear[f"{start}attn.self_attention.{fused}"] = (3 * width, width)
        linear[f"{start}attn.dense"] = (width, width)
        linear[f"{start}ffn.dense_in"] = (inner, width)
        linear[f"{start}ffn.dense_out"] = (width, halved)
        sizes[f"{start}alpha" if version == 1 else f"{start}attn.self_attention.norm_factor"] = ()
    if version == 1:
        sizes["encoder.p"] = ()
        linear["prediction_head"] = (width, width)
    elif not config["skip_head_transform"]:
        linear["prediction_head.dense"] = (width, width)
        norms.append("prediction_head.norm")
    for name, size in linear.items():
        sizes[name + ".weight"] = size
        if config["use_bias"]:
            sizes[name + ".bias"] = size[:1]
    return sizes | {f"{name}.{kind}": (width,) for name in norms for kind in ("weight", "bias")}


def synthetic(config: dict[str, Any], version: int) -> dict[str, Tensor]:
    """Random weights under the documented names."""
    torch.manual_seed(5)
    weights = {name: 0.3 * torch.randn(size) for name, size in documented(config, version).items()}
    for name in weights:
        if name.endswith(("alpha", "encoder.p")):
            weights[name] = torch.tensor(1.0)
        elif name.endswith("norm_factor"):
            weights[name] = torch.tensor((config["hidden_size"] / config["attention"]["num_attention_heads"]) ** -0.5)
        elif name.endswith("position_ids"):
            weights[name] = torch.arange(128)[None]
    weights["decoder.weight"] = weights["encoder.embedding.word_embedding.weight"].clone()
    return weights


def published_forward(
    config: dict[str, Any], weights: dict[str, Tensor], ids: Tensor, attention_mask: Tensor | None
) -> Tensor:
    """Logits of one row [L, V], by the specification: head by head, in float64, with nothing fused."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    width, heads = config["hidden_size"], config["attention"]["num_attention_heads"]
    channels, length = width // heads, len(ids)

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[name + ".weight"].T + w.get(name + ".bias", torch.zeros(1, dtype=torch.float64))

    def norm(name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + config["norm_eps"]).sqrt()
        return scaled * w[name + ".weight"] + w[name + ".bias"]

    def gelu(x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))

    places = torch.zeros(length, width, dtype=torch.float64)
    for p in range(length):
        for i in range(width // 2):
            angle = p * 10_000.0 ** (-2 * i / width)
            places[p, 2 * i], places[p, 2 * i + 1] = math.sin(angle), math.cos(angle)
    if "encoder.embedding.pos_embedding.scale_factor" in w:
        places *= w["encoder.embedding.pos_embedding.scale_factor"]
    else:
        places = w["encoder.embedding.pos_embedding.embedding.weight"][:length]
    hidden = norm("encoder.embedding.norm", w["encoder.embedding.word_embedding.weight"][ids] + places)
    unseen = (
        torch.zeros(length, dtype=torch.float64)
        if attention_mask is None
        else (1.0 - attention_mask.double()) * -10_000.0
    )
    for layer in range(config["num_transformer_layers"]):
        start = f"encoder.layers.{layer}."
        x, mixed = norm(start + "norm1", hidden), []
        for head in range(heads):
            if config["attention"]["type"] == "self-attention":
                qkv = linear(start + "attn.self_attention.query_key_value", x)
                query, key, value = qkv[:, 3 * channels * head : 3 * channels * (head + 1)].split(channels, dim=1)
            else:
                qkv = linear(start + "attn.self_attention.flash_mha.Wqkv", x)
                here = slice(channels * head, channels * (head + 1))
                query, key, value = (part[:, here] for part in qkv.split(width, dim=1))
            mixed.append(torch.softmax(query @ key.T / math.sqrt(channels) + unseen, dim=-1) @ value)
        hidden = hidden + linear(start + "attn.dense", torch.cat(mixed, dim=1))
        inner = linear(start + "ffn.dense_in", norm(start + "norm2", hidden))
        if config["nonlin"] == "GELUglu":
            passed, gate = inner.chunk(2, dim=-1)
            inner = passed * gelu(gate)
        else:
            inner = gelu(inner)
        hidden = hidden + linear(start + "ffn.dense_out", inner)
    if config["final_norm"]:
        hidden = norm("encoder.final_norm", hidden)
    if "prediction_head.weight" in w:
        hidden = linear("prediction_head", hidden)
    elif "prediction_head.dense.weight" in w:
        hidden = norm("prediction_head.norm", gelu(linear("prediction_head.dense", hidden)))
    return linear("decoder", hidden)


TINY = {"layers": 2, "hidden_size": 24, "heads": 3, "intermediate_size": 40, "vocabulary": VOCABULARY}
PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "version 2": (2, {}),
    "version 1": (1, {}),
    "version 1 without flash-attention": (1, {"attention__type": "self-attention"}),
    "simple": (2, SIMPLE_CHANGES),
    "izsak": (2, {**SIMPLE_CHANGES, "norm_eps": 1e-6}),
}


@pytest.mark.parametrize("name", PUBLISHED)
@torch.inference_mode()
def test_a_published_checkpoint_gives_its_logits(name: str) -> None:
    version, changes = PUBLISHED[name]
    config = arch(version, **TINY, **changes)
    weights = synthetic(config, version)
    if "without" in name:
        weights = {key.replace("flash_mha.Wqkv", "query_key_value"): value for key, value in weights.items()}
    shape, model = from_hugging_face({"model_type": "crammedBERT", "arch": config}, weights)
    assert shape.pooling == "first" and shape.attend_padding is (config["attention"]["type"] != "self-attention")
    ids, attention_mask = tokens(), padding()
    for row in range(ROWS):
        theirs = published_forward(config, weights, ids[row], None)
        assert_close(model.logits(ids)[row].double(), theirs)
    for attends in (False, True):
        again = Crammed(replace(shape, attend_padding=attends), model.vocabulary)
        again.load_state_dict(model.state_dict())
        seen = None if attends else attention_mask[2]
        theirs = published_forward(config, weights, ids[2], seen)
        assert_close(again.logits(ids, attention_mask=attention_mask)[2, :7].double(), theirs[:7])


@pytest.mark.parametrize("name", ["version 2", "version 1", "simple", "izsak"])
def test_published_names_and_shapes_at_full_size(name: str) -> None:
    version, changes = PUBLISHED[name]
    sizes = {"layers": 16, "hidden_size": 768, "heads": 12, "intermediate_size": 3072}
    sizes |= {
        "simple": {"layers": 12},
        "izsak": {"layers": 24, "hidden_size": 1024, "heads": 16, "intermediate_size": 4096},
    }.get(name, {})
    config = arch(version, **sizes, vocabulary=32_768, **changes)
    if name == "simple":
        config["classification_head"]["head_dim"] = 768
    shape = published_shape(config, square=version == 1)
    assert shape == {"version 2": VERSION_2, "version 1": VERSION_1, "simple": SIMPLE, "izsak": LARGE_IZSAK}[name]
    with torch.device("meta"):
        state = Crammed(shape, 32_768).state_dict()
    kind = config["attention"]["type"]
    ours = {
        published_names(n, attention=kind, head=shape.head)[0]: tuple(tensor.shape) or (1,)
        for n, tensor in state.items()
    }
    buffers = ("alpha", "norm_factor", "position_ids", "encoder.p")
    assert ours == {n: size for n, size in documented(config, version).items() if not n.endswith(buffers)}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"norm": "RMSNorm"}, "RMSNorm"),
        ({"norm_scheme": "post"}, "norm_scheme"),
        ({"nonlin": "SiLU"}, "nonlin"),
        ({"tie_weights": False}, "tie_weights"),
        ({"objective_layout": "SCRIPT"}, "SCRIPT"),
        ({"ffn_layer_frequency": 2}, "ffn_layer_frequency"),
        ({"recurrent_layers": 4}, "recurrent_layers"),
        ({"layer_macro_type": "FLASH"}, "FLASH"),
        ({"embedding__pos_embedding": "sinusoidal"}, "pos_embedding"),
        ({"embedding__normalization": False}, "normalization"),
        ({"embedding__embedding_dim": 12}, "as wide as"),
        ({"attention__type": "fourier"}, "fourier"),
        ({"attention__rotary_embedding": True}, "rotary_embedding"),
        ({"attention__causal_attention": True}, "causal_attention"),
        ({"attention__qkv_bias": True}, "not in all"),
        ({"attention__sequence_op": "torch-norm"}, "torch-norm"),
    ],
)
def test_a_published_variant_that_we_cannot_hold_is_refused(changes: dict[str, Any], named: str) -> None:
    config = arch(2, **TINY)
    weights = synthetic(config, 2)
    with pytest.raises(UserError, match=named):
        from_hugging_face({"model_type": "crammedBERT", "arch": arch(2, **TINY, **changes)}, weights)


def test_weights_that_do_not_fit_their_config_are_refused() -> None:
    config = {"model_type": "crammedBERT", "arch": arch(2, **TINY)}
    weights = synthetic(config["arch"], 2)
    name = "encoder.layers.1.attn.self_attention.query_key_value.weight"
    for changed, named in (
        ({key: value for key, value in weights.items() if key != name}, name),
        ({**weights, name: weights[name][:-1]}, r"is \(71, 24\)"),
        ({**weights, "decoder.weight": weights["decoder.weight"] + 1}, "not tied"),
        ({**weights, "encoder.layers.1.norm3.weight": torch.ones(24)}, "norm3"),
    ):
        with pytest.raises(UserError, match=named):
            from_hugging_face(config, changed)
    with pytest.raises(UserError, match="'bert'"):
        from_hugging_face({"model_type": "bert"}, weights)
    with pytest.raises(UserError, match=r"lacks arch\.hidden_size"):
        from_hugging_face({**config, "arch": {k: v for k, v in config["arch"].items() if k != "hidden_size"}}, weights)
    with pytest.raises(UserError, match="lacks 'hidden_size'"):
        from_hugging_face({"model_type": "daybreak-crammed", "num_hidden_layers": 1}, weights)


@settings(max_examples=25, deadline=None)
@given(heads=st.integers(1, 6), channels=st.integers(1, 5), bias=st.booleans())
def test_head_by_head_becomes_queries_keys_values(heads: int, channels: int, bias: bool) -> None:
    label = torch.tensor([[kind, head, c] for head in range(heads) for kind in range(3) for c in range(channels)])
    ordered = queries_keys_values(label[:, 0] * 100 + label[:, 1] * 10 + label[:, 2] if bias else label, heads)
    wanted = [(kind, head, c) for kind in range(3) for head in range(heads) for c in range(channels)]
    assert ordered.tolist() == [kind * 100 + head * 10 + c if bias else [kind, head, c] for kind, head, c in wanted]
