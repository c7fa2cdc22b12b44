"""Rung 11: the trunk of BERT-base with the final training.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 11 of its scripts:
hf-bert-base with bert-o4.
Command: daybreak run ladder-11 --corpus TEXT --budget 24h
Promise: not yet measured.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "as in crammed, which also says what else differs",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.final("ladder-11", _crammed.hugging_face_bert(size, faithful, 0.0), size, faithful)


recipe = sized("base", False)
