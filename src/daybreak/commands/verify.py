"""Command ``verify``: repeat the recorded steps of a run and compare the weights bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from daybreak.commands.options import RecipeFileOptions, RunDataOptions, data_of, load_recipe_file, parse
from daybreak.core.errors import UserError, check_option
from daybreak.core.files import read_json
from daybreak.core.process import uptime
from daybreak.core.run_folder import RunFolder
from daybreak.data.sequences.shards import open_shards
from daybreak.schemas.records import Verified
from daybreak.schemas.run import Decisions


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(RunDataOptions, RecipeFileOptions):
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder, finished or not."""
    last: int = 0
    """Verify only this many steps at the end, from the newest checkpoint before them; 0 for all."""


def main(arguments: Sequence[str]) -> None:
    options = parse(VerifyOptions, "verify", arguments)
    load_recipe_file(options.recipe)
    verify(options.run, data=options.data, last=options.last)


def verify(run: Path | str, *, data: Path | str | None = None, last: int = 0) -> Verified:
    """Repeat the recorded steps of ``run`` and compare gradient norms, every kept checkpoint and the exported model.

    The held-out loss of the exported model is measured again. Clock readings, decisions and changes of settings come
    from the run's records, sequences from its data, whose hashes are checked while reading.

    The keywords are the options of ``daybreak verify``.
    """
    import torch

    from daybreak.core import world as worlds
    from daybreak.pretraining.hardware_choices import use_device
    from daybreak.pretraining.replay import check_world_size, find_start, find_weights, replay
    from daybreak.pretraining.run_start import refuse_other_data
    from daybreak.pretraining.setup import PretrainingJob
    from daybreak.recipe import load_recipe
    from daybreak.training.clock import read_trace
    from daybreak.training.recovery import current_change

    run = Path(run)
    check_option("--last", last, last >= 0, "of at least 0")
    folder = RunFolder(run)
    if not folder.recipe.is_file():
        raise UserError(f"'{run}' is not a run folder.", "Name a folder that daybreak pretrain made.")
    recipe, decisions = load_recipe(run), read_json(folder.decisions, Decisions)
    data = data_of(run, data)
    shards = open_shards(data)
    refuse_other_data(folder, shards)
    trace = read_trace(folder.trace)
    if not trace or [record.step for record in trace] != list(range(len(trace))):
        raise UserError(f"Steps are missing in '{folder.trace}'.", "Only a run with a complete trace can be verified.")
    world = worlds.start()
    try:
        use_device(decisions)
        job = PretrainingJob(recipe=recipe, shards=shards, data=data, run=folder, started=uptime())
        saved = find_weights(folder, trace)
        start = find_start(saved, last, len(trace)) if last else None
        first = start.progress.step if start else 0
        later = [weights for weights in saved if weights.step > first]
        if not later:
            raise UserError(f"'{run}' has no later checkpoint and no exported model.", "Resume the run first.")
        check_world_size(decisions, first, later[-1].step, world, saved, len(trace))
        torch.set_num_threads(current_change(decisions, first).threads)
        return replay(job, decisions, trace, start, later, world)
    finally:
        worlds.stop(world)
