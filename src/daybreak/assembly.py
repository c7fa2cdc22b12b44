"""From a recipe and prepared data to everything that trains, brought to where the newest checkpoint stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from daybreak.base.encoder import Encoder
from daybreak.base.errors import UserError
from daybreak.base.records import Decisions
from daybreak.base.run_folder import RunFolder
from daybreak.base.terminal import duration, say
from daybreak.base.world import World
from daybreak.data.sampler import Sampler, StreamRows
from daybreak.data.sentence_pairs import SentencePairs, check_pairs
from daybreak.data.shards import Shards, TokenStream, open_shards
from daybreak.data.tokenizer import continuation_table, load_tokenizer
from daybreak.models.importing import load_pretrained
from daybreak.models.new_vocabulary import moved
from daybreak.recipe import Recipe
from daybreak.training import checkpoint
from daybreak.training.calibration import PROBE_STEP_ROWS, with_microbatch
from daybreak.training.clock import Budget, BudgetClock, Clock, ReplayClock, read_trace
from daybreak.training.journal import cut_back
from daybreak.training.masked import Masked
from daybreak.training.phases import Stretch
from daybreak.training.step import Training
from daybreak.training.validation import ROWS, OwnRows, Validation

YARDSTICK = 128
"""Positions of the rows that every recipe is measured on, where its model can read so many."""
OWN_ROWS = 256
"""Held-out rows of the recipe's own kind: judged once, at the end, beside twice as many of the yardstick."""
USES = ("start", "train", "communicate", "validate", "checkpoint", "export", "lost")


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is asked for: which recipe, on which data, where to, and since when."""

    recipe: Recipe
    shards: Shards
    data: Path
    run: RunFolder
    budget: Budget
    replay: Path | None
    started: float
    """``time.monotonic()`` from which the budget counts."""


def assemble(order: Order, decisions: Decisions, world: World) -> tuple[Training, checkpoint.Progress, Clock]:
    """Build every part, and bring it to where the newest checkpoint stands."""
    recipe, shards, run = order.recipe, order.shards, order.run
    device = torch.device(decisions.device)
    torch.manual_seed(recipe.seed)
    model = recipe.model.build(shards.manifest.vocabulary)
    found, torn = checkpoint.newest(run.checkpoints)
    if found is None and recipe.origin.init:
        parent = starting_weights(recipe, order.data, shards).state_dict()
        outcome = model.load_state_dict(
            {name: parent[name] for name in parent if name in model.state_dict()}, strict=False
        )
        if outcome.missing_keys:
            say(f"Not in the model that is continued, and begun afresh: {', '.join(sorted(outcome.missing_keys))}.")
    model = model.to(device)
    optimizer = recipe.optimizer.build(model)
    for group in optimizer.param_groups:
        group["lr"] *= decisions.rate_factor
    for name in torn:
        say(f"Passing over a torn checkpoint: {name}")
    progress = checkpoint.load(found, model, optimizer) if found else _beginning(recipe, model, optimizer)
    progress, heartbeat = _resumed(run, progress, world)
    clock: Clock
    if order.replay:
        clock = ReplayClock(read_trace(RunFolder(order.replay).trace))
    else:
        clock = BudgetClock(
            order.budget, world, started=order.started, already=heartbeat, reserve=decisions.reserve_seconds
        )
    training = Training(
        model=model,
        optimizer=optimizer,
        objective=recipe.objective,
        schedule=recipe.schedule,
        stretches=_stretches(recipe, shards, order.data, decisions),
        later=replace(recipe.later, lr=recipe.later.lr * decisions.rate_factor),
        ramp=recipe.ramp,
        clock=clock,
        world=world,
        clip=recipe.clip,
        seed=recipe.seed,
        device=device,
        precision=getattr(torch, decisions.precision),
        validation=yardstick(recipe, shards, order.data, device),
        validation_rows=decisions.validation_rows,
        validation_marks=decisions.validation_marks,
        checkpoints=run.checkpoints,
        branch=run.branch,
        journal=None,
        monitors=(),
        spent={use: progress.spent.get(use, 0.0) for use in USES},
        begin=recipe.origin.begin,
        continues=continuation_table(load_tokenizer(order.data / "tokenizer"))
        if recipe.objective.whole_words
        else None,
    )
    return training, progress, clock


def _beginning(recipe: Recipe, model: Encoder, optimizer: torch.optim.Optimizer) -> checkpoint.Progress:
    """Step 0: of a new run, or of one that goes on from before another's decay."""
    if not recipe.origin.branch:
        return checkpoint.START
    found, _ = checkpoint.newest(RunFolder(Path(recipe.origin.branch)).branch)
    if found is None:
        raise UserError(
            f"'{recipe.origin.branch}' holds no checkpoint from before its decay.",
            "Name a run of this version that got so far, or start a new one.",
        )
    before = checkpoint.load(found, model, optimizer)
    say(f"Going on from step {before.step:,} of '{recipe.origin.branch}', at {recipe.origin.begin:.1%} of its course.")
    second = None if before.second_from is None else 0.0
    return replace(checkpoint.START, position=before.position, first=before.position, second_from=second)


def _resumed(run: RunFolder, progress: checkpoint.Progress, world: World) -> tuple[checkpoint.Progress, float]:
    """Charge what was lost since the checkpoint up to the last heartbeat; return that too, in seconds."""
    trace = read_trace(run.trace)
    heartbeat = max([progress.elapsed, *(record.elapsed for record in trace[-1:])])
    if not trace and not progress.step:
        return progress, heartbeat
    spent = {**progress.spent, "lost": progress.spent.get("lost", 0.0) + heartbeat - progress.elapsed}
    progress = replace(progress, elapsed=heartbeat, resumes=progress.resumes + 1, spent=spent)
    lost = 0
    if world.is_first:
        # Durably charged first, and only then is the trace cut that proves it.
        checkpoint.charge(run.checkpoints, progress)
        lost = cut_back(run, progress.step)
    say(f"Resuming at step {progress.step}, {duration(heartbeat)} charged so far, {lost} steps lost.")
    return progress, heartbeat


def _stretches(recipe: Recipe, shards: Shards, data: Path, decisions: Decisions) -> tuple[Stretch, ...]:
    """The phases of the run."""
    if isinstance(recipe.rows, SentencePairs) and (warning := check_pairs(shards.train)):
        say(warning)
    later = recipe.later
    plans = [(recipe.length, decisions.batch)]
    if later.ever:
        plans.append((later.length, later.batch or decisions.batch))
    built = []
    for length, batch in plans:
        rows = sampler(recipe, shards.train, shards, data, length)
        built.append(
            Stretch(take=rows.take, length=length, rows_per_epoch=rows.rows_per_epoch, batch=batch, microbatch=1)
        )
    return with_microbatch(tuple(built), decisions.microbatch or PROBE_STEP_ROWS)


def sampler(recipe: Recipe, stream: TokenStream, shards: Shards, data: Path, length: int) -> Sampler:
    """The rows of ``stream`` in the recipe's own way."""

    def token_id(token: str) -> int | None:
        return load_tokenizer(data / "tokenizer").token_to_id(token)  # only one order of rows ever asks

    return recipe.rows.build(stream, length, recipe.seed, shards.manifest.special, token_ids=token_id)


def yardstick(recipe: Recipe, shards: Shards, data: Path, device: torch.device) -> Validation:
    """The same held-out positions for every recipe on these data; beside them the recipe's own kind of rows."""
    longest = recipe.model.longest
    length = max(recipe.length, min(YARDSTICK, longest)) if longest else recipe.length
    heldout = StreamRows().build(shards.heldout, length, recipe.seed, shards.manifest.special)
    own = None
    if isinstance(recipe.objective, Masked):
        mine = sampler(recipe, shards.heldout, shards, data, recipe.length)
        batch = mine.in_order(min(OWN_ROWS, mine.rows_per_epoch))
        if recipe.objective.whole_words:
            table: np.ndarray = continuation_table(load_tokenizer(data / "tokenizer"))
            batch = replace(batch, continues=table[batch.ids])
        own = OwnRows(recipe.objective, batch.on(device))
    return Validation(heldout.in_order(min(ROWS, heldout.rows_per_epoch)), shards.unigram_counts, device, own)


def starting_weights(recipe: Recipe, data: Path, shards: Shards) -> Encoder:
    """The model of ``origin.init``, with the vocabulary of the data where that is another."""
    parent = load_pretrained(Path(recipe.origin.init))
    old, new = load_tokenizer(parent.tokenizer), load_tokenizer(data / "tokenizer")
    same = old.get_vocab() == new.get_vocab()
    if same and parent.model.vocabulary == shards.manifest.vocabulary:
        return parent.model
    if not same:
        say(f"The data have a vocabulary of their own: its pieces start from those of '{recipe.origin.init}'.")
    return moved(
        parent.model,
        parent.shape,
        old=old,
        new=new,
        old_special=parent.special,
        new_special=shards.manifest.special,
    )


def general_validation(recipe: Recipe, shards: Shards, device: torch.device) -> Validation | None:
    """Held-out general text, on which a continued model shows what it forgets; None where none was given."""
    if not recipe.origin.general:
        return None
    general = open_shards(Path(recipe.origin.general))
    if general.manifest.tokenizer != shards.manifest.tokenizer:
        raise UserError(
            f"The general text in '{recipe.origin.general}' was prepared with another tokenizer.",
            "Prepare it with --tokenizer-from DATA/tokenizer.",
        )
    rows = StreamRows().build(general.heldout, recipe.length, recipe.seed, general.manifest.special)
    return Validation(rows.in_order(min(ROWS, rows.rows_per_epoch)), general.unigram_counts, device)
