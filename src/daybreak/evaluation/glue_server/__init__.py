"""Submission files for the GLUE server."""
