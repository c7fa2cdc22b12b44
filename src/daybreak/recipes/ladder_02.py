"""Rung 2: rung 1 in float32.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), run 2 of its scripts:
hf-bert-base with bert-original on books and Wikipedia, float32.
Command: daybreak run ladder-02 --corpus BOOKS_AND_WIKIPEDIA --budget 24h
Promise: not yet measured.
"""

from dataclasses import replace

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "schedule": "the original counts 8 million microbatches, of which a day passes a few hundred thousand; here it is "
    "the part that a day on its card passes, so that a shorter run warms up too",
    "as in crammed": "what that recipe says of the rows, the special ids and the gradients holds here too",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    return replace(
        _crammed.original(
            "ladder-02",
            _crammed.hugging_face_bert(size, faithful, 0.1),
            size,
            faithful,
            finished=False,
            order="shuffled",
        ),
        precision="float32",
    )


recipe = sized("base", False)
