"""Rung 7: rung 4 on books and Wikipedia, never sorted: without --faithful it differs from rung 4 by its text only.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 7 of its scripts:
crammed-bert with bert-o4 on bookcorpus-wikipedia.
Command: daybreak run ladder-07 --corpus BOOKS_AND_WIKIPEDIA --budget 24h
Promise: not yet measured.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {"as in crammed": "what that recipe says of the rows, the special ids and the gradients holds here too"}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.final("ladder-07", _crammed.crammed_bert(size, faithful), size, faithful, order="shuffled")


recipe = sized("base", False)
