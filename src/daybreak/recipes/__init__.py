"""Floor 5: one file per recipe, found by its file name. The docstring is the promise; the body is values."""
