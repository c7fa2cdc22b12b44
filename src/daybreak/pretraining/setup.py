"""Setup of a run: build all parts from a recipe and prepared data, and load the newest checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daybreak.core.batch import Batch
from daybreak.core.budget import Budget
from daybreak.core.encoder import Encoder
from daybreak.core.errors import UserError
from daybreak.core.process import uptime
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import to_dict
from daybreak.core.terminal import duration, say
from daybreak.core.world import World
from daybreak.data.sequences.sampler import Sampler, StreamRows, evenly_spaced
from daybreak.data.sequences.sentence_pairs import SentencePairs, check_pairs
from daybreak.data.sequences.shards import Shards, TokenStream, open_shards
from daybreak.data.sequences.span_pairs import FEWEST, FEWEST_PASSAGES, SpanSampler, passages
from daybreak.data.sequences.word_vectors import word_vectors
from daybreak.data.tokenizers.tokenizer import continuation_table, load_tokenizer
from daybreak.models.importing import load_pretrained
from daybreak.models.new_vocabulary import with_vocabulary
from daybreak.recipe import Recipe
from daybreak.reporting.runs import last_trace
from daybreak.schemas.run import Decisions
from daybreak.training import checkpoint
from daybreak.training.averaging import RunningAverage
from daybreak.training.calibration import PROBE_STEP_ROWS
from daybreak.training.clock import BudgetClock, Clock
from daybreak.training.hardware import probe
from daybreak.training.hardware.data_parallel import DataParallel
from daybreak.training.monitoring.heartbeat import read_heartbeat
from daybreak.training.monitoring.journal import cut_back
from daybreak.training.objectives.finish import Finish
from daybreak.training.objectives.masked import Masked
from daybreak.training.phases import Phase, with_batch_multiple, with_microbatch
from daybreak.training.prefetch import Prefetch
from daybreak.training.step import Training
from daybreak.training.validation import ROWS, RecipeHeldOut, Validation

VALIDATION_LENGTH = 128
"""Length of the held-out sequences that every recipe is evaluated on, if its model has so many positions."""
SAMPLE_TOKENS = 40
OWN_ROWS = 256
"""Held-out sequences built and masked as the recipe trains, evaluated once at the end of a run."""
USES = (
    "start", "data", "train", "communicate", "clock", "monitor", "validate", "checkpoint", "export", "lost"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PretrainingJob:
    """Recipe, data and run folder of one pretraining command."""

    recipe: Recipe
    shards: Shards
    data: Path
    run: RunFolder
    started: float
    """``uptime()`` from which the budget counts."""
    fill_memory: bool = False
    """Use the largest microbatch that fits into the memory instead of the fastest one."""

    @cached_property
    def budget(self) -> Budget:
        """The budget of the recipe, parsed once."""
        return Budget.parse(self.recipe.budget)


def setup_training(job: PretrainingJob, decisions: Decisions, world: World) -> tuple[Training, checkpoint.Progress]:
    """Build every part of a run and load the newest checkpoint."""
    recipe, run = job.recipe, job.run
    newest, torn = checkpoint.read_newest(run.checkpoints) if world.is_first else (None, [])
    for name in torn:
        say(f"Skipping an incomplete checkpoint: {name}")
    newest = checkpoint.broadcast(newest, world)
    parts = build(recipe, job.shards, job.data, decisions, init=newest is None)
    progress = checkpoint.load(newest, *parts) if newest else first_progress(recipe, *parts, world)
    progress, heartbeat = _resumed(job, progress, world)
    reserve = max(decisions.reserve_seconds, progress.reserve)
    clock = BudgetClock(
        job.budget, world, started=job.started, already=heartbeat, reserve=reserve, first_step_at=progress.first_step_at
    )
    return build_training(job, parts, decisions, world, clock, progress), progress


def build(
    recipe: Recipe, shards: Shards, data: Path, decisions: Decisions, *, init: bool
) -> tuple[Encoder, torch.optim.Optimizer, RunningAverage | None]:
    """Build the model, its optimizer and the running average of its weights, if any.

    Args:
        init: initialize the embeddings from the text, or load the weights of ``origin.init``; not needed if a
            checkpoint is loaded afterwards.
    """
    torch.manual_seed(recipe.seed)
    model = recipe.model.build(shards.manifest.vocabulary)
    if init and not recipe.origin.has_weights:
        if recipe.word_vectors.weight:
            initialize_embeddings(model, recipe, shards)
        recipe.model.plant(model)
    if init and recipe.origin.init:
        weights, own = starting_weights(recipe, data, shards).state_dict(), model.state_dict()
        if wrong := next((name for name in own if name in weights and own[name].shape != weights[name].shape), ""):
            raise UserError(
                f"The weights '{wrong}' of the model to continue have another size than in the recipe.",
                "Keep the shape of that model.",
            )
        outcome = model.load_state_dict(weights, strict=False)
        if outcome.missing_keys:
            say(f"The model to continue lacks {', '.join(sorted(outcome.missing_keys))}: initialized at random.")
    model = model.to(decisions.device)
    model.gradient_checkpointing = recipe.gradient_checkpointing
    optimizer = recipe.optimizer.build(model)
    for group in optimizer.param_groups:
        group["lr"] *= decisions.rate_factor
    return model, optimizer, RunningAverage(recipe.average, model) if recipe.average.fraction else None


@torch.no_grad()
def initialize_embeddings(model: Encoder, recipe: Recipe, shards: Shards) -> None:
    """Mix word vectors into the random embeddings of a new model, whose norms stay the same on average."""
    config, special = recipe.word_vectors, shards.manifest.special
    vectors = word_vectors(shards.train, model.vocabulary, model.hidden_size, special, config, recipe.seed)
    table, known = model.decoder.weight, torch.from_numpy(vectors.any(axis=1))
    norm = table.square().sum(dim=1).mean().sqrt()
    mixed = math.sqrt(1 - config.weight**2) * table + config.weight * norm * torch.from_numpy(vectors)
    table[known] = mixed[known]


def build_training(
    job: PretrainingJob,
    parts: tuple[Encoder, torch.optim.Optimizer, RunningAverage | None],
    decisions: Decisions,
    world: World,
    clock: Clock,
    progress: checkpoint.Progress,
) -> Training:
    """Build the training state of a run around its model, optimizer and average.

    Args:
        parts: from ``build``.
    """
    recipe, shards = job.recipe, job.shards
    device = torch.device(decisions.device)
    model, optimizer, average = parts
    return Training(
        model=model,
        data_parallel=DataParallel(model, world),
        optimizer=optimizer,
        average=average,
        objective=recipe.objective,
        schedule=recipe.run_schedule(decisions.world_size),
        phases=_phases(recipe, shards, job.data, decisions),
        phase2=replace(recipe.phase2, lr=recipe.phase2.lr * decisions.rate_factor),
        finish=finish_on(recipe, shards),
        ramp=recipe.ramp,
        clock=clock,
        world=world,
        max_grad_norm=recipe.max_grad_norm,
        seed=recipe.seed,
        device=device,
        decisions=decisions,
        validation=heldout_validation(recipe, shards, job.data, device, first=decisions.first_heldout),
        run=job.run,
        journal=None,
        monitors=(),
        time_by_category={use: progress.time_by_category.get(use, 0.0) for use in USES},
        objective_start=recipe.origin.begin,
        prefetch=Prefetch() if device.type == "cuda" else None,
        is_continuation=continuation_table(load_tokenizer(job.data / "tokenizer"))
        if recipe.objective.whole_words
        else None,
        microbatch_facts=_microbatch_facts(recipe, device),
    )


def _microbatch_facts(recipe: Recipe, device: torch.device) -> tuple[Any, ...]:
    """Machine and recipe, as far as the fastest microbatch depends on them."""
    machine = probe.describe(device, 0.0)
    shapes = to_dict(recipe.model), to_dict(recipe.objective), recipe.length, recipe.gradient_checkpointing
    return machine.device, machine.torch, *shapes


def first_progress(
    recipe: Recipe, model: Encoder, optimizer: torch.optim.Optimizer, average: RunningAverage | None, world: World
) -> checkpoint.Progress:
    """Progress at step 0 of a new run, or of a run that branches off another one before its decay."""
    if not recipe.origin.branch:
        return checkpoint.START
    branch = RunFolder(Path(recipe.origin.branch)).branch
    start = checkpoint.broadcast(checkpoint.read_newest(branch)[0] if world.is_first else None, world)
    if start is None:
        raise UserError(
            f"'{recipe.origin.branch}' holds no checkpoint from before its decay.",
            "Name a run that reached its decay, or start a new one.",
        )
    # Without the average of the parent's weights.
    before = checkpoint.load(start, model, optimizer, remedy="Keep the recipe of that run.")
    say(f"Continuing from step {before.step:,} of '{recipe.origin.branch}', at {recipe.origin.begin:.1%} of its run.")
    second = 0.0 if before.second_from is not None and recipe.phase2.enabled else None
    return replace(checkpoint.START, position=before.position, first=before.position, second_from=second)


def _resumed(job: PretrainingJob, progress: checkpoint.Progress, world: World) -> tuple[checkpoint.Progress, float]:
    """Charge the time between the checkpoint and the last heartbeat; return the seconds charged so far as well."""
    run = job.run
    last = last_trace(run.trace) if world.is_first else None
    beat = read_heartbeat(run.heartbeat) if world.is_first else 0.0
    heartbeat = max(progress.elapsed, beat, last.elapsed if last else 0.0)
    started, heartbeat = world.broadcast((run.decisions.exists(), heartbeat))
    if not started:
        return progress, heartbeat
    by_category = {
        **progress.time_by_category,
        "lost": progress.time_by_category.get("lost", 0.0) + heartbeat - progress.elapsed,
    }
    progress = replace(progress, elapsed=heartbeat, resumes=progress.resumes + 1, time_by_category=by_category)
    lost = 0
    if world.is_first:
        # The charge is written before the trace that proves it is cut. It includes the start of this process, which
        # leaves no heartbeat if it is killed before its first step.
        starting = uptime() - job.started
        charged = {**by_category, "start": by_category.get("start", 0.0) + starting}
        checkpoint.charge(run.checkpoints, replace(progress, elapsed=heartbeat + starting, time_by_category=charged))
        for folder in (run.checkpoints, run.best, run.branch, run.late):
            checkpoint.drop_after(folder, progress.step)  # incomplete checkpoints and those of lost steps
        if not checkpoint.any_in(run.best):  # it belonged to a lost step
            progress = replace(progress, best=None)
        lost = cut_back(run, progress.step)
    if world.is_first and last is None and progress.step:
        say(f"Warning: '{run.trace}' is missing, so this run can be neither verified nor recorded.")
    say(f"Resuming at step {progress.step}, {duration(heartbeat)} used so far, {lost} steps lost.")
    return progress, heartbeat


def _phases(recipe: Recipe, shards: Shards, data: Path, decisions: Decisions) -> tuple[Phase, ...]:
    if isinstance(recipe.rows, SentencePairs) and (warning := check_pairs(shards.train)):
        say(warning)
    second = recipe.phase2
    plans = [(sampler(recipe, shards.train, shards, data, recipe.length), recipe.length, decisions.batch)]
    if second.enabled:
        longer = sampler(recipe, shards.train, shards, data, second.length)
        plans.append((longer, second.length, second.batch or decisions.batch))
    finish = finish_on(recipe, shards)
    if recipe.finish.enabled and not finish.enabled:
        say(
            f"The text has fewer than {FEWEST_PASSAGES} passages of at least {FEWEST} tokens, so the run has no "
            "embedding finish. daybreak prepare --document sets where documents end."
        )
    if finish.enabled:
        spans = SpanSampler(
            shards.train,
            finish.length,
            recipe.seed,
            shards.manifest.special,
            shortest=finish.shortest,
            longest=finish.longest,
            views=finish.views,
            ordinary=finish.ordinary,
        )
        plans.append((spans, finish.length, finish.sequences(decisions.batch, recipe.length)))
    built = [
        Phase(
            take=rows.take, view=rows.view, length=length, rows_per_epoch=rows.rows_per_epoch, batch=batch, microbatch=1
        )
        for rows, length, batch in plans
    ]
    # A growing batch keeps the step of the first start, also with another number of processes.
    start = with_microbatch(tuple(built), decisions.microbatch or PROBE_STEP_ROWS)
    return with_batch_multiple(start, decisions.world_size)


def finish_on(recipe: Recipe, shards: Shards) -> Finish:
    """Return the recipe's embedding finish, or none if the text has too few passages to compare spans.

    A run that consists only of a finish keeps it, and is refused on such text.
    """
    finish = recipe.finish
    if not finish.enabled or finish.start == 0 or passages(shards.train) >= FEWEST_PASSAGES:
        return finish
    return Finish()


def sampler(recipe: Recipe, stream: TokenStream, shards: Shards, data: Path, length: int) -> Sampler:

    def token_id(token: str) -> int | None:
        return load_tokenizer(data / "tokenizer").token_to_id(token)  # only one order of sequences needs it

    return recipe.rows.build(stream, length, recipe.seed, shards.manifest.special, token_ids=token_id)


def sample_text(shards: Shards, data: Path) -> str:
    """Decode SAMPLE_TOKENS held-out tokens, for the tokenizer round trip."""
    ids = shards.heldout.read(0, min(SAMPLE_TOKENS, len(shards.heldout)))
    return load_tokenizer(data / "tokenizer").decode([int(i) for i in ids])


def _heldout_rows(sampler: Sampler, count: int, *, first: bool) -> Batch:
    size = sampler.rows_per_epoch
    return sampler.at(np.arange(min(count, size)) if first else evenly_spaced(count, size))


def heldout_validation(
    recipe: Recipe, shards: Shards, data: Path, device: torch.device, *, first: bool = False
) -> Validation:
    """Return the held-out evaluation: the same positions for all recipes, and OWN_ROWS of the recipe's own kind.

    Args:
        first: take the first held-out sequences, as ``Decisions.first_heldout``, instead of evenly spread ones.
    """
    trained = recipe.model.longest or (recipe.phase2.length if recipe.phase2.enabled else 0)
    length = max(recipe.length, min(VALIDATION_LENGTH, trained))
    if len(shards.heldout) < length - 1:
        raise UserError(
            f"The corpus is too small: the {len(shards.heldout):,} tokens that are held out of it do not fill one "
            f"sequence of {length}.",
            "Give more text, of which about a fiftieth is held out, or a shorter --length.",
        )
    heldout = StreamRows().build(shards.heldout, length, recipe.seed, shards.manifest.special)
    own = None
    if isinstance(recipe.objective, Masked):
        own_sampler = sampler(recipe, shards.heldout, shards, data, recipe.length)
        batch = _heldout_rows(own_sampler, OWN_ROWS, first=first)
        if recipe.objective.whole_words:
            table: np.ndarray = continuation_table(load_tokenizer(data / "tokenizer"))
            batch = replace(batch, is_continuation=table[batch.input_ids])
        own = RecipeHeldOut(recipe.objective, batch.to(device))
    return Validation(_heldout_rows(heldout, ROWS, first=first), shards.unigram_counts, device, own)


def starting_weights(recipe: Recipe, data: Path, shards: Shards) -> Encoder:
    """Load the model of ``origin.init`` and convert it to the vocabulary of the data if that differs."""
    parent = load_pretrained(Path(recipe.origin.init))
    old, new = load_tokenizer(parent.tokenizer), load_tokenizer(data / "tokenizer")
    same = old.get_vocab() == new.get_vocab()
    if same and parent.model.vocabulary == shards.manifest.vocabulary:
        return parent.model
    if not same:
        say(f"The data have another vocabulary: its embeddings are initialized from those of '{recipe.origin.init}'.")
    return with_vocabulary(
        parent.model, parent.shape, old=old, new=new, old_special=parent.special, new_special=shards.manifest.special
    )


def general_validation(
    recipe: Recipe, shards: Shards, device: torch.device, *, first: bool = False
) -> Validation | None:
    """Return the evaluation on general text, which measures what a continued model forgets; None without such text."""
    if not recipe.origin.general:
        return None
    general = open_shards(Path(recipe.origin.general))
    if general.manifest.tokenizer != shards.manifest.tokenizer:
        raise UserError(
            f"The general text in '{recipe.origin.general}' was prepared with another tokenizer.",
            "Prepare it with --tokenizer-from DATA/tokenizer.",
        )
    rows = StreamRows().build(general.heldout, recipe.length, recipe.seed, general.manifest.special)
    return Validation(_heldout_rows(rows, ROWS, first=first), general.unigram_counts, device)


def heldout_losses(job: PretrainingJob, training: Training) -> dict[str, float]:
    """Held-out losses on the run's own text and, if given, on general text."""
    first = training.decisions.first_heldout
    general = general_validation(job.recipe, job.shards, training.device, first=first)
    heldout_sets = {"own": training.validation, **({"general": general} if general else {})}
    return {name: each.evaluate(training.model).loss for name, each in heldout_sets.items()}
