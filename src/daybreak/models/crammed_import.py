"""The way in: a crammed checkpoint -> our model, refused where this architecture cannot hold it exactly.

Three layouts are known: our own export, the published version 2 (``crammed-bert``) and the published version 1
(``crammed-bert-legacy``). The published ones keep their architecture file under ``arch`` in ``config.json``, and differ
in the order of the fused projection's channels: version 2 goes head by head (query, key, value of one head, then the
next head); version 1, whose attention is flash-attention's, has all queries, then all keys, then all values, as ours.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from daybreak.core.errors import UserError
from daybreak.models.crammed import MODEL_TYPE, Crammed, CrammedEncoder, hugging_face_name

PUBLISHED_TYPE = "crammedBERT"
HEAD_BY_HEAD, FLASH = "self-attention", "flash-attention-impl"
FUSED = {HEAD_BY_HEAD: "query_key_value", FLASH: "flash_mha.Wqkv"}

FIXED: dict[str, tuple[Any, ...]] = {
    "norm": ("LayerNorm",),
    "norm_scheme": ("pre",),
    "nonlin": ("GELUglu", "GELU"),
    "tie_weights": (True,),
    "objective_layout": ("MLM",),
    "ffn_layer_frequency": (1,),
    "deepnorm_scaling": (False,),
    "layer_drop_theta": (None,),
    "recurrent_layers": (None,),
    "layer_macro_type": ("transformer",),
    "embedding.pos_embedding": ("scaled-sinusoidal", "learned"),
    "embedding.normalization": (True,),
    "attention.type": (HEAD_BY_HEAD, FLASH),
    "attention.causal_attention": (False,),
    "attention.rotary_embedding": (False,),
    "attention.skip_output_projection": (False,),
    "attention.sequence_op": ("torch-softmax",),
}
"""What the published ``arch`` may say; an entry that it lacks has the first value, where no shape hangs on it."""

BUFFERS = ("norm_factor", "position_ids", "alpha", "encoder.p")
"""Ends of names that the published files hold beside the parameters; all follow from the config."""


def from_hugging_face(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[CrammedEncoder, Crammed]:
    """Build our model from a ``config.json`` and state dict of one of the three layouts.

    Padding is attended to where it was in training: in version 1 it is, for its attention never sees the mask.

    Raises:
        UserError: the checkpoint has parts that this architecture cannot hold, or lacks tensors.
    """
    kind = config.get("model_type")
    if kind == MODEL_TYPE:
        shape, vocabulary = _own_shape(config), int(config["vocab_size"])
    elif kind == PUBLISHED_TYPE and isinstance(config.get("arch"), dict):
        arch = config["arch"]
        shape, vocabulary = (
            published_shape(arch, "prediction_head.weight" in weights),
            int(_entry(arch, "embedding.vocab_size")),
        )
    else:
        raise UserError(f"The checkpoint is a {kind!r}, not a crammed encoder.", "Use a crammed checkpoint.")
    with torch.device("meta"):
        sizes = {name: tuple(t.shape) for name, t in Crammed(shape, vocabulary).state_dict().items()}
    if kind == MODEL_TYPE:
        names = {name: hugging_face_name(name) for name in sizes}
    else:
        names = {name: published_name(name, arch["attention"]["type"], shape.head) for name in sizes}
    state = _checked(weights, sizes, names)
    if kind == PUBLISHED_TYPE and arch["attention"]["type"] == HEAD_BY_HEAD:
        for name in state:
            if ".attention.qkv." in name:
                state[name] = queries_keys_values(state[name], shape.heads)
    model = Crammed(shape, vocabulary)
    model.load_state_dict(state)
    return shape, model


def _own_shape(config: dict[str, Any]) -> CrammedEncoder:
    fields = {
        "layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "gated": "gated",
        "biases": "biases",
        "positions": "positions",
        "longest_row": "longest_row",
        "head": "mlm_head",
        "final_norm": "final_norm",
        "epsilon": "norm_eps",
        "attend_padding": "attend_padding",
        "finetune_dropout": "dropout",
        "pooling": "classifier_pooling",
        "classifier_width": "classifier_width",
        "init_std": "initializer_range",
    }
    missing = [theirs for theirs in [*fields.values(), "vocab_size"] if theirs not in config]
    if missing:
        raise UserError(f"The checkpoint's config.json lacks '{missing[0]}'.", "Use the folder as it was exported.")
    return CrammedEncoder(**{ours: config[theirs] for ours, theirs in fields.items()})


def published_shape(arch: dict[str, Any], square: bool) -> CrammedEncoder:
    """Read the shape from a published architecture file.

    Args:
        square: whether a bare linear map stands before the decoder (version 1); version 2 has the same file, but none.

    Raises:
        UserError: it describes what this architecture cannot hold.
    """
    for name, known in FIXED.items():
        value = _entry(arch, name, known[0])
        if value not in known:
            raise UserError(
                f"The checkpoint has {name} = {value!r}; only {' or '.join(map(repr, known))} can be held.",
                "Use another checkpoint.",
            )
    hidden_size = int(_entry(arch, "hidden_size"))
    if int(_entry(arch, "embedding.embedding_dim", hidden_size)) != hidden_size:
        raise UserError("The checkpoint's embedding is not as wide as its layers.", "Use another checkpoint.")
    biases = {bool(_entry(arch, name, False)) for name in ("use_bias", "decoder_bias", "attention.qkv_bias")}
    if len(biases) > 1:
        raise UserError("The checkpoint has biases in some linear maps but not in all.", "Use another checkpoint.")
    gated, intermediate_size = _entry(arch, "nonlin") == "GELUglu", int(_entry(arch, "intermed_size"))
    return CrammedEncoder(
        layers=int(_entry(arch, "num_transformer_layers")),
        hidden_size=hidden_size,
        heads=int(_entry(arch, "attention.num_attention_heads")),
        intermediate_size=intermediate_size // 2 if gated else intermediate_size,
        gated=gated,
        biases=biases.pop(),
        positions="learned" if _entry(arch, "embedding.pos_embedding") == "learned" else "sinusoid",
        longest_row=int(_entry(arch, "embedding.max_seq_length")),
        head=("square" if square else "none") if _entry(arch, "skip_head_transform") else "dense",
        final_norm=bool(_entry(arch, "final_norm")),
        epsilon=float(_entry(arch, "norm_eps")),
        attend_padding=_entry(arch, "attention.type") == FLASH,
        finetune_dropout=float(_entry(arch, "hidden_dropout_prob", 0.1)),
        # The file says average, but the published evaluation overrides it by the first token.
        pooling="first",
        classifier_width=int(_entry(arch, "classification_head.head_dim", hidden_size)),
        init_std=float(_entry(arch, "init.std", 0.02)),
    )


def published_name(name: str, attention: str, head: str) -> str:
    """Translate one of our parameter names into the published one.

    Args:
        attention: their ``attention.type``.
        head: our ``CrammedEncoder.head``.
    """
    inside = {
        "attention_norm": "norm1",
        "attention.qkv": "attn.self_attention." + FUSED[attention],
        "attention.out": "attn.dense",
        "unit_norm": "norm2",
        "unit.up": "ffn.dense_in",
        "unit.down": "ffn.dense_out",
    }
    outside = {
        "embedding": "encoder.embedding.word_embedding",
        "embedding_norm": "encoder.embedding.norm",
        "position_embedding": "encoder.embedding.pos_embedding.embedding",
        "final_norm": "encoder.final_norm",
        "head.dense": "prediction_head" if head == "square" else "prediction_head.dense",
        "head.norm": "prediction_head.norm",
        "output": "decoder",
    }
    if name == "position_scale":
        return "encoder.embedding.pos_embedding.scale_factor"
    module, _, kind = name.rpartition(".")
    if module.startswith("blocks."):
        _, index, part = module.split(".", 2)
        return f"encoder.layers.{index}.{inside[part]}.{kind}"
    return f"{outside[module]}.{kind}"


def queries_keys_values(channels: Tensor, heads: int) -> Tensor:
    """Reorder the first axis, 3 D long, from head by head to all queries, all keys, all values."""
    return channels.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def _checked(weights: dict[str, Tensor], sizes: dict[str, tuple[int, ...]], names: dict[str, str]) -> dict[str, Tensor]:
    """Our state dict in float32 from theirs; ``sizes`` and ``names`` (ours -> theirs) say what must be there."""
    given = dict(weights)
    embedding = given.get(names["embedding.weight"])
    if embedding is not None:
        # The tied weight may be stored twice, once or under one name only.
        given.setdefault("decoder.weight", embedding)
        if not torch.equal(given["decoder.weight"], embedding):
            raise UserError("The checkpoint's decoder is not tied to its embedding.", "Use one with tied embeddings.")
    for ours, theirs in names.items():
        if theirs not in given:
            raise UserError(f"The checkpoint lacks '{theirs}'.", "Use a complete checkpoint of the masked-LM model.")
        size = tuple(given[theirs].shape)
        if size != (sizes[ours] or (1,)) and size != sizes[ours]:
            raise UserError(
                f"The checkpoint's '{theirs}' is {size}, but its config.json asks for {sizes[ours]}.",
                "Use weights and config of one checkpoint.",
            )
    foreign = sorted(name for name in set(given) - set(names.values()) if not name.endswith(BUFFERS))
    if foreign:
        raise UserError(
            f"The checkpoint holds '{foreign[0]}', which a crammed encoder lacks.", "Use another checkpoint."
        )
    return {ours: given[theirs].float().reshape(sizes[ours]) for ours, theirs in names.items()}


REQUIRED = object()


def _entry(arch: dict[str, Any], name: str, default: Any = REQUIRED) -> Any:
    """The entry at a dotted path."""
    found: Any = arch
    for part in name.split("."):
        found = found.get(part, REQUIRED) if isinstance(found, dict) else REQUIRED
    if found is REQUIRED:
        found = default
    if found is REQUIRED:
        raise UserError(f"The checkpoint's config.json lacks arch.{name}.", "Use the config.json of the checkpoint.")
    return found
