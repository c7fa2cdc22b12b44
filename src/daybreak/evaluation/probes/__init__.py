"""Probes of a model without fine-tuning."""
