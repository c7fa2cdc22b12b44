"""Architectures. Each file has the layers, the initialization, and the import from and export to Hugging Face."""
