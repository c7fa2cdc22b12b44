"""Forecasts of the held-out loss and of task scores, fitted on recorded runs."""
