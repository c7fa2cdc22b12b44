"""Rung 3: the 24-hour BERT of Izsak et al.: a large model with the norm first.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 3 of its scripts:
crammed-large-izsak with bert-izsak.
Command: daybreak run ladder-03 --corpus TEXT --budget 24h
Promise: not yet measured.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "as in crammed, which also says what else differs",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.budget_linear("ladder-03", _crammed.izsak(size, faithful), size, faithful)


recipe = sized("base", False)
