"""The flagship's second size, for 15 minutes to a few hours on a CPU, or minutes on a GPU.

Command: daybreak run mini --corpus TEXT --budget 15m
Measured: records/2026-11-24-mini-2h (general text, two hours of one thread; before its word vectors).
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
    name="daybreak-mini",
    tokenizer=WordPiece(vocabulary=8_192),
    rows=ViewRows(),
    model=ModernEncoder(
        layers=4, hidden_size=256, heads=4, intermediate_size=512, init_std=0.0625, query_key_correlation=0.5
    ),
    word_vectors=WordVectors(weight=0.8),
    objective=CausalThenMasked(causal_fraction=0.15, causal_targets=0.3, mask_rates=(0.3, 0.25, 0.2, 0.15)),
    optimizer=Muon(lr=3e-3),
    schedule=Trapezoid(warmup=0.02, decay=0.6),
    length=128,
    batch=32,
    finish=Finish(start=0.9),
    budget="15m",
)
