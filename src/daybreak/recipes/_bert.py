"""Shapes and models of the BERT recipes: Google's sizes (google-research/bert, README)."""

from __future__ import annotations

from daybreak.models.bert import BertEncoder
from daybreak.recipes._sizes import Correlations, correlations, dropout, init_std, is_narrow

SHAPES = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}
"""Layers, hidden size, heads, intermediate size."""


def hidden_size_of(size: str) -> int:
    return SHAPES[size][1]


class Start(Correlations, total=False):
    """Fields of ``BertEncoder`` that set the initial weights."""

    sinusoidal_start: bool


def start(hidden_size: int, faithful: bool) -> Start:
    """Initial weights of a narrow BERT, which leaves the unigram plateau in minutes with them (docs/log.md)."""
    if not is_narrow(hidden_size, faithful):
        return {}
    return {"sinusoidal_start": True, **correlations(hidden_size, faithful)}


def google(size: str, faithful: bool) -> BertEncoder:
    """The original encoder: 512 positions, tanh-approximated GELU, dropout on, next-sentence head."""
    layers, hidden_size, heads, intermediate_size = SHAPES[size]
    return BertEncoder(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        intermediate_size=intermediate_size,
        dropout=dropout(hidden_size, faithful),
        attention_dropout=dropout(hidden_size, faithful),
        activation="gelu_new",
        next_sentence=True,
        init_std=init_std(hidden_size, faithful),
        **start(hidden_size, faithful),
    )


def masked_only(size: str, faithful: bool, *, positions: int, dropout: float = 0.0) -> BertEncoder:
    """Hugging Face's BertForMaskedLM: no pooler, no next-sentence head."""
    layers, hidden_size, heads, intermediate_size = SHAPES[size]
    return BertEncoder(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        intermediate_size=intermediate_size,
        positions=positions,
        dropout=dropout,
        attention_dropout=dropout,
        init_std=init_std(hidden_size, faithful),
        **start(hidden_size, faithful),
    )
