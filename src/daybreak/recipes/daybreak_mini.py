"""Daybreak's own recipe in its second size, for an hour to a night on a CPU, or minutes on a GPU.

Command: daybreak run mini --corpus TEXT --budget 15m
Measured: records/2026-11-24-mini-2h (general text, two hours of one thread; before it had word vectors and copy heads).
"""

from daybreak.models.modern import ModernEncoder
from daybreak.recipes._flagship import flagship

recipe = flagship(
    "daybreak-mini",
    ModernEncoder(
        layers=4,
        hidden_size=256,
        heads=4,
        intermediate_size=512,
        init_std=0.0625,
        query_key_correlation=0.5,
        copy_heads=True,
    ),
    vocabulary=8_192,
    lr=3e-3,
    budget="15m",
    word_vectors=0.8,
    views_until=0.1,
)
