"""Rung 10: rung 9 with 8192 rows a step.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 10 of its scripts:
crammed-bert with bert-base at batch 8192.
Command: daybreak run ladder-10 --corpus TEXT --budget 24h
Promise: not yet measured.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "as in crammed, which also says what else differs",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.budget_cosine("ladder-10", _crammed.crammed_bert(size, faithful), size, faithful, batch=8192)


recipe = sized("base", False)
