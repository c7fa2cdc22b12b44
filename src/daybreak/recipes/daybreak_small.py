"""The flagship's third size, for hours on a CPU or minutes on a GPU.

Command: daybreak run small --corpus TEXT --budget 1h
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
    name="daybreak-small",
    tokenizer=WordPiece(vocabulary=16_384),
    rows=ViewRows(),
    model=ModernEncoder(layers=6, hidden_size=384, heads=6, intermediate_size=768, init_std=0.05),
    objective=CausalThenMasked(causal_fraction=0.15, causal_targets=0.3, mask_rates=(0.3, 0.25, 0.2, 0.15)),
    optimizer=Muon(lr=2.5e-3),
    schedule=Trapezoid(warmup=0.02, decay=0.6),
    length=128,
    batch=32,
    finish=Finish(start=0.9),
    budget="1h",
)
