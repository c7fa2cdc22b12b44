"""Daybreak's own recipe in its smallest size, for minutes on a laptop CPU.

Command: daybreak run tiny --corpus TEXT --budget 3m
Measured: records/2026-11-28-tiny-3m-copy-heads (the built-in docstrings: daybreak run).
"""

from daybreak.models.modern import ModernEncoder
from daybreak.recipes._flagship import flagship

recipe = flagship(
    "daybreak-tiny",
    ModernEncoder(
        layers=2,
        hidden_size=128,
        heads=2,
        intermediate_size=256,
        init_std=0.09,
        query_key_correlation=0.5,
        copy_heads=True,
    ),
    vocabulary=8_192,
    lr=4e-3,
    budget="3m",
    word_vectors=0.8,
    views_until=0.1,
)
