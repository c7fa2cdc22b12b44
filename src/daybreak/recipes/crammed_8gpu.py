"""Crammed BERT on eight GPUs for two days.

Paper: Geiping and Goldstein 2022 (arXiv 2212.14034), section 4.4; scripts of JonasGeiping/cramming.
Command: torchrun --nproc-per-node 8 -m daybreak pretrain crammed-8gpu --data DATA --budget 47.5h
         or on one device: daybreak run crammed-8gpu --corpus TEXT --budget 47.5h
Measured: records/2026-11-21-systems-cramming.json (one CPU process, size mini, 8 minutes, Wikipedia).
"""

from dataclasses import replace

from daybreak.recipe import Recipe
from daybreak.recipes import _crammed

DEVIATIONS = {
    "rows.order": "the original reads the sequences with the most full stops first, so a run that stops before the end "
    "of its text never sees the others",
    "see crammed": "the two recipes differ only in the budget and in the microbatch of a device",
}
PROCEDURE = _crammed.FILTERED


def build(size: str, faithful: bool) -> Recipe:
    original_size = size in ("base", "large")
    on_one_device = _crammed.final(
        "crammed-8gpu", _crammed.crammed_bert(size, faithful), size, faithful, budget="47.5h"
    )
    return replace(
        on_one_device, microbatch=512 if original_size else 0, ramp=replace(on_one_device.ramp, batch_multiple=0)
    )


recipe = build("base", False)
