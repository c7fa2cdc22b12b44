"""Parameters and floating-point operations of a recipe's model, counted on the meta device."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from daybreak.core.encoder import Encoder
from daybreak.core.errors import UserError
from daybreak.data.tokenizers.tokenizer import load_tokenizer, vocabulary_size
from daybreak.data.tokenizers.tokenizer_import import Existing
from daybreak.data.tokenizers.tokenizer_making import TrainedTokenizer
from daybreak.recipe import Recipe

MASKED_FRACTION = 0.15
"""Fraction of the positions that is predicted when operations are counted; recipes differ by a few hundredths."""
ANY_VOCABULARY = 8
"""Vocabulary size to check a model's shape with, which does not depend on it."""
BACKWARD = 2
"""Operations of the backward pass relative to the forward pass."""


def vocabulary_of(recipe: Recipe) -> int:
    """Number of tokens of the tokenizer that the recipe trains or takes over."""
    if isinstance(recipe.tokenizer, Existing):
        return vocabulary_size(load_tokenizer(Path(recipe.tokenizer.folder)))
    if isinstance(recipe.tokenizer, TrainedTokenizer):
        return recipe.tokenizer.vocabulary
    raise UserError(
        f"The vocabulary size of a {type(recipe.tokenizer).__name__} is known only after preparation.",
        "Run daybreak prepare with this recipe first, then pretrain on its output.",
    )


def meta_model(recipe: Recipe, vocabulary: int) -> Encoder:
    """Build the recipe's model on the meta device, without memory for its weights."""
    with torch.device("meta"):
        return recipe.model.build(vocabulary)


def flops_per_token(recipe: Recipe, vocabulary: int) -> int:
    """Floating-point operations of a training step per input token, for matrix products and attention."""
    length, model = recipe.length, meta_model(recipe, vocabulary).eval()
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        ids = torch.zeros(1, length, dtype=torch.int64)
        positions = torch.zeros(1, max(1, round(MASKED_FRACTION * length)), dtype=torch.int64)
        model.logits(ids, positions)
    return (1 + BACKWARD) * counter.get_total_flops() // length
