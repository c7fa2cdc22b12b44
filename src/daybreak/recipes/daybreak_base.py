"""The flagship's largest size, for one GPU and one day.

Command: daybreak run base --corpus TEXT --budget 24h
Not measured yet.
"""

from daybreak.data.sequences.views import ViewRows
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import Recipe
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.objective import CausalThenMasked
from daybreak.training.optim.muon import Muon
from daybreak.training.schedule import Trapezoid

recipe = Recipe(
    name="daybreak-base",
    tokenizer=WordPiece(vocabulary=32_768),
    rows=ViewRows(),
    model=ModernEncoder(layers=12, hidden_size=768, heads=12, intermediate_size=2_048, init_std=0.036),
    objective=CausalThenMasked(causal_fraction=0.15, causal_targets=0.3, mask_rates=(0.3, 0.25, 0.2, 0.15)),
    optimizer=Muon(lr=1.5e-3),
    schedule=Trapezoid(warmup=0.02, decay=0.6),
    length=128,
    batch=512,
    finish=Finish(start=0.9),
    budget="24h",
)
