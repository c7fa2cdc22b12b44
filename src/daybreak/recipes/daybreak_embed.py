"""The embedding finish alone, which adapts a trained model to search in your text.

Command: daybreak run embed --init MODEL --corpus TEXT --budget 10m
Measured: records/2026-11-26-embed-science (a general model of size tiny on research text, 400 steps of one thread).
"""

from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import Recipe
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.schedule import Trapezoid

recipe = Recipe(
    name="daybreak-embed",
    # The tokenizer and the shape are those of the model that --init names.
    tokenizer=WordPiece(vocabulary=8_192),
    model=ModernEncoder(layers=2, hidden_size=128, heads=2, intermediate_size=256, init_std=0.09),
    objective=CausalThenMasked(causal_fraction=0.0, mask_rates=(0.15,)),
    optimizer=AdamW(lr=1e-3),  # a tenth of it for a published model
    schedule=Trapezoid(warmup=0.05, decay=0.95),
    finish=Finish(start=0.0, weight=1.0, length=128, longest=126, ordinary=0.0),
    length=128,
    batch=64,
    budget="10m",
)
