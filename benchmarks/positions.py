"""Held-out losses of earlier runs on the positions of this version.

Runs until 2026-11-23 were measured on the first held-out sequences, which all come from the first source of a text.
"""

from __future__ import annotations

from pathlib import Path

import torch

from daybreak.core.files import read_json
from daybreak.core.run_folder import RunFolder
from daybreak.data.sequences.shards import open_shards
from daybreak.models.importing import load_pretrained
from daybreak.pretraining.setup import heldout_validation
from daybreak.recipe import load_recipe
from daybreak.schemas.run import Decisions, Summary


def heldout(run: RunFolder, data: Path) -> tuple[float, float]:
    """Return the held-out loss of a finished run and the unigram loss, in nats, on sequences all over the text.

    A record has no model: its losses are those that it states.
    """
    stated = read_json(run.summary, Summary).validation
    if not run.model.is_dir() or not read_json(run.decisions, Decisions).first_heldout:
        return stated.loss, stated.unigram_loss
    validation = heldout_validation(load_recipe(run.recipe), open_shards(data), data, torch.device("cpu"))
    found = validation.evaluate(load_pretrained(run.model).model)
    print(
        f"{run.path.name}: loss {stated.loss:.3f} on the first held-out sequences, {found.loss:.3f} all over the text"
    )
    return found.loss, found.unigram_loss
