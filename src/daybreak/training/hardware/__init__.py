"""Devices, precision, compilation and data parallelism."""
