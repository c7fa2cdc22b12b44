"""Daybreak's own recipe in its third size, for a day or more on a CPU, or minutes on a GPU.

Command: daybreak run small --corpus TEXT --budget 1h
Not measured yet.
"""

from daybreak.models.modern import ModernEncoder
from daybreak.recipes._flagship import flagship

recipe = flagship(
    "daybreak-small",
    ModernEncoder(layers=6, hidden_size=384, heads=6, intermediate_size=768, init_std=0.05),
    vocabulary=16_384,
    lr=2.5e-3,
    budget="1h",
)
