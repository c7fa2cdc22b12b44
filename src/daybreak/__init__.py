"""Daybreak: text and a time budget in, an encoder that stock Hugging Face loads out."""

__version__ = "0.1.0"
