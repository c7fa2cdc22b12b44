"""How large a recipe's model is and how much arithmetic it asks for; nothing is allocated for it."""

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

TARGET_SHARE = 0.15
"""Share of a row's positions that is predicted, for counting arithmetic; recipes differ by a few hundredths."""
BACKWARD = 2
"""Products of the backward pass for each one of the forward pass."""


def vocabulary_of(recipe: Recipe) -> int:
    """Pieces of the tokenizer that the recipe trains or takes over.

    Raises:
        UserError: only the prepared text can tell.
    """
    if isinstance(recipe.tokenizer, Existing):
        return vocabulary_size(load_tokenizer(Path(recipe.tokenizer.folder)))
    if isinstance(recipe.tokenizer, TrainedTokenizer):
        return recipe.tokenizer.vocabulary
    raise UserError(
        f"How many pieces a {type(recipe.tokenizer).__name__} has is known when the text is prepared, and not before.",
        "Prepare it with this recipe, and pretrain on that.",
    )


def meta_model(recipe: Recipe, vocabulary: int) -> Encoder:
    """The recipe's model without its numbers."""
    with torch.device("meta"):
        return recipe.model.build(vocabulary)


def flops_per_token(recipe: Recipe, vocabulary: int) -> int:
    """Floating-point operations of a training step for each token read, matrix products and attention only."""
    length, model = recipe.length, meta_model(recipe, vocabulary).eval()
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        ids = torch.zeros(1, length, dtype=torch.int64)
        slots = torch.zeros(1, max(1, round(TARGET_SHARE * length)), dtype=torch.int64)
        model.logits(ids, slots)
    return (1 + BACKWARD) * counter.get_total_flops() // length
