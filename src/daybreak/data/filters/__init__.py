"""Decide which documents, and which parts of them, are kept."""
