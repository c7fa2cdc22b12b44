"""Rung 1: BERT as it was trained, for a day: its schedule never ends.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 1 of its scripts:
hf-bert-base with bert-original on books and Wikipedia, mixed precision.
Command: daybreak run ladder-01 --corpus BOOKS_AND_WIKIPEDIA --budget 24h
Promise: not yet measured.
"""

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "schedule": "the original counts 8 million microbatches, of which a day passes a few hundred thousand; here it is "
    "the part that a day on its card passes, so that a shorter run warms up too",
    "as in crammed": "what that recipe says of the rows, the special ids and the gradients holds here too",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return _crammed.original(
        "ladder-01", _crammed.hugging_face_bert(size, faithful, 0.1), size, faithful, finished=False, order="shuffled"
    )


recipe = sized("base", False)
