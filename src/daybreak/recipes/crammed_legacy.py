"""Crammed BERT, version 1, which produced crammed-bert-legacy.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), first version; tag Last1.13release of JonasGeiping/cramming.
Command: daybreak run crammed-legacy --corpus TEXT --budget 24h
Published: GLUE dev 78.6 (mean of 9 numbers) in 24 h on an A6000.
Measured: records/2026-11-21-systems-cramming.json (size mini, 8 minutes on a CPU, Wikipedia).
"""

from dataclasses import replace

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed, _sizes
from daybreak.training.objectives.masked import Masked
from daybreak.training.schedule import Ramp

DEVIATIONS = {
    "rows.order": "the original reads the sequences with the most full stops first, so a run that stops before the end "
    "of its text never sees the others",
    "model.attend_padding": "the original's attention kernel ignores the padding mask, also in fine-tuning",
    "ramp": "the original counts 300,000 microbatches, which take a different part of the budget on every GPU; here "
    "the ramp takes 60 % of the budget, as in version 2",
    "optimizer.decay": "the original excludes norms from weight decay by a name that does not match; here they do not "
    "decay, as in version 2",
}
PROCEDURE = _crammed.FILTERED


def build(size: str, faithful: bool) -> Recipe:
    trunk = replace(_crammed.crammed_bert(size, faithful), head="square", attend_padding=faithful)
    version_2 = _crammed.final("crammed-legacy", trunk, size, faithful)
    return replace(
        version_2,
        objective=Masked(rate=0.15, count="bernoulli"),
        optimizer=replace(version_2.optimizer, decay=(*_crammed.DECAYED, "norms") if faithful else _crammed.DECAYED),
        batch=_sizes.batch(size, 4096),
        ramp=Ramp(microbatches=300_000, batch_multiple=128) if faithful else version_2.ramp,
    )


recipe = build("base", False)
