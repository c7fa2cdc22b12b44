"""The flagship's smallest size, for minutes on a laptop CPU.

Command: daybreak run tiny --corpus TEXT --budget 3m
Measured: records/2026-11-23-tiny-3m-word-vectors (the built-in docstrings: daybreak run).
"""

from daybreak.data.sequences.views import ViewRows
from daybreak.data.sequences.word_vectors import WordVectors
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import Recipe
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.optim.muon import Muon
from daybreak.training.schedule import Trapezoid

recipe = Recipe(
    name="daybreak-tiny",
    tokenizer=WordPiece(vocabulary=8_192),
    rows=ViewRows(),
    model=ModernEncoder(
        layers=2, hidden_size=128, heads=2, intermediate_size=256, init_std=0.09, query_key_correlation=0.5
    ),
    word_vectors=WordVectors(weight=0.8),
    objective=CausalThenMasked(causal_fraction=0.15, causal_targets=0.3, mask_rates=(0.3, 0.25, 0.2, 0.15)),
    optimizer=Muon(lr=4e-3),
    schedule=Trapezoid(warmup=0.02, decay=0.6),
    length=128,
    batch=32,
    finish=Finish(start=0.9),
    budget="3m",
)
