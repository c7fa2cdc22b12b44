"""Rung 4: the final recipe of Cramming.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 4 of its scripts:
crammed-bert with bert-o4, text filtered and sorted.
Command: daybreak run ladder-04 --corpus TEXT --budget 24h
Promise: published, as in the recipe crammed.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "as in crammed, which also says what else differs",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.final("ladder-04", _crammed.crammed_bert(size, faithful), size, faithful)


recipe = sized("base", False)
