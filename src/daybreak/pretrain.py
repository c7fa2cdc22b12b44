"""Verb: shards -> checkpoints -> exported model, within a budget that counts everything from the process' start."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path

import torch

from daybreak.base import world as worlds
from daybreak.base.files import make_folder, read_json, write_json
from daybreak.base.records import Decisions, Summary, ValidationRecord
from daybreak.base.run_folder import RunFolder
from daybreak.base.terminal import duration, say, working
from daybreak.base.world import World
from daybreak.data.sampler import RowSampler
from daybreak.data.shards import Shards, open_shards
from daybreak.data.tokenizer import load_tokenizer
from daybreak.evaluation.fill_mask import fill_mask
from daybreak.packaging.card import write_card
from daybreak.packaging.hugging_face import write_model_folder
from daybreak.packaging.parity import check_parity, verdict
from daybreak.recipe import Recipe
from daybreak.run_start import check_folder, first_decisions, is_other, obey, write_start
from daybreak.training import calibration, checkpoint
from daybreak.training.clock import Budget, BudgetClock, Clock, ReplayClock, Tick, read_trace
from daybreak.training.journal import Journal, cut_back
from daybreak.training.loop import Training, fit, save, validate
from daybreak.training.monitors import Live, Plateau
from daybreak.training.validation import ROWS, Validation

EXAMPLE_TOKENS = 200_000
"""Held-out tokens among which fill-mask sentences are looked for."""


def pretrain(
    recipe: Recipe, *, data: Path, out: Path, replay: Path | None = None, started: float | None = None
) -> Summary:
    """Train ``recipe`` on prepared ``data`` into the run folder ``out``; the same call again resumes it.

    Args:
        data: folder made by ``prepare``.
        replay: a finished or stopped run whose recorded trace is run again, step by step; ``recipe`` must be its own.
        started: ``time.monotonic()`` from which the budget counts; now when None.

    Returns:
        The summary that is also written to ``out``; at once when the run is finished already.

    Raises:
        UserError: what the user can mend, such as another recipe's folder or a budget below 20 steps.
        Interrupted: a signal came; a checkpoint was saved and the same call goes on from it.
    """
    started = time.monotonic() if started is None else started
    recipe.check()
    run = RunFolder(out)
    if run.summary.exists() and not is_other(run, recipe):
        say(f"The run in '{out}' is finished already; --fresh starts it again.")
        return read_json(run.summary, Summary)
    shards = open_shards(data)
    check_folder(run, recipe, shards, replay)
    world = worlds.start()
    try:
        return _pretrain(recipe, shards, data, run, replay, started, world)
    finally:
        worlds.stop(world)


def _pretrain(
    recipe: Recipe, shards: Shards, data: Path, run: RunFolder, replay: Path | None, started: float, world: World
) -> Summary:
    budget = Budget.parse(recipe.budget)
    calibration.refuse_few_steps(budget, recipe.batch * recipe.length)
    fresh, created = world.share((not run.decisions.exists(), not run.path.exists()))
    make_folder(run.path)
    try:
        source = RunFolder(replay) if replay else run
        decisions = first_decisions(recipe, world) if fresh and not replay else read_json(source.decisions, Decisions)
        decisions = world.share(decisions)
        obey(decisions, world)
        if fresh and world.is_first:
            shutil.rmtree(run.checkpoints, ignore_errors=True)  # of a start that was killed before it became a run
        training, progress, clock = _assemble(recipe, shards, run, decisions, budget, replay, started, world)
        saved_before = training.spent["checkpoint"]
        if fresh and not replay:
            assert isinstance(clock, BudgetClock)
            costs = calibration.measure_costs(training, progress, recipe.precision, decisions.matmul_gflops)
            decided = calibration.decide(decisions, budget, costs, training.validation.rows, clock.elapsed())
            decisions = world.share(decided)
            clock.reserve = decisions.reserve_seconds
        training = dataclasses.replace(
            training,
            precision=getattr(torch, decisions.precision),
            validation_rows=decisions.validation_rows,
            validation_marks=decisions.validation_marks,
        )
        if fresh and world.is_first:
            write_start(run, recipe, decisions, shards, training.device, started)
    except BaseException:
        if fresh and world.is_first:
            shutil.rmtree(run.path if created else run.checkpoints, ignore_errors=True)
        raise
    saving = training.spent["checkpoint"] - saved_before
    training.spent["start"] += max(0.0, time.monotonic() - started - saving)
    progress = _train(training, progress, run, budget)
    # Every rank holds the same weights; the first one speaks for all.
    summary = _finish(recipe, shards, data, run, training, progress, clock, replay) if world.is_first else None
    return world.share(summary)


def _assemble(
    recipe: Recipe,
    shards: Shards,
    run: RunFolder,
    decisions: Decisions,
    budget: Budget,
    replay: Path | None,
    started: float,
    world: World,
) -> tuple[Training, checkpoint.Progress, Clock]:
    """Build every part from the recipe, and bring it to where the newest checkpoint stands."""
    device = torch.device(decisions.device)
    torch.manual_seed(recipe.seed)
    model = recipe.model.build(shards.manifest.vocabulary).to(device)
    optimizer = recipe.optimizer.build(model)
    sampler = RowSampler(shards.train, recipe.length, recipe.seed)
    found, torn = checkpoint.load_newest(run.checkpoints, model, optimizer)
    for name in torn:
        say(f"Passing over a torn checkpoint: {name}")
    progress = found or checkpoint.START
    trace = read_trace(run.trace)
    heartbeat = max([progress.elapsed, *(record.elapsed for record in trace[-1:])])
    uses = ("start", "train", "validate", "checkpoint", "export", "lost")
    spent = {use: progress.spent.get(use, 0.0) for use in uses}
    if trace or progress.step:
        spent["lost"] += heartbeat - progress.elapsed
        resumes = progress.resumes + 1
        progress = dataclasses.replace(progress, elapsed=heartbeat, resumes=resumes, spent=dict(spent))
        lost = _cut_back(run, progress) if world.is_first else 0
        say(f"Resuming at step {progress.step}, {duration(heartbeat)} charged so far, {lost} steps lost.")
    clock: Clock
    if replay:
        clock = ReplayClock(read_trace(RunFolder(replay).trace))
    else:
        clock = BudgetClock(budget, world, started=started, already=heartbeat, reserve=decisions.reserve_seconds)
    heldout = RowSampler(shards.heldout, recipe.length, recipe.seed)
    validation = Validation(heldout.in_order(min(ROWS, heldout.rows_per_epoch)), shards.unigram_counts, device)
    training = Training(
        model=model,
        optimizer=optimizer,
        objective=recipe.objective,
        schedule=recipe.schedule,
        take=sampler.take,
        clock=clock,
        world=world,
        batch=recipe.batch,
        microbatch=decisions.microbatch,
        clip=recipe.clip,
        seed=recipe.seed,
        device=device,
        precision=getattr(torch, decisions.precision),
        validation=validation,
        validation_rows=decisions.validation_rows,
        validation_marks=decisions.validation_marks,
        checkpoints=run.checkpoints,
        journal=None,
        monitors=(),
        spent=spent,
    )
    return training, progress, clock


def _cut_back(run: RunFolder, progress: checkpoint.Progress) -> int:
    """Charge what was lost, durably, and then cut the trace that proves it; return the number of steps lost."""
    checkpoint.charge(run.checkpoints, progress)
    return cut_back(run, progress.step)


def _train(training: Training, progress: checkpoint.Progress, run: RunFolder, budget: Budget) -> checkpoint.Progress:
    """Run the loop with its journal and its screen."""
    if not training.world.is_first:
        return fit(training, progress)
    journal = Journal(run)
    seconds = budget.amount - getattr(training.clock, "reserve", 0.0) if budget.unit == "seconds" else None
    try:
        with working("Training") as work:
            unigram = training.validation.unigram_loss
            monitors = (Live(work, seconds, unigram), Plateau(unigram))
            done = fit(dataclasses.replace(training, journal=journal, monitors=monitors), progress)
    finally:
        journal.close()
    return done


def _finish(
    recipe: Recipe,
    shards: Shards,
    data: Path,
    run: RunFolder,
    training: Training,
    progress: checkpoint.Progress,
    clock: Clock,
    replay: Path | None,
) -> Summary:
    """Judge the model on all held-out rows and export it (inside the budget); then gate, examples, card (outside)."""
    save(training, progress)  # a kill between here and the summary must not cost the last steps
    journal = Journal(run)
    training = dataclasses.replace(training, journal=journal)
    tick = Tick(clock.elapsed(), 1.0)
    final = validate(training, progress, tick, rows=training.validation.rows, final=True)
    journal.close()
    begun = time.monotonic()
    write_model_folder(
        run.model,
        model=training.model,
        shape=recipe.model,
        tokenizer=data / "tokenizer",
        length=recipe.length,
        vocabulary=shards.manifest.vocabulary,
    )
    training.spent["export"] += time.monotonic() - begun
    elapsed = clock.elapsed()
    summary = _summarise(recipe, shards, run, training, progress, final, elapsed)
    say(_headline(summary))
    if replay:
        say(_replay_verdict(RunFolder(replay), run))
    parity = check_parity(
        run.model,
        model=training.model,
        validation=training.validation,
        accuracy=final.accuracy,
        text=_sample_text(shards, data),
    )
    say(verdict(parity))
    summary = dataclasses.replace(summary, parity=parity, parity_seconds=parity.seconds)
    tokenizer = load_tokenizer(data / "tokenizer")
    stream = shards.heldout.read(0, min(EXAMPLE_TOKENS, len(shards.heldout)))
    write_json(run.examples, fill_mask(training.model, tokenizer, stream))
    write_json(run.summary, summary)
    write_card(run, [])
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    return summary


def _summarise(
    recipe: Recipe,
    shards: Shards,
    run: RunFolder,
    training: Training,
    progress: checkpoint.Progress,
    final: ValidationRecord,
    elapsed: float,
) -> Summary:
    return Summary(
        budget=recipe.budget,
        elapsed=round(elapsed, 3),
        wall=round(time.time() - read_json(run.environment)["started"], 3),
        spent={use: round(seconds, 3) for use, seconds in training.spent.items()},
        steps=progress.step,
        tokens=progress.tokens,
        epochs=round(progress.position * (recipe.length - 1) / max(1, len(shards.train)), 4),
        parameters=training.model.parameter_count(),
        resumes=progress.resumes,
        tokens_per_second=round(progress.tokens / max(training.spent["train"], 1e-9), 1),
        validation=final,
    )


def _sample_text(shards: Shards, data: Path) -> str:
    """A few dozen held-out tokens as text, for the tokenizer round trip."""
    ids = [int(i) for i in shards.heldout.read(0, min(40, len(shards.heldout)))]
    return load_tokenizer(data / "tokenizer").decode(ids)


def _headline(summary: Summary) -> str:
    seen = summary.validation
    gap = seen.unigram_loss - seen.loss
    return (
        f"Trained {summary.steps:,} steps, {summary.tokens / 1e6:.2f}M tokens in {duration(summary.elapsed)} "
        f"({summary.spent['train'] / max(summary.elapsed, 1e-9):.0%} of it training, "
        f"{summary.tokens_per_second / 1000:.1f}k tok/s). Held-out loss {seen.loss:.3f}, "
        f"{abs(gap):.2f} nats {'better' if gap > 0 else 'worse'} than word frequencies; "
        f"masked accuracy {seen.accuracy:.1%}, {seen.distinct:,} different predictions."
    )


def _replay_verdict(source: RunFolder, run: RunFolder) -> str:
    """Compare exports byte by byte."""
    theirs, ours = source.model / "model.safetensors", run.model / "model.safetensors"
    if not theirs.exists():
        return f"Replayed; '{source.path}' has no exported model to compare with."
    if theirs.read_bytes() == ours.read_bytes():
        return f"Replayed: the weights equal those of '{source.path}' bit for bit."
    return f"Replayed: the weights DIFFER from those of '{source.path}' (another machine, torch or thread count?)."
