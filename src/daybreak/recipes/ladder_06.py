"""Rung 6: rung 4 without tuning of the compiler; here, where nothing is compiled, a second run of rung 4.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 6 of its scripts:
crammed-bert with bert-o4, inductor not tuned.
Command: daybreak run ladder-06 --corpus TEXT --budget 24h
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
    return replace(_crammed.final("ladder-06", _crammed.crammed_bert(size, faithful), size, faithful), seed=1)


recipe = sized("base", False)
