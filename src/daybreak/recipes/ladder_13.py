"""Rung 13: BERT-base with BERT's own settings, its schedule made to end with the budget.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 13 of its scripts:
hf-bert-base with bert-original, budget-cosine, on the Pile.
Command: daybreak run ladder-13 --corpus TEXT --budget 24h
Promise: not yet measured.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "as in crammed, which also says what else differs",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.original(
        "ladder-13", _crammed.hugging_face_bert(size, faithful, 0.1), size, faithful, finished=True
    )


recipe = sized("base", False)
