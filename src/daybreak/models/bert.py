"""BERT, with the weights and logits of transformers' BertForMaskedLM and BertForPreTraining.

Devlin et al. 2018 (arXiv 1810.04805) and its code, google-research/bert: post-norm, biases everywhere, learned
positions, segments, a head transform before the tied decoder, and with ``next_sentence`` the pooler and the
next-sentence head. The forward pass is faster than transformers': query, key and value are one projection, the last
layer computes queries and its feed-forward unit at the masked positions only, and dropout of 0 costs nothing. One
difference in training: transformers passes no gradient to the input embedding of the padding token, while Google's code
and this one do.

B sequences, L positions, K masked positions, D hidden size, H heads, C = D / H, F intermediate size, V vocabulary.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daybreak.core.encoder import Encoder, EncoderConfig, check_positive, special_entries
from daybreak.core.errors import UserError
from daybreak.core.serialization import check_choice
from daybreak.models.layers import Attention, Dropout, sinusoid_table, take
from daybreak.models.trunk import (
    Trunk,
    check_fixed,
    check_heads,
    check_shape,
    correlate_attention,
    export_state,
    load_checkpoint,
    renamed,
)
from daybreak.schemas.run import SpecialIds

APPROXIMATIONS = {"gelu": "none", "gelu_new": "tanh"}
"""transformers' name of an activation -> ``approximate`` of torch's GELU."""


@dataclass(frozen=True, kw_only=True)
class BertEncoder(EncoderConfig):
    """Shape of a BERT."""

    layers: int
    hidden_size: int
    heads: int
    intermediate_size: int
    """Hidden size of the feed-forward unit."""
    positions: int = 512
    """Number of learned positions, the length of the longest sequence."""
    segments: int = 2
    dropout: float = 0.0
    """Dropout of the embeddings and of the outputs of attention and feed-forward unit in pretraining."""
    attention_dropout: float = 0.0
    """Dropout of the attention probabilities in pretraining."""
    finetune_dropout: float = 0.1
    """Both dropouts in the exported ``config.json``, for fine-tuning."""
    activation: str = "gelu"
    """gelu (by erf) or gelu_new (Google's tanh approximation)."""
    epsilon: float = 1e-12
    """Epsilon of every LayerNorm."""
    next_sentence: bool = False
    """Add the pooler and the next-sentence head."""
    init_std: float = 0.02
    """Standard deviation of the initial weights, which have a normal distribution."""
    truncated_start: bool = True
    """Truncate that distribution at two standard deviations, as google-research/bert; transformers does not."""
    sinusoidal_start: bool = False
    """Initialize the learned positions as sinusoids in a random basis, so that near positions start similar."""
    query_key_correlation: float = 0.0
    """Correlation of the initial key weights with the query weights. Above 0, a position attends to similar positions
    from the start (mimetic initialization, Trockman and Kolter 2023, arXiv 2305.09828, section 3)."""
    value_output_correlation: float = 0.0
    """Correlation of the initial output weights of attention with the transposed value weights (same source)."""

    def __post_init__(self) -> None:
        check_shape(
            self.layers,
            self.hidden_size,
            self.heads,
            self.intermediate_size,
            self.positions,
            self.segments,
            dropouts=(self.dropout, self.attention_dropout, self.finetune_dropout),
            correlations=(self.query_key_correlation, self.value_output_correlation),
        )
        check_choice("--model.activation", self.activation, APPROXIMATIONS)
        if self.sinusoidal_start and self.hidden_size % 2:
            raise UserError(
                "--model.sinusoidal-start needs an even hidden size.", "Choose an even --model.hidden-size."
            )
        if self.next_sentence and self.segments < 2:
            raise UserError("Next-sentence prediction needs two segments.", "Set --model.segments to 2.")
        check_positive(init_std=self.init_std)

    def build(self, vocabulary: int) -> Bert:
        check_heads(self.hidden_size, self.heads)
        model = Bert(self, vocabulary)
        initialize(model)
        return model

    @property
    def longest(self) -> int:
        return self.positions

    @property
    def predicts_next(self) -> bool:
        return self.next_sentence

    def to_hugging_face(self, vocabulary: int, length: int, special: SpecialIds = SpecialIds()) -> dict[str, Any]:
        return {
            "architectures": ["BertForPreTraining" if self.next_sentence else "BertForMaskedLM"],
            "model_type": "bert",
            "vocab_size": vocabulary,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": self.activation,
            "hidden_dropout_prob": self.finetune_dropout,
            "attention_probs_dropout_prob": self.finetune_dropout,
            "classifier_dropout": None,
            # The whole table is exported, also positions beyond the trained ``length``, as in Google's checkpoints.
            "max_position_embeddings": self.positions,
            "position_embedding_type": "absolute",
            "type_vocab_size": self.segments,
            "initializer_range": self.init_std,
            "layer_norm_eps": self.epsilon,
            "tie_word_embeddings": True,
            "dtype": "float32",
            **special_entries(special),
        }

    def export_weights(self, model: Encoder) -> dict[str, Tensor]:
        return export_state(model, hugging_face_names)


class Block(nn.Module):
    """Post-norm block: each sublayer is added to the residual stream and the sum is normalized."""

    def __init__(self, shape: BertEncoder):
        super().__init__()
        self.approximation = APPROXIMATIONS[shape.activation]
        self.attention = Attention(shape.hidden_size, shape.heads, dropout=shape.attention_dropout)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, eps=shape.epsilon)
        self.up = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size)
        self.unit_norm = nn.LayerNorm(shape.hidden_size, eps=shape.epsilon)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool, positions: Tensor | None) -> Tensor:
        queries = None if positions is None else take(x, positions)
        stream = x if queries is None else queries
        stream = self.attention_norm(stream + self.dropout(self.attention(x, queries, mask, causal)))
        activated = F.gelu(self.up(stream), approximate=self.approximation)
        return self.unit_norm(stream + self.dropout(self.down(activated)))


class Bert(Trunk):
    def __init__(self, shape: BertEncoder, vocabulary: int):
        super().__init__(shape, vocabulary)
        self.positions = nn.Embedding(shape.positions, shape.hidden_size)
        self.segments = nn.Embedding(shape.segments, shape.hidden_size)
        self.embedding_norm = nn.LayerNorm(shape.hidden_size, eps=shape.epsilon)
        self.dropout = Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.head_dense = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.head_norm = nn.LayerNorm(shape.hidden_size, eps=shape.epsilon)
        self.tie_decoder()
        if shape.next_sentence:
            self.pooler = nn.Linear(shape.hidden_size, shape.hidden_size)
            self.next_head = nn.Linear(shape.hidden_size, 2)

    def states(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        *,
        causal: bool = False,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        segments = self.segments.weight[0] if token_type_ids is None else self.segments(token_type_ids)
        positioned = self.embedding(input_ids) + (self.positions.weight[: input_ids.shape[1]] + segments)
        return self.run_blocks(self.dropout(self.embedding_norm(positioned)), positions, causal, attention_mask)

    def parts(self, name: str) -> int:
        return 3 if name.endswith(("attention.qkv.weight", "attention.qkv.bias")) else 1

    def transform(self, states: Tensor) -> Tensor:
        return self.head_norm(F.gelu(self.head_dense(states), approximate=APPROXIMATIONS[self.shape.activation]))

    def next_logits(self, states: Tensor) -> Tensor:
        """Logits of two classes: 0 if the second segment follows the first, 1 if it was drawn at random."""
        if not self.shape.next_sentence:
            return super().next_logits(states)
        return self.next_head(torch.tanh(self.pooler(states)))


@torch.no_grad()
def initialize(model: Bert) -> None:
    """Initialize as google-research/bert or transformers: normal, biases 0.

    The shape's other settings then change positions and attention weights, at constant variance.
    """
    shape, std = model.shape, model.shape.init_std
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
        elif shape.truncated_start:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
        else:
            nn.init.normal_(parameter, std=std)
    if shape.sinusoidal_start:
        waves = math.sqrt(2) * std * sinusoid_table(shape.positions, shape.hidden_size, model.positions.weight.device)
        basis, _ = torch.linalg.qr(torch.randn(shape.hidden_size, shape.hidden_size, device=waves.device))
        model.positions.weight.copy_(waves @ basis)
    correlate_attention(model, shape.query_key_correlation, shape.value_output_correlation)


NAMES = (
    ("embedding_norm.", "bert.embeddings.LayerNorm."),
    ("embedding.", "bert.embeddings.word_embeddings."),
    ("positions.", "bert.embeddings.position_embeddings."),
    ("segments.", "bert.embeddings.token_type_embeddings."),
    ("blocks.", "bert.encoder.layer."),
    ("head_dense.", "cls.predictions.transform.dense."),
    ("head_norm.", "cls.predictions.transform.LayerNorm."),
    ("output.weight", "cls.predictions.decoder.weight"),
    ("output.bias", "cls.predictions.bias"),
    ("pooler.", "bert.pooler.dense."),
    ("next_head.", "cls.seq_relationship."),
)
LAYER_NAMES = (
    (".attention.out.", ".attention.output.dense."),
    (".attention_norm.", ".attention.output.LayerNorm."),
    (".up.", ".intermediate.dense."),
    (".down.", ".output.dense."),
    (".unit_norm.", ".output.LayerNorm."),
)


def hugging_face_names(name: str) -> list[str]:
    """Return transformers' name of a parameter; for the fused projection the names of query, key and value."""
    name = renamed(name, NAMES, LAYER_NAMES)
    if ".attention.qkv." in name:
        return [name.replace(".qkv.", f".self.{part}.") for part in ("query", "key", "value")]
    return [name]


# ---------------------------------------------------------------- import of Hugging Face checkpoints

EMBEDDING, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
BIAS, DECODER_BIAS = "cls.predictions.bias", "cls.predictions.decoder.bias"
POOLER, NEXT_HEAD = "bert.pooler.dense.", "cls.seq_relationship."
COPIES = {DECODER: EMBEDDING, DECODER_BIAS: BIAS}
IGNORED = rf"^({DECODER_BIAS}$|bert\.embeddings\.(position_ids|token_type_ids)$|{POOLER}|{NEXT_HEAD})"
"""Tensors that repeat another one, only count positions, or are half of a next-sentence head."""
FIXED = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
"""Supported values of config.json."""
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}
"""transformers' names -> Daybreak's; the last two are the same formula."""


def from_hugging_face(config: dict[str, Any], weights: dict[str, Tensor]) -> tuple[BertEncoder, Bert]:
    """Build the model from the ``config.json`` and state dict of a BertForMaskedLM or BertForPreTraining.

    Names may lack the prefix ``bert.``, and LayerNorm parameters may be called gamma and beta, as in checkpoints of
    2018 and 2019. The next-sentence head is loaded together with its pooler; one without the other is ignored.

    Raises:
        UserError: the checkpoint has parts that this architecture lacks (relative positions, causal or cross attention
            of a decoder, another activation, an untied decoder, unknown tensors), or lacks tensors.
    """
    state = {current_name(name): tensor for name, tensor in weights.items()}
    if not any(name.startswith("cls.predictions.") for name in state):
        raise UserError(
            "The checkpoint has no masked-language-model head.",
            "Use one saved from BertForMaskedLM or BertForPreTraining: it holds 'cls.predictions' tensors.",
        )
    shape = shape_from_hugging_face(config, next_sentence={f"{POOLER}weight", f"{NEXT_HEAD}weight"} <= set(state))
    vocabulary = int(config.get("vocab_size", 30522))
    if BIAS not in state and DECODER_BIAS in state:
        state[BIAS] = state[DECODER_BIAS]
    wanted = "BERT with a masked-LM head"
    model = load_checkpoint(
        Bert, shape, vocabulary, state, hugging_face_names, copies=COPIES, ignored=IGNORED, wanted=wanted
    )
    return shape, model


def current_name(name: str) -> str:
    """Translate the name of a tensor in an old checkpoint into the current name in transformers."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
    return name if name.startswith(("bert.", "cls.")) else f"bert.{name}"


def shape_from_hugging_face(config: dict[str, Any], *, next_sentence: bool) -> BertEncoder:
    """Read the shape from a ``config.json`` of transformers; missing entries have transformers' defaults."""
    if config.get("model_type", "bert") != "bert":
        raise UserError(f"The checkpoint is a {config['model_type']!r}, not a BERT.", "Use a BERT.")
    check_fixed(FIXED, config.get)
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(
            f"The checkpoint has hidden_act = {activation!r}, which is not a GELU.", "Use another checkpoint."
        )
    dropout = float(config.get("hidden_dropout_prob", 0.1))
    shape = BertEncoder(
        layers=int(config.get("num_hidden_layers", 12)),
        hidden_size=int(config.get("hidden_size", 768)),
        heads=int(config.get("num_attention_heads", 12)),
        intermediate_size=int(config.get("intermediate_size", 3072)),
        positions=int(config.get("max_position_embeddings", 512)),
        segments=int(config.get("type_vocab_size", 2)),
        dropout=dropout,
        attention_dropout=float(config.get("attention_probs_dropout_prob", 0.1)),
        finetune_dropout=dropout,
        activation=ACTIVATIONS[activation],
        epsilon=float(config.get("layer_norm_eps", 1e-12)),
        next_sentence=next_sentence,
        init_std=float(config.get("initializer_range", 0.02)),
    )
    if shape.hidden_size % shape.heads:
        raise UserError(
            f"The checkpoint's hidden size of {shape.hidden_size} is not a multiple of its heads.",
            "Use another checkpoint.",
        )
    return shape
