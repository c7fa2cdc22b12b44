"""Cramming's encoder (arXiv 2212.14034): both published versions and the variants of its repository.

Blocks are pre-norm and have few biases. The feed-forward unit is GELU, with or without a gate. Positions are learned,
or a sinusoid times one learned scale. The decoder is tied to the embeddings and has a small head or none. Dropout is 0
by default, because the original pretrains in eval mode. Queries, keys and values share one projection, and the last
layer computes queries and its feed-forward unit at the masked positions only.

transformers has no class for it, so the export contains ``modeling_crammed.py`` and its layers, which are those of the
training.

Three checkpoint layouts are read: Daybreak's export, the published version 2 (``crammed-bert``) and the published
version 1 (``crammed-bert-legacy``). The published ones keep their architecture file under ``arch`` in ``config.json``.
They differ in the channel order of the fused projection: version 2 stores query, key and value of one head after the
other; version 1, which uses flash-attention, stores all queries, all keys, all values, as Daybreak does.

B sequences, L positions, K masked positions, D hidden size, H heads, C = D / H, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from daybreak.core.encoder import Encoder, EncoderConfig, check_positive, special_entries
from daybreak.core.errors import UserError
from daybreak.core.serialization import check_choice
from daybreak.models.layers import Dropout, sinusoid_table
from daybreak.models.modeling_crammed_layers import Block, Head
from daybreak.models.trunk import (
    Trunk,
    check_fixed,
    check_heads,
    check_shape,
    correlate_attention,
    export_state,
    load_checkpoint,
)
from daybreak.schemas.run import SpecialIds

MODEL_TYPE = "daybreak-crammed"
MODELLING_FILES = {
    name: Path(__file__).with_name(name) for name in ("modeling_crammed.py", "modeling_crammed_layers.py", "layers.py")
}
HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering")
AUTO_MAP = {
    "AutoConfig": "modeling_crammed.CrammedConfig",
    "AutoModel": "modeling_crammed.CrammedModel",
    **{f"AutoModelFor{head}": f"modeling_crammed.CrammedFor{head}" for head in HEADS},
}
ENTRIES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
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
"""Fields of ``CrammedEncoder`` -> entries of the exported ``config.json``."""

CHOICES = {"positions": ("sinusoid", "learned"), "head": ("none", "square", "dense"), "pooling": ("first", "mean")}


@dataclass(frozen=True, kw_only=True)
class CrammedEncoder(EncoderConfig):
    """Shape of a crammed encoder; the defaults are version 2."""

    layers: int
    hidden_size: int
    heads: int
    intermediate_size: int
    """Hidden size of the unit; with a gate its first linear map has twice as many outputs (3072 for 1536)."""
    gated: bool = True
    """x * GELU(gate) over the two halves of the first map; otherwise GELU."""
    biases: bool = False
    """Biases in all linear maps, including the decoder; norms always have them."""
    positions: str = "sinusoid"
    """sinusoid (one learned scale, any length) or learned."""
    longest_row: int = 128
    """Number of learned positions."""
    head: str = "none"
    """Head before the decoder: none (version 2), square (version 1: a linear map) or dense (linear, GELU, norm)."""
    final_norm: bool = True
    """A norm after the last layer."""
    epsilon: float = 1e-12
    attend_padding: bool = False
    """Ignore the padding mask, also in the export, as version 1 does."""
    dropout: float = 0.0
    """Dropout of the embeddings, the outputs of attention and unit, and the attention probabilities in pretraining."""
    finetune_dropout: float = 0.1
    """The same dropout in the exported ``config.json``, for fine-tuning."""
    pooling: str = "first"
    """Pooling of a classifier built on the export: first or mean."""
    classifier_width: int = 1024
    init_std: float = 0.02
    """Standard deviation of a normal, not truncated, for all linear maps and embeddings."""
    position_scale: float = 0.0
    """Initial scale of the sinusoids; 0 stands for hidden_size ** -0.5, as in the original."""
    query_key_correlation: float = 0.0
    """Correlation of the initial key weights with the query weights (mimetic initialization, arXiv 2305.09828)."""
    value_output_correlation: float = 0.0
    """Correlation of the initial output weights of attention with the transposed value weights."""

    def __post_init__(self) -> None:
        check_shape(
            self.layers,
            self.hidden_size,
            self.heads,
            self.intermediate_size,
            self.longest_row,
            self.classifier_width,
            dropouts=(self.dropout, self.finetune_dropout),
            correlations=(self.query_key_correlation, self.value_output_correlation),
        )
        for field, values in CHOICES.items():
            check_choice(f"--model.{field.replace('_', '-')}", getattr(self, field), values)
        check_positive(init_std=self.init_std)
        if self.position_scale < 0 or (self.position_scale and self.positions != "sinusoid"):
            raise UserError(
                "--model.position-scale must be positive and applies to sinusoids only.", "Leave it out, or correct it."
            )

    def build(self, vocabulary: int) -> Crammed:
        check_heads(self.hidden_size, self.heads)
        if self.positions == "sinusoid" and self.hidden_size % 2:
            raise UserError("A sinusoid needs an even hidden size.", "Choose an even --model.hidden-size.")
        model = Crammed(self, vocabulary)
        initialize(model, self.init_std)
        return model

    @property
    def longest(self) -> int | None:
        return self.longest_row if self.positions == "learned" else None

    def modelling_files(self) -> dict[str, Path]:
        return dict(MODELLING_FILES)

    def to_hugging_face(self, vocabulary: int, length: int, special: SpecialIds = SpecialIds()) -> dict[str, Any]:
        return {
            "architectures": ["CrammedForMaskedLM"],
            "model_type": MODEL_TYPE,
            "auto_map": dict(AUTO_MAP),
            "vocab_size": vocabulary,
            "max_position_embeddings": length,
            "tie_word_embeddings": True,
            "dtype": "float32",
            **{theirs: getattr(self, ours) for ours, theirs in ENTRIES.items()},
            **special_entries(special),
        }

    def export_weights(self, model: Encoder) -> dict[str, Tensor]:
        return export_state(model, hugging_face_names)


class Crammed(Trunk):
    def __init__(self, shape: CrammedEncoder, vocabulary: int):
        super().__init__(shape, vocabulary)
        width, epsilon = shape.hidden_size, shape.epsilon
        if shape.positions == "sinusoid":
            self.position_scale = nn.Parameter(torch.tensor(width**-0.5))
        else:
            self.position_embedding = nn.Embedding(shape.longest_row, width)
        self.embedding_norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = Dropout(shape.dropout)
        self.blocks = nn.ModuleList(
            Block(
                width,
                shape.heads,
                shape.intermediate_size,
                gated=shape.gated,
                biases=shape.biases,
                epsilon=epsilon,
                dropout=shape.dropout,
            )
            for _ in range(shape.layers)
        )
        self.final_norm = nn.LayerNorm(width, eps=epsilon) if shape.final_norm else nn.Identity()
        self.head = Head(shape.head, width, biases=shape.biases, epsilon=epsilon)
        self.tie_decoder(bias=shape.biases)

    def positions(self, length: int) -> Tensor:
        """Position embeddings [L, D]."""
        if self.shape.positions == "sinusoid":
            table = sinusoid_table(length, self.hidden_size, self.position_scale.device)
            return self.position_scale * table.to(self.position_scale.dtype)
        if length > self.shape.longest_row:
            raise UserError(
                f"A sequence of {length} tokens is longer than the {self.shape.longest_row} learned positions.",
                "Raise --model.longest-row, or use shorter sequences.",
            )
        return self.position_embedding.weight[:length]

    def states(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        *,
        causal: bool = False,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        x = self.dropout(self.embedding_norm(self.embedding(input_ids) + self.positions(input_ids.shape[1])))
        return self.final_norm(
            self.run_blocks(x, positions, causal, None if self.shape.attend_padding else attention_mask)
        )

    def parts(self, name: str) -> int:
        if name.endswith(("attention.qkv.weight", "attention.qkv.bias")):
            return 3
        return 2 if self.shape.gated and name.endswith(("unit.up.weight", "unit.up.bias")) else 1

    def transform(self, states: Tensor) -> Tensor:
        return self.head(states)


@torch.no_grad()
def initialize(model: Crammed, std: float) -> None:
    """Initialize weights from a normal without depth scaling, and biases with 0; padding has no special embedding.

    The shape's other settings then change the scale of the positions, and attention weights at constant variance.
    """
    shape = model.shape
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=std)
        elif parameter.dim() == 1:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
    if shape.position_scale:
        model.position_scale.fill_(shape.position_scale)
    correlate_attention(model, shape.query_key_correlation, shape.value_output_correlation)


def hugging_face_names(name: str) -> list[str]:
    """Return the name of a parameter in the modeling file of the export."""
    if name.startswith("output."):
        return [name.replace("output.", "decoder.")]
    return [name if name.startswith("head.") else f"model.{name}"]


# ---------------------------------------------------------------- import of Hugging Face checkpoints

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
"""Supported values of the published ``arch``; a missing entry has the first value."""

BUFFERS = r"(norm_factor|position_ids|alpha|encoder\.p)$"
"""Names of buffers in the published files, which follow from the config."""


def from_hugging_face(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[CrammedEncoder, Crammed]:
    """Build the model from the ``config.json`` and state dict of one of the three layouts.

    A model of version 1 attends to padding, as it did in training.
    """
    kind = config.get("model_type")
    if kind == MODEL_TYPE:
        shape, vocabulary = _own_shape(config), int(config["vocab_size"])
    elif kind == PUBLISHED_TYPE and isinstance(config.get("arch"), dict):
        arch = config["arch"]
        shape = published_shape(arch, "prediction_head.weight" in weights)
        vocabulary = int(_entry(arch, "embedding.vocab_size"))
    else:
        raise UserError(f"The checkpoint is a {kind!r}, not a crammed encoder.", "Use a crammed checkpoint.")
    attention = config["arch"]["attention"]["type"] if kind == PUBLISHED_TYPE else ""
    names = partial(published_names, attention=attention, head=shape.head) if attention else hugging_face_names
    copies, wanted = {"decoder.weight": names("embedding.weight")[0]}, "crammed encoder"
    model = load_checkpoint(Crammed, shape, vocabulary, weights, names, copies=copies, ignored=BUFFERS, wanted=wanted)
    if attention == HEAD_BY_HEAD:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".attention.qkv." in name:
                    parameter.copy_(queries_keys_values(parameter, shape.heads))
    return shape, model


def _own_shape(config: dict[str, Any]) -> CrammedEncoder:
    missing = [theirs for theirs in [*ENTRIES.values(), "vocab_size"] if theirs not in config]
    if missing:
        raise UserError(f"The checkpoint's config.json lacks '{missing[0]}'.", "Use the complete exported folder.")
    return CrammedEncoder(**{ours: config[theirs] for ours, theirs in ENTRIES.items()})


def published_shape(arch: dict[str, Any], square: bool) -> CrammedEncoder:
    """Read the shape from a published architecture file.

    Args:
        square: whether the checkpoint has a linear map before the decoder (version 1); the file does not say.
    """
    check_fixed(FIXED, partial(_entry, arch))
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
        # The file says average, but the published evaluation uses the first token.
        pooling="first",
        classifier_width=int(_entry(arch, "classification_head.head_dim", hidden_size)),
        init_std=float(_entry(arch, "init.std", 0.02)),
    )


def published_names(name: str, *, attention: str, head: str) -> list[str]:
    """Return the published name of a parameter.

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
        return ["encoder.embedding.pos_embedding.scale_factor"]
    module, _, kind = name.rpartition(".")
    if module.startswith("blocks."):
        _, index, part = module.split(".", 2)
        return [f"encoder.layers.{index}.{inside[part]}.{kind}"]
    return [f"{outside[module]}.{kind}"]


def queries_keys_values(channels: Tensor, heads: int) -> Tensor:
    """Reorder the first axis of 3 D channels from head by head to all queries, all keys, all values."""
    return channels.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)


REQUIRED = object()


def _entry(arch: dict[str, Any], name: str, default: Any = REQUIRED) -> Any:
    """Return the entry at a dotted path."""
    value: Any = arch
    for part in name.split("."):
        value = value.get(part, REQUIRED) if isinstance(value, dict) else REQUIRED
    if value is REQUIRED:
        value = default
    if value is REQUIRED:
        raise UserError(f"The checkpoint's config.json lacks arch.{name}.", "Use the config.json of the checkpoint.")
    return value
