"""What the sizes of the flagship share: sequences of views, a short causal stage, Muon and an embedding finish."""

from __future__ import annotations

from daybreak.data.sequences.views import ViewRows
from daybreak.data.sequences.word_vectors import WordVectors
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import Recipe
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.optim.muon import Muon
from daybreak.training.schedule import Trapezoid


def flagship(
    name: str,
    model: ModernEncoder,
    *,
    vocabulary: int,
    lr: float,
    budget: str,
    batch: int = 32,
    word_vectors: float = 0.0,
    views_until: float = 0.25,
) -> Recipe:
    """The recipe of one size.

    Args:
        word_vectors: weight of the initial embeddings from the text.
        views_until: end of the part of the run that consists mostly of views. Copy heads need less of it.
    """
    return Recipe(
        name=name,
        tokenizer=WordPiece(vocabulary=vocabulary),
        rows=ViewRows(until=views_until),
        model=model,
        word_vectors=WordVectors(weight=word_vectors),
        objective=CausalThenMasked(causal_fraction=0.15, causal_targets=0.3, mask_rates=(0.3, 0.25, 0.2, 0.15)),
        optimizer=Muon(lr=lr),
        schedule=Trapezoid(warmup=0.02, decay=0.6),
        length=128,
        batch=batch,
        finish=Finish(start=0.9),
        budget=budget,
    )
