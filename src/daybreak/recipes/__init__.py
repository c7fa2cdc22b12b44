"""Recipes that ship with Daybreak, found by file name.

A docstring says what a recipe is and where it was measured.
"""
