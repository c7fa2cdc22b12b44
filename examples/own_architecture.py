"""An architecture of your own: ALBERT (Lan et al. 2019, arXiv 1909.11942), whose layers share one set of weights.

    daybreak pretrain examples/own_architecture.py --data DATA --budget 15m --out runs/albert

Weights and logits are those of transformers' AlbertForMaskedLM, so the export is a stock model and the parity check
compares it. Embeddings have the hidden size of the layers here (the paper's are smaller), and there are no segments.

B sequences, L positions, K chosen positions, D hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daybreak.core.encoder import Encoder, EncoderConfig, special_entries, to_export_tensors
from daybreak.core.errors import UserError
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.layers import attend_heads, take, visibility_mask
from daybreak.recipe import Recipe
from daybreak.schemas.run import SpecialIds
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.schedule import Trapezoid

EPSILON = 1e-12


@dataclass(frozen=True, kw_only=True)
class AlbertEncoder(EncoderConfig):
    """An ALBERT shape; every field is a flag: --model.layers 12."""

    layers: int
    """Number of times the layer is applied."""
    hidden_size: int
    heads: int
    intermediate_size: int
    """Size of the feed-forward layer."""
    positions: int = 512
    """Size of the position table: the longest sequence that the model can read."""
    init_std: float = 0.02

    def build(self, vocabulary: int) -> Albert:
        if self.hidden_size % self.heads:
            raise UserError(
                f"A hidden size of {self.hidden_size} cannot be split into {self.heads} heads.",
                "Choose --model.heads so that it divides the hidden size.",
            )
        model = Albert(self, vocabulary)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
            else:
                nn.init.trunc_normal_(parameter, std=self.init_std, a=-2 * self.init_std, b=2 * self.init_std)
        return model

    @property
    def longest(self) -> int:
        return self.positions

    def to_hugging_face(self, vocabulary: int, length: int, special: SpecialIds = SpecialIds()) -> dict[str, Any]:
        return {
            "architectures": ["AlbertForMaskedLM"],
            "model_type": "albert",
            "vocab_size": vocabulary,
            "embedding_size": self.hidden_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_hidden_groups": 1,
            "inner_group_num": 1,
            "num_attention_heads": self.heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "max_position_embeddings": self.positions,
            "type_vocab_size": 1,
            "layer_norm_eps": EPSILON,
            "initializer_range": self.init_std,
            "tie_word_embeddings": True,
            "dtype": "float32",
            **special_entries(special),
        }

    def export_weights(self, model: Encoder) -> dict[str, Tensor]:
        state = {
            f"{theirs}.{part}": tensor
            for ours, theirs in NAMES.items()
            for part, tensor in model.get_submodule(ours).state_dict().items()
        }
        # Stock ALBERT adds the embedding of a segment to every word; the tied decoder it makes by itself.
        state["albert.embeddings.token_type_embeddings.weight"] = torch.zeros(1, self.hidden_size)
        state["predictions.bias"] = model.decoder.bias
        return to_export_tensors(state)


class Layer(nn.Module):
    """Post-norm, as in BERT: each half adds to the stream and the sum is normalized."""

    def __init__(self, shape: AlbertEncoder):
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.key = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.value = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.out = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON)
        self.up = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size)
        self.unit_norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool, positions: Tensor | None) -> Tensor:
        """x [B, L, D] -> [B, L, D]; with ``positions`` [B, K] the states at these positions only, [B, K, D]."""
        stream = x if positions is None else take(x, positions)

        def by_head(states: Tensor) -> Tensor:
            return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query, key, value = by_head(self.query(stream)), by_head(self.key(x)), by_head(self.value(x))
        stream = self.attention_norm(stream + self.out(attend_heads(query, key, value, mask, causal=causal)))
        return self.unit_norm(stream + self.down(F.gelu(self.up(stream))))


class Albert(Encoder):
    def __init__(self, shape: AlbertEncoder, vocabulary: int):
        super().__init__()
        self.vocabulary = vocabulary
        self.hidden_size = shape.hidden_size
        self.embedding = nn.Embedding(vocabulary, shape.hidden_size)
        self.positions = nn.Embedding(shape.positions, shape.hidden_size)
        self.embedding_norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON)
        self.enter = nn.Linear(shape.hidden_size, shape.hidden_size)
        # The same layer again and again: this line is ALBERT.
        self.blocks = nn.ModuleList([Layer(shape)] * shape.layers)
        self.head_dense = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.head_norm = nn.LayerNorm(shape.hidden_size, eps=EPSILON)
        self.output = nn.Linear(shape.hidden_size, vocabulary)
        self.output.weight = self.embedding.weight

    @property
    def decoder(self) -> nn.Linear:
        return self.output

    def states(
        self,
        input_ids: Tensor,
        positions: Tensor | None = None,
        *,
        causal: bool = False,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        length = input_ids.shape[1]

        def mask_of(asking: Tensor | None) -> Tensor | None:
            # Plain causal attention needs no mask; from chosen positions, or beside padding, it does.
            by_mask = causal and (attention_mask is not None or asking is not None)
            return visibility_mask(
                length,
                causal=by_mask,
                window=None,
                attention_mask=attention_mask,
                positions=asking,
                device=input_ids.device,
            )

        x = self.enter(self.embedding_norm(self.embedding(input_ids) + self.positions.weight[:length]))
        mask = mask_of(None)
        for block in self.blocks[:-1]:
            x = self.run_block(block, x, mask, causal, None)
        # Only the last pass may leave positions out: all before it need every key and value.
        return self.run_block(self.blocks[-1], x, mask if positions is None else mask_of(positions), causal, positions)

    def transform(self, states: Tensor) -> Tensor:
        return self.head_norm(F.gelu(self.head_dense(states)))


LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
NAMES = {
    "embedding": "albert.embeddings.word_embeddings",
    "positions": "albert.embeddings.position_embeddings",
    "embedding_norm": "albert.embeddings.LayerNorm",
    "enter": "albert.encoder.embedding_hidden_mapping_in",
    "blocks.0.query": f"{LAYER}.attention.query",
    "blocks.0.key": f"{LAYER}.attention.key",
    "blocks.0.value": f"{LAYER}.attention.value",
    "blocks.0.out": f"{LAYER}.attention.dense",
    "blocks.0.attention_norm": f"{LAYER}.attention.LayerNorm",
    "blocks.0.up": f"{LAYER}.ffn",
    "blocks.0.down": f"{LAYER}.ffn_output",
    "blocks.0.unit_norm": f"{LAYER}.full_layer_layer_norm",
    "head_dense": "predictions.dense",
    "head_norm": "predictions.LayerNorm",
}
"""Our modules -> transformers' names for them."""

recipe = Recipe(
    name="own-architecture",
    tokenizer=WordPiece(vocabulary=8_192),
    model=AlbertEncoder(layers=4, hidden_size=256, heads=4, intermediate_size=1_024, init_std=0.0625),
    objective=CausalThenMasked(),
    optimizer=AdamW(lr=1e-3),
    schedule=Trapezoid(warmup=0.05, decay=0.6),
    length=128,
    batch=16,
    budget="15m",
)
