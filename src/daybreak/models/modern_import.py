"""The way in: a stock ModernBERT checkpoint -> our model, refused where this architecture cannot hold it exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from daybreak.core.errors import UserError
from daybreak.models.modern import EPSILON, ModernBert, ModernEncoder, hugging_face_name


def from_hugging_face(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[ModernEncoder, ModernBert]:
    """Build our model from a stock ModernBERT ``config.json`` and state dict.

    Raises:
        UserError: the checkpoint has parts that this architecture cannot hold (biases, another activation, an untied
            decoder, irregular layers), or lacks tensors.
    """
    shape = shape_from_hugging_face(config)
    model = ModernBert(shape, int(config["vocab_size"]))
    state = dict(weights)
    state.setdefault("decoder.weight", state.get("model.embeddings.tok_embeddings.weight", torch.empty(0)))
    wanted = {hugging_face_name(name): name for name in model.state_dict()}
    missing = sorted(set(wanted) - set(state))
    if missing:
        raise UserError(f"The checkpoint lacks '{missing[0]}'.", "Use a ModernBertForMaskedLM checkpoint.")
    if not torch.equal(state["decoder.weight"], state["model.embeddings.tok_embeddings.weight"]):
        raise UserError("The checkpoint's decoder is not tied to its embedding.", "Use one with tied embeddings.")
    model.load_state_dict({ours: state[theirs].float() for theirs, ours in wanted.items()})
    return shape, model


def shape_from_hugging_face(config: dict[str, Any]) -> ModernEncoder:
    """Read the shape from a stock ``config.json``; beside the sizes, what it lacks has transformers' default."""
    fixed = {"hidden_activation": "gelu", "classifier_activation": "gelu", "norm_eps": EPSILON, "decoder_bias": True}
    fixed |= {"norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False}
    for name, value in fixed.items():
        if config.get(name, value) != value:
            raise UserError(
                f"The checkpoint has {name} = {config[name]!r}; only {value!r} is known.", "Use another checkpoint."
            )
    if config.get("model_type") != "modernbert":
        raise UserError(f"The checkpoint is a {config.get('model_type')!r}, not a ModernBERT.", "Use a ModernBERT.")
    layers = int(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    every = int(config.get("global_attn_every_n_layers", 3))
    if kinds:
        every = kinds[1:].index("full_attention") + 1 if "full_attention" in kinds[1:] else layers
    rope = config.get("rope_parameters") or {}
    for kind, settings in rope.items():
        if isinstance(settings, dict) and settings.get("rope_type", "default") != "default":
            raise UserError(
                f"The checkpoint phases the rotary positions of {kind}; only the default is known.",
                "Use another checkpoint.",
            )
    shape = ModernEncoder(
        layers=layers,
        hidden_size=int(config["hidden_size"]),
        heads=int(config["num_attention_heads"]),
        intermediate_size=int(config["intermediate_size"]),
        global_every=max(1, every),
        window=int(config.get("local_attention", 128)),
        global_rope_base=_rope_base(rope, "full_attention", config.get("global_rope_theta", 160_000.0)),
        local_rope_base=_rope_base(rope, "sliding_attention", config.get("local_rope_theta", 10_000.0)),
        pooling=config.get("classifier_pooling", "cls"),
        init_std=float(config.get("initializer_range", 0.02)),
    )
    if kinds and kinds != shape.to_hugging_face(1, 1)["layer_types"]:
        raise UserError("The checkpoint's local and global layers follow no fixed period.", "Use another checkpoint.")
    return shape


def _rope_base(rope: dict[str, Any], kind: str, default: float) -> float:
    return float((rope.get(kind) or {}).get("rope_theta", default))
