"""Simple models that a fine-tuned encoder is compared with."""
