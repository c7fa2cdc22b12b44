"""Architectures. Each file has the layers, the initialisation, and the import from and export to Hugging Face."""
