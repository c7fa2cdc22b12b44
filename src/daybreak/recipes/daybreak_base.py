"""Daybreak's own recipe in its largest size, for one GPU and one day.

Command: daybreak run base --corpus TEXT --budget 24h
Measured: records/2026-11-26-gpu-h100.json (six minutes of one H100).
"""

from daybreak.models.modern import ModernEncoder
from daybreak.recipes._flagship import flagship

recipe = flagship(
    "daybreak-base",
    ModernEncoder(layers=12, hidden_size=768, heads=12, intermediate_size=2_048, init_std=0.036),
    vocabulary=32_768,
    lr=1.5e-3,
    budget="24h",
    batch=512,
)
