"""Verb: shards -> checkpoints -> exported model, within a budget that counts everything from the process' start."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path, PurePath

import torch

from daybreak.assembly import Order, assemble, general_validation
from daybreak.base import world as worlds
from daybreak.base.encoder import Encoder
from daybreak.base.files import make_folder, read_json, write_json
from daybreak.base.records import Decisions, Forgetting, Summary, ValidationRecord
from daybreak.base.run_folder import RunFolder
from daybreak.base.terminal import duration, say, working
from daybreak.base.world import World
from daybreak.data.shards import open_shards
from daybreak.data.tokenizer import load_tokenizer
from daybreak.evaluation.fill_mask import fill_mask
from daybreak.packaging.card import write_card
from daybreak.packaging.hugging_face import write_model_folder
from daybreak.packaging.parity import check_parity, verdict
from daybreak.recipe import Recipe
from daybreak.run_start import check_folder, first_decisions, is_other, obey, write_start
from daybreak.training import calibration, checkpoint
from daybreak.training.clock import Budget, BudgetClock, Clock, Tick
from daybreak.training.journal import Journal
from daybreak.training.loop import fit, save, validate
from daybreak.training.monitors import Live, Plateau
from daybreak.training.step import Training

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
    budget = Budget.parse(recipe.budget)
    world = worlds.start()
    try:
        calibration.refuse_few_steps(budget, recipe.global_batch(world.size) * recipe.length)
        order = Order(recipe=recipe, shards=shards, data=data, run=run, budget=budget, replay=replay, started=started)
        return _pretrain(order, world)
    finally:
        worlds.stop(world)


def _pretrain(order: Order, world: World) -> Summary:
    run, replay = order.run, order.replay
    fresh, created = world.share((not run.decisions.exists(), not run.path.exists()))
    make_folder(run.path)
    try:
        source = RunFolder(replay) if replay else run
        measuring = fresh and not replay
        decisions = first_decisions(order.recipe, world) if measuring else read_json(source.decisions, Decisions)
        decisions = world.share(decisions)
        obey(decisions, world)
        if fresh and world.is_first:
            shutil.rmtree(run.checkpoints, ignore_errors=True)  # of a start that was killed before it became a run
        training, progress, clock = assemble(order, decisions, world)
        saved_before = training.spent["checkpoint"]
        if measuring:
            assert isinstance(clock, BudgetClock)
            training, decisions = _measure(order, training, progress, decisions, clock)
        training = dataclasses.replace(
            training,
            precision=getattr(torch, decisions.precision),
            validation_rows=decisions.validation_rows,
            validation_marks=decisions.validation_marks,
        )
        if fresh and world.is_first:
            write_start(run, order.recipe, decisions, order.shards, training.device, order.started)
    except BaseException:
        if fresh and world.is_first:
            shutil.rmtree(run.path if created else run.checkpoints, ignore_errors=True)
        raise
    saving = training.spent["checkpoint"] - saved_before
    training.spent["start"] += max(0.0, time.monotonic() - order.started - saving)
    progress = _train(training, progress, run, order.budget)
    # Every rank holds the same weights; the first one speaks for all.
    summary = _finish(order, training, progress, clock, decisions) if world.is_first else None
    return world.share(summary)


def _measure(
    order: Order, training: Training, start: checkpoint.Progress, decisions: Decisions, clock: BudgetClock
) -> tuple[Training, Decisions]:
    """Complete the decisions with what only the built model can tell."""
    world, recipe = training.world, order.recipe
    if decisions.microbatch == 0:
        share = decisions.batch // world.size
        rows = world.share(calibration.fastest_microbatch(training, start, share))
        decisions = dataclasses.replace(decisions, microbatch=rows)
        training = dataclasses.replace(training, stretches=calibration.with_microbatch(training.stretches, rows))
        say(f"Microbatch: {rows} rows at a time are the fastest here.")
    costs = calibration.measure_costs(training, start, recipe.precision, decisions.matmul_gflops)
    final = training.validation.whole_seconds(costs.row)
    decisions = calibration.decide(decisions, order.budget, costs, training.validation.rows, final, clock.elapsed())
    if recipe.origin.init:
        decisions = dataclasses.replace(decisions, before=_losses(order, training, training.model))
    decisions = world.share(decisions)
    clock.reserve = decisions.reserve_seconds
    return training, decisions


def _losses(order: Order, training: Training, model: Encoder) -> dict[str, float]:
    """Held-out losses of a model on the run's own text and on general text, where that is given."""
    general = general_validation(order.recipe, order.shards, training.device)
    yardsticks = {"own": training.validation, **({"general": general} if general else {})}
    model.eval()
    return {
        name: yardstick.measure(model, rows=yardstick.rows, step=0, tokens=0, tick=Tick(0.0, 0.0), final=False).loss
        for name, yardstick in yardsticks.items()
    }


def _train(training: Training, progress: checkpoint.Progress, run: RunFolder, budget: Budget) -> checkpoint.Progress:
    """Run the loop with its journal and its screen."""
    if not training.world.is_first:
        return fit(training, progress)
    journal = Journal(run)
    seconds = budget.amount - getattr(training.clock, "reserve", 0.0) if budget.unit == "seconds" else None
    try:
        with working("Training") as work:
            # What a model reaches that knows word frequencies and copies the answers that it is given.
            plateau = training.validation.unigram_loss * (1 - training.objective.given)
            monitors = (Live(work, seconds, plateau), Plateau(plateau))
            done = fit(dataclasses.replace(training, journal=journal, monitors=monitors), progress)
    finally:
        journal.close()
    return done


def _finish(
    order: Order, training: Training, progress: checkpoint.Progress, clock: Clock, decisions: Decisions
) -> Summary:
    """Judge the model on all held-out rows and export it (inside the budget); then gate, examples, card (outside)."""
    recipe, shards, run = order.recipe, order.shards, order.run
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
        tokenizer=order.data / "tokenizer",
        length=max(recipe.longest_row, training.validation.length),
        vocabulary=shards.manifest.vocabulary,
        special=shards.manifest.special,
    )
    training.spent["export"] += time.monotonic() - begun
    elapsed = clock.elapsed()
    summary = _summarise(order, training, progress, final, elapsed)
    say(_headline(summary))
    _warn_of_communication(summary, training.world)
    if order.replay:
        say(_replay_verdict(RunFolder(order.replay), run))
    parity = check_parity(
        run.model,
        model=training.model,
        shape=recipe.model,
        length=max(recipe.longest_row, training.validation.length),
        validation=training.validation,
        accuracy=final.accuracy,
        text=_sample_text(order),
    )
    say(verdict(parity))
    forgetting = _forgetting(order, training, decisions, final)
    summary = dataclasses.replace(summary, parity=parity, parity_seconds=parity.seconds, forgetting=forgetting)
    tokenizer = load_tokenizer(order.data / "tokenizer")
    stream = shards.heldout.read(0, min(EXAMPLE_TOKENS, len(shards.heldout)))
    special, longest = shards.manifest.special, recipe.model.longest
    write_json(run.examples, fill_mask(training.model, tokenizer, stream, special=special, longest=longest))
    write_json(run.summary, summary)
    write_card(run, [])
    shutil.rmtree(run.checkpoints, ignore_errors=True)
    return summary


def _forgetting(order: Order, training: Training, decisions: Decisions, final: ValidationRecord) -> Forgetting | None:
    """What continuing won on its own text, and what it cost on general text."""
    if not order.recipe.origin.init:
        return None
    after, before = _losses(order, training, training.model), decisions.before
    said = f"Continued from a loss of {before['own']:.3f} to {final.loss:.3f} on its own text"
    if "general" in after:
        said += f", from {before['general']:.3f} to {after['general']:.3f} on general text"
    say(said + ".")
    return Forgetting(
        own_before=before["own"],
        own_after=after["own"],
        general_before=before.get("general"),
        general_after=after.get("general"),
    )


def _warn_of_communication(summary: Summary, world: World) -> None:
    """Several devices may be slower than one (BERT-GPU's issue 3): say so, with the share that was measured."""
    stepping = summary.spent["train"] + summary.spent["communicate"]
    share = summary.spent["communicate"] / max(stepping, 1e-9)
    if world.size > 1:
        say(
            f"{summary.steps_per_second:.2f} optimizer steps and {summary.rows_per_second:.1f} samples a second over "
            f"{world.size} devices; {share:.0%} of it communication."
        )
    if share > (world.size - 1) / world.size > 0:
        say(f"{world.size} devices were slower than one would have been: use fewer, or give each a larger batch.")


def _summarise(
    order: Order, training: Training, progress: checkpoint.Progress, final: ValidationRecord, elapsed: float
) -> Summary:
    stepping = max(training.spent["train"] + training.spent["communicate"], 1e-9)
    return Summary(
        budget=order.recipe.budget,
        elapsed=round(elapsed, 3),
        wall=round(time.time() - read_json(order.run.environment)["started"], 3),
        spent={use: round(seconds, 3) for use, seconds in training.spent.items()},
        steps=progress.step,
        tokens=progress.tokens,
        rows=progress.rows,
        epochs=round(training.epochs(progress), 4),
        parameters=training.model.parameter_count(),
        resumes=progress.resumes,
        tokens_per_second=round(progress.tokens / stepping, 1),
        steps_per_second=round(progress.step / stepping, 4),
        rows_per_second=round(progress.rows / stepping, 2),
        validation=final,
        parent=order.recipe.origin.parent or PurePath(order.recipe.origin.branch).name,
    )


def _sample_text(order: Order) -> str:
    """A few dozen held-out tokens as text, for the tokenizer round trip."""
    heldout = order.shards.heldout
    ids = [int(i) for i in heldout.read(0, min(40, len(heldout)))]
    return load_tokenizer(order.data / "tokenizer").decode(ids)


def _headline(summary: Summary) -> str:
    seen = summary.validation
    gap = seen.unigram_loss - seen.loss
    return (
        f"Trained {summary.steps:,} steps, {summary.tokens / 1e6:.2f}M tokens in {duration(summary.elapsed)} "
        f"({(summary.spent['train'] + summary.spent['communicate']) / max(summary.elapsed, 1e-9):.0%} of it training, "
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
