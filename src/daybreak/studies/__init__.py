"""Experiments that compare recipes or texts at equal wall-clock time."""
