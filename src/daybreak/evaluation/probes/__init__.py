"""Measure a model without fine-tuning it."""
