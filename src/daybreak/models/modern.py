"""ModernBERT, the flagship family, with the weights and logits of transformers' ModernBertForMaskedLM.

ModernBERT (arXiv 2412.13663): pre-norm, no biases, rotary positions, GEGLU, global or alternating local attention,
tied decoder. The forward pass is faster than transformers': one fused projection, and the last layer computes queries
and its gated unit at the masked positions only, with keys and values of all positions.

B sequences, L positions, K masked positions, D hidden size, H heads, C = D / H, F intermediate size, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daybreak.core.encoder import Encoder, EncoderConfig, check_positive, special_entries
from daybreak.core.errors import UserError
from daybreak.core.serialization import check_choice
from daybreak.models.copy_heads import can_plant, plant_copy_heads
from daybreak.models.layers import attend_heads, halves, rotary_table, rotate, take, visibility_mask
from daybreak.models.trunk import (
    Trunk,
    check_fixed,
    check_shape,
    correlate_attention,
    export_state,
    load_checkpoint,
    renamed,
)
from daybreak.schemas.run import SpecialIds

EPSILON = 1e-5


@dataclass(frozen=True, kw_only=True)
class ModernEncoder(EncoderConfig):
    """Shape of a ModernBERT."""

    layers: int
    hidden_size: int
    heads: int
    intermediate_size: int
    """Hidden size of the gated unit."""
    global_every: int = 1
    """Layer i has global attention if i is a multiple of this number, local attention otherwise; 1: all global."""
    window: int = 128
    """Window of local attention: window // 2 positions on each side."""
    global_rope_base: float = 10_000.0
    local_rope_base: float = 10_000.0
    pooling: str = "mean"
    """Pooling of a classifier built on the export: mean or cls."""
    init_std: float = 0.02
    """Standard deviation of a truncated normal; for output projections divided by sqrt(2 * layers)."""
    query_key_correlation: float = 0.0
    """Correlation of the initial key weights with the query weights. Above 0, a position attends to similar positions
    from the start (mimetic initialization, Trockman and Kolter 2023, arXiv 2305.09828, section 3)."""
    copy_heads: bool = False
    """Start with heads that find a copy of the text around a masked token, in models of two layers and heads or more
    (induction heads, Olsson et al. 2022, arXiv 2209.11895). A new model would have to learn them first."""

    def __post_init__(self) -> None:
        sizes = (self.layers, self.hidden_size, self.heads, self.intermediate_size, self.global_every, self.window)
        check_shape(*sizes, correlations=(self.query_key_correlation,))
        check_choice("--model.pooling", self.pooling, ("mean", "cls"))
        check_positive(
            init_std=self.init_std, global_rope_base=self.global_rope_base, local_rope_base=self.local_rope_base
        )

    def build(self, vocabulary: int) -> ModernBert:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise UserError(
                f"A hidden_size of {self.hidden_size} cannot be split into {self.heads} heads of an even size.",
                "Choose --model.heads so that hidden_size / heads is even.",
            )
        model = ModernBert(self, vocabulary)
        initialize(model, self.init_std)
        return model

    def plant(self, model: Encoder) -> None:
        if self.plants_copy_heads:
            plant_copy_heads(model, self._first_bases)

    @property
    def plants_copy_heads(self) -> bool:
        """Whether a new model starts with copy heads: only if it has layers, heads and channels enough for them."""
        enough = self.layers > 1 and self.heads > 1 and can_plant(self.hidden_size // self.heads, self._first_bases)
        return self.copy_heads and enough

    @property
    def _first_bases(self) -> list[float]:
        """Bases of the rotary positions of the first two layers."""
        return [self.global_rope_base if self.is_global(layer) else self.local_rope_base for layer in (0, 1)]

    def is_global(self, layer: int) -> bool:
        return layer % self.global_every == 0

    def to_hugging_face(self, vocabulary: int, length: int, special: SpecialIds = SpecialIds()) -> dict[str, Any]:
        kinds = ["full_attention" if self.is_global(i) else "sliding_attention" for i in range(self.layers)]
        return {
            "architectures": ["ModernBertForMaskedLM"],
            "model_type": "modernbert",
            "vocab_size": vocabulary,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_activation": "gelu",
            "classifier_activation": "gelu",
            "classifier_pooling": self.pooling,
            "max_position_embeddings": length,
            "norm_eps": EPSILON,
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
            "tie_word_embeddings": True,
            "initializer_range": self.init_std,
            "attention_dropout": 0.0,
            "embedding_dropout": 0.0,
            "mlp_dropout": 0.0,
            "classifier_dropout": 0.0,
            "layer_types": kinds,
            "local_attention": self.window,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": self.global_rope_base},
                "sliding_attention": {"rope_type": "default", "rope_theta": self.local_rope_base},
            },
            # The same settings under the names of transformers 4.48 to 4.57.
            "global_attn_every_n_layers": self.global_every,
            "global_rope_theta": self.global_rope_base,
            "local_rope_theta": self.local_rope_base,
            "reference_compile": False,
            "dtype": "float32",
            **special_entries(special),
        }

    def export_weights(self, model: Encoder) -> dict[str, Tensor]:
        return export_state(model, hugging_face_names)


class Attention(nn.Module):
    def __init__(self, shape: ModernEncoder):
        super().__init__()
        self.heads = shape.heads
        self.channels = shape.hidden_size // shape.heads
        self.qkv = nn.Linear(shape.hidden_size, 3 * shape.hidden_size, bias=False)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(
        self, x: Tensor, mask: Tensor | None, causal: bool, positions: Tensor | None, cosine: Tensor, sine: Tensor
    ) -> Tensor:
        """[B, L, D] -> [B, L, D], or [B, K, D] with ``positions``; ``cosine`` and ``sine`` are [L, C / 2]."""
        rows, length, hidden_size = x.shape
        if positions is None:
            qkv = self.qkv(x).view(rows, length, 3, self.heads, self.channels)
            query, key = rotate(qkv[:, :, :2], cosine[:, None, None], sine[:, None, None]).unbind(2)
            value = qkv[:, :, 2]
        else:
            query = F.linear(take(x, positions), self.qkv.weight[:hidden_size]).view(
                rows, -1, self.heads, self.channels
            )
            query = rotate(query, cosine[positions][:, :, None], sine[positions][:, :, None])
            kv = F.linear(x, self.qkv.weight[hidden_size:]).view(rows, length, 2, self.heads, self.channels)
            key, value = rotate(kv[:, :, 0], cosine[:, None], sine[:, None]), kv[:, :, 1]
        mixed = attend_heads(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, causal=causal)
        return self.out(mixed)


class GatedUnit(nn.Module):
    def __init__(self, shape: ModernEncoder):
        super().__init__()
        self.up = nn.Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        passed, gate = halves(self.up, x)
        return self.down(F.gelu(passed) * gate)


class Block(nn.Module):
    """Pre-norm block; the first has no norm before attention, because the embedding is normalized."""

    def __init__(self, shape: ModernEncoder, index: int):
        super().__init__()
        norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON, bias=False)
        self.attention_norm = nn.Identity() if index == 0 else norm
        self.attention = Attention(shape)
        self.unit_norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON, bias=False)
        self.unit = GatedUnit(shape)

    def forward(
        self, x: Tensor, mask: Tensor | None, causal: bool, positions: Tensor | None, cosine: Tensor, sine: Tensor
    ) -> Tensor:
        stream = x if positions is None else take(x, positions)
        stream = stream + self.attention(self.attention_norm(x), mask, causal, positions, cosine, sine)
        return stream + self.unit(self.unit_norm(stream))


class ModernBert(Trunk):
    def __init__(self, shape: ModernEncoder, vocabulary: int):
        super().__init__(shape, vocabulary)
        self.embedding_norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON, bias=False)
        self.blocks = nn.ModuleList(Block(shape, index) for index in range(shape.layers))
        self.final_norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON, bias=False)
        self.head_dense = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.head_norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON, bias=False)
        self.tie_decoder()

    def states(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        *,
        causal: bool = False,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        length, device, shape = input_ids.shape[1], input_ids.device, self.shape

        def mask_of(window: int | None, queries: Tensor | None) -> Tensor | None:
            # SDPA is faster with its own causal attention than with a mask.
            local = window is not None and window < length - 1
            by_mask = causal and (local or attention_mask is not None or queries is not None)
            return visibility_mask(
                length, causal=by_mask, window=window, attention_mask=attention_mask, positions=queries, device=device
            )

        def rotary_of(base: float) -> tuple[Tensor, Tensor]:
            return rotary_table(length, shape.hidden_size // shape.heads, base, device)

        rotary = {True: rotary_of(shape.global_rope_base), False: rotary_of(shape.local_rope_base)}
        masks: dict[int | None, Tensor | None] = {}
        x = self.embedding_norm(self.embedding(input_ids))
        last = len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            is_global = shape.is_global(index)
            window = None if is_global else shape.window // 2
            if index == last and positions is not None:
                x = self.run_block(block, x, mask_of(window, positions), causal, positions, *rotary[is_global])
                continue
            if window not in masks:
                masks[window] = mask_of(window, None)
            x = self.run_block(block, x, masks[window], causal, None, *rotary[is_global])
        return self.final_norm(x)

    def parts(self, name: str) -> int:
        if name.endswith("attention.qkv.weight"):
            return 3
        return 2 if name.endswith("unit.up.weight") else 1

    def transform(self, states: Tensor) -> Tensor:
        return self.head_norm(F.gelu(self.head_dense(states)))


@torch.no_grad()
def initialize(model: ModernBert, std: float) -> None:
    """Initialize as transformers: truncated normal, with output projections scaled by 1 / sqrt(2 * layers).

    With ``query_key_correlation``, key weights are then mixed with the query weights at constant variance.
    """
    out_std = std / math.sqrt(2.0 * model.shape.layers)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
        else:
            back = name.endswith(("attention.out.weight", "unit.down.weight", "head_dense.weight"))
            scale = out_std if back else std
            nn.init.trunc_normal_(parameter, std=scale, a=-2 * scale, b=2 * scale)
    correlate_attention(model, model.shape.query_key_correlation, 0.0)


NAMES = (
    ("embedding_norm.", "model.embeddings.norm."),
    ("embedding.", "model.embeddings.tok_embeddings."),
    ("blocks.", "model.layers."),
    ("final_norm.", "model.final_norm."),
    ("head_dense.", "head.dense."),
    ("head_norm.", "head.norm."),
    ("output.", "decoder."),
)
LAYER_NAMES = (
    (".attention_norm.", ".attn_norm."),
    (".attention.qkv.", ".attn.Wqkv."),
    (".attention.out.", ".attn.Wo."),
    (".unit_norm.", ".mlp_norm."),
    (".unit.up.", ".mlp.Wi."),
    (".unit.down.", ".mlp.Wo."),
)


def hugging_face_names(name: str) -> list[str]:
    """Return transformers' name of a parameter."""
    return [renamed(name, NAMES, LAYER_NAMES)]


# ---------------------------------------------------------------- import of Hugging Face checkpoints


FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu",),
    "classifier_activation": ("gelu",),
    "norm_eps": (EPSILON,),
    "decoder_bias": (True,),
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), (False,)),
}
"""Supported values of config.json."""
IGNORED = r"\.inv_freq$"
"""Tensors that follow from the config."""


def from_hugging_face(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[ModernEncoder, ModernBert]:
    """Build the model from the ``config.json`` and state dict of a ModernBERT.

    Raises:
        UserError: the checkpoint has parts that this architecture lacks (biases, another activation, an untied
            decoder, irregular layers), or lacks tensors.
    """
    shape = shape_from_hugging_face(config)
    vocabulary = int(config["vocab_size"])
    copies, wanted = {"decoder.weight": "model.embeddings.tok_embeddings.weight"}, "ModernBertForMaskedLM"
    model = load_checkpoint(
        ModernBert, shape, vocabulary, weights, hugging_face_names, copies=copies, ignored=IGNORED, wanted=wanted
    )
    return shape, model


def shape_from_hugging_face(config: dict[str, Any]) -> ModernEncoder:
    """Read the shape from a ``config.json`` of transformers; missing entries other than sizes have their defaults."""
    check_fixed(FIXED, config.get)
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
                f"The checkpoint scales the rotary positions of {kind}; only the default is supported.",
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
        raise UserError("The checkpoint's local and global layers have no fixed period.", "Use another checkpoint.")
    return shape


def _rope_base(rope: dict[str, Any], kind: str, default: float) -> float:
    return float((rope.get(kind) or {}).get("rope_theta", default))
