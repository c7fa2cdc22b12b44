"""Shapes, models and training of the BERT recipes: Google's sizes (google-research/bert, README)."""

from __future__ import annotations

from typing import Any

from daybreak.data.sequences.sentence_pairs import SentencePairs
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.bert import BertEncoder
from daybreak.recipe import Recipe, Texts
from daybreak.recipes import _sizes
from daybreak.recipes._sizes import correlations, dropout, init_std, is_narrow
from daybreak.training.objectives.masked import Masked
from daybreak.training.optim.optimizers import BertAdam
from daybreak.training.schedule import WarmupLinear

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


def masked_only(
    size: str, faithful: bool, *, dropout: float = 0.0, truncated_start: bool = False, **more: Any
) -> BertEncoder:
    """Hugging Face's BertForMaskedLM: no pooler, no next-sentence head."""
    layers, hidden_size, heads, intermediate_size = SHAPES[size]
    return BertEncoder(
        layers=layers,
        hidden_size=hidden_size,
        heads=heads,
        intermediate_size=intermediate_size,
        dropout=dropout,
        attention_dropout=dropout,
        init_std=init_std(hidden_size, faithful),
        truncated_start=truncated_start or is_narrow(hidden_size, faithful),
        # With these initial weights a narrow BERT leaves the unigram plateau in minutes (docs/log.md).
        sinusoidal_start=is_narrow(hidden_size, faithful),
        **correlations(hidden_size, faithful),
        **more,
    )


def google(size: str, faithful: bool) -> BertEncoder:
    """The original encoder: 512 positions, tanh-approximated GELU, dropout on, next-sentence head."""
    rate = dropout(hidden_size_of(size), faithful)
    return masked_only(size, faithful, dropout=rate, activation="gelu_new", next_sentence=True, truncated_start=True)


def on_sentence_pairs(
    name: str,
    size: str,
    faithful: bool,
    *,
    texts: Texts,
    vocabulary: int,
    lr: float,
    warmup: float,
    warmup_steps: int,
    steps: int,
    most: int = 0,
    **more: Any,
) -> Recipe:
    """BERT's own training: masked LM and next-sentence prediction with its Adam and its linear schedule.

    Args:
        warmup_steps, steps, most: of the original, for ``faithful``.
        more: other fields of the recipe.
    """
    hidden_size = hidden_size_of(size)
    return Recipe(
        name=name,
        texts=texts,
        tokenizer=WordPiece(vocabulary=_sizes.vocabulary(size, vocabulary)),
        rows=SentencePairs(),
        model=google(size, faithful),
        word_vectors=_sizes.word_vectors(hidden_size, faithful),
        objective=Masked(
            rate=0.15,
            count="rounded",
            most=most if faithful else 0,
            next_sentence=True,
            next_sentence_weight=_sizes.next_sentence_weight(hidden_size, faithful),
        ),
        optimizer=BertAdam(
            lr=_sizes.bert_rate(lr, hidden_size, faithful),
            beta2=_sizes.bert_beta2(hidden_size, faithful),
            epsilon=1e-6,
            weight_decay=0.01,
            decay=("matrices", "embeddings"),
        ),
        schedule=WarmupLinear(
            warmup=_sizes.bert_warmup(warmup, hidden_size, faithful), warmup_steps=warmup_steps if faithful else 0
        ),
        length=128,
        max_grad_norm=1.0,
        budget=f"{steps}steps" if faithful else "24h",
        **more,
    )
