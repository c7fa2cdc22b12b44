"""Rung 9: the crammed trunk with the settings bert-base.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 9 of its scripts:
crammed-bert with bert-base.
Command: daybreak run ladder-09 --corpus TEXT --budget 24h
Promise: not yet measured.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "as in crammed, which also says what else differs",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.budget_cosine("ladder-09", _crammed.crammed_bert(size, faithful), size, faithful, batch=1536)


recipe = sized("base", False)
