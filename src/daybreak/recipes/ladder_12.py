"""Rung 12: the simple trunk with the final training.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 12 of its scripts:
crammed-bert-simple with bert-o4.
Command: daybreak run ladder-12 --corpus TEXT --budget 24h
Promise: not yet measured.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "as in crammed, which also says what else differs",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.final("ladder-12", _crammed.crammed_simple(size, faithful), size, faithful)


recipe = sized("base", False)
