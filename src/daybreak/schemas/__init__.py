"""Types of the files that Daybreak writes: frozen dataclasses, one module for each file format."""
