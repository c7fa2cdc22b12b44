"""The built-in corpus: docstrings of installed packages."""
