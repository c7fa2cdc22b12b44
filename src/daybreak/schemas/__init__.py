"""The types that reach disk: frozen dataclasses, one module a file format."""
