"""Crammed BERT, version 1, the one behind crammed-bert-legacy.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), first version; tag Last1.13release of JonasGeiping/cramming.
Command: daybreak run crammed-legacy --corpus TEXT --budget 24h
Promise: published, GLUE dev 78.6 (mean of 9 numbers) in 24 h on an A6000.
"""

from dataclasses import replace

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed, _sizes
from daybreak.training.objectives.masked import Masked
from daybreak.training.ramp import Ramp

DEVIATIONS = {
    "rows.order": "the original reads the rows with the most full stops first; a run that does not come to the end of "
    "its text would never see the others",
    "model.attend_padding": "the original's kernel ignores the padding mask, in fine-tuning too",
    "ramp": "the original counts 300,000 microbatches, which is another moment on every card; here it is 60 % of the "
    "budget, as in its own second version",
    "optimizer.decay": "the original's list of what does not decay misses its norms by their names; they do not decay "
    "here, as in its second version",
}


def sized(size: str, faithful: bool) -> Recipe:
    size = size or "base"
    trunk = replace(_crammed.crammed_bert(size, faithful), head="square", attend_padding=faithful)
    two = _crammed.final("crammed-legacy", trunk, size, faithful)
    return replace(
        two,
        objective=Masked(rate=0.15, count="bernoulli"),
        optimizer=replace(two.optimizer, decay=(*_crammed.DECAYED, "norms") if faithful else _crammed.DECAYED),
        batch=_sizes.batch(size, 4096),
        ramp=Ramp(microbatches=300_000, batch_multiple=128) if faithful else two.ramp,
    )


recipe = sized("base", False)
