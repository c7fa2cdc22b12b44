"""Rung 8: the crammed trunk with BERT's own settings, its schedule made to end with the budget.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 8 of its scripts:
crammed-bert with bert-original, budget-cosine, 6 % warmup.
Command: daybreak run ladder-08 --corpus TEXT --budget 24h
Promise: not yet measured.
"""

from dataclasses import replace

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "as in crammed, which also says what else differs",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.original(
        "ladder-08", replace(_crammed.crammed_bert(size, faithful), dropout=0.1), size, faithful, finished=True
    )


recipe = sized("base", False)
