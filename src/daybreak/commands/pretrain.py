"""Command ``pretrain``: train a model on prepared data and export it, within a budget that starts with the process."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from tyro.conf import arg

from daybreak.commands.options import (
    InitOptions,
    RunOutOptions,
    default_run_folder,
    listed,
    load_chosen_recipe,
    parse,
    refuse_idle_settings,
    split_recipe,
)
from daybreak.core import world as worlds
from daybreak.core.errors import UserError
from daybreak.core.files import read_json
from daybreak.core.formatting import check_price
from daybreak.core.locks import PATIENCE, alone_in
from daybreak.core.process import process_started, uptime
from daybreak.core.run_folder import RunFolder
from daybreak.core.serialization import fingerprint, to_dict
from daybreak.core.terminal import say, working
from daybreak.core.world import World
from daybreak.data.sequences.shards import open_shards
from daybreak.data.sequences.span_pairs import check_passages, passages
from daybreak.forecasting.difficulty import difficulty
from daybreak.forecasting.law import RunSpec, inner_parameters, shipped_law
from daybreak.forecasting.live import ForecastMonitor
from daybreak.pretraining.flops import meta_model
from daybreak.pretraining.hardware_choices import (
    check_batch,
    first_decisions,
    has_copy_heads,
    resume,
    use_device,
    why_no_forecast,
    with_measurements,
)
from daybreak.pretraining.run_end import exported, finish
from daybreak.pretraining.run_start import (
    check_folder,
    check_tokenizer,
    has_steps,
    other_tokenizer,
    refuse_other_tokenizer,
    write_start,
)
from daybreak.pretraining.setup import PretrainingJob, general_validation, heldout_validation, setup_training
from daybreak.pretraining.starting_points import source_folders
from daybreak.recipe import Recipe, load_recipe, resolved, smaller_than
from daybreak.schemas.forecast import ForecastLog
from daybreak.schemas.run import Decisions, Summary
from daybreak.training import calibration, checkpoint
from daybreak.training.calibration import pace_of
from daybreak.training.hardware.probe import choose_device
from daybreak.training.loop import fit, observe_machine
from daybreak.training.monitoring.disk import check_room
from daybreak.training.monitoring.heartbeat import Heartbeat
from daybreak.training.monitoring.journal import Journal
from daybreak.training.monitoring.live_page import LivePage
from daybreak.training.monitoring.monitors import Live, Monitor, Plateau
from daybreak.training.monitoring.telemetry import Telemetry
from daybreak.training.monitoring.trackers import Remote, check_trackers
from daybreak.training.monitoring.watchdog import Watchdog
from daybreak.training.step import Training


@dataclass(frozen=True, kw_only=True)
class Watching:
    """How a run is observed; no option changes the training."""

    track: tuple[str, ...] = ()
    """Also send metrics to wandb, tensorboard or trackio, which must be installed; separate names with spaces."""
    price: float | None = None
    """Price of an hour of this machine, in any currency; the report then shows the cost of the run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "track", tuple(map(str, listed(self.track))))  # one name alone is not its letters


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(InitOptions, RunOutOptions):
    recipe: Annotated[Recipe, arg(name="")]
    data: Path
    """Folder made by daybreak prepare."""
    general: str = ""
    """With --init: prepared general text, to measure how much of it the model forgets."""
    from_: Annotated[Path | None, arg(name="from")] = None
    """Continue this run from its last checkpoint before the learning rate decay; needs --extend."""
    extend: str = ""
    """Budget of the continuation: 8h, 2e9tok, 10000steps."""
    fill_memory: bool = False
    """Use the largest microbatch that fits into the memory instead of the fastest one."""
    accept_tokenizer: bool = False
    """Allow data whose tokenizer differs from that of a paper's recipe."""
    recipe_file: Annotated[str, arg(name="recipe")] = ""
    """Python file with your own classes, if the recipe uses any. RECIPE chooses the recipe."""
    watching: Annotated[Watching, arg(name="")] = Watching()


def main(arguments: Sequence[str]) -> None:
    started = process_started()
    options = parse_options(arguments)
    pretrain(
        options.recipe,
        data=options.data,
        out=options.out or default_run_folder(options.recipe.name),
        overwrite=options.overwrite,
        fill_memory=options.fill_memory,
        accept_tokenizer=options.accept_tokenizer,
        watching=options.watching,
        started=started,
    )


def parse_options(arguments: Sequence[str]) -> PretrainOptions:
    """Parse the arguments of ``pretrain``, which are also those of a variant of ``study``."""
    name, rest = split_recipe("pretrain", "--data", arguments)
    recipe = load_chosen_recipe("pretrain", name, rest)
    options = parse(PretrainOptions, "pretrain", rest, PretrainOptions(recipe=recipe, data=tyro.MISSING))
    refuse_idle_settings(recipe, options.recipe, rest)
    return options


def pretrain(
    recipe: Recipe | Path | str,
    *,
    data: Path | str,
    out: Path | str,
    overwrite: bool = False,
    fill_memory: bool = False,
    accept_tokenizer: bool = False,
    watching: Watching = Watching(),
    started: float | None = None,
) -> Summary | None:
    """Train ``recipe`` on prepared ``data`` into the run folder ``out``; the same call again resumes it.

    Args:
        recipe: a recipe, or what ``load_recipe`` reads one from, such as its name.
        overwrite: delete ``out`` first, after the arguments are checked, but not at an automatic restart by torchrun.
        fill_memory: use the largest microbatch that fits into the memory instead of the fastest one.
        accept_tokenizer: train a recipe of a paper although the data have another tokenizer than it trains.
        watching: trackers to report to, and the price of an hour.
        started: ``daybreak.core.process.uptime()`` at which the budget starts; now when None.

    Returns:
        The summary that is also written to ``out``; immediately if the run is finished. None on all processes of a run
        except the first.

    Raises:
        UserError: the arguments cannot be used: ``out`` belongs to another recipe or to a running process, or the
            budget is below 20 steps, for example.
        Interrupted: a signal was received; a checkpoint is saved and the same call resumes from it.
    """
    data, out = Path(data), Path(out)
    started = uptime() if started is None else started
    recipe = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    recipe.check()
    if not isinstance(watching, Watching):
        raise UserError(f"The watching {watching!r} is not one.", 'Pass Watching(track=("tensorboard",)), for example.')
    recipe.refuse_without_origin()
    check_trackers(watching.track)
    check_price(watching.price)
    run = RunFolder(out)
    shards = open_shards(data)
    job = PretrainingJob(recipe=recipe, shards=shards, data=data, run=run, started=started, fill_memory=fill_memory)
    if not accept_tokenizer:
        check_tokenizer(recipe, shards.manifest, resumed=run.recipe.exists() and not overwrite)
    if not overwrite:
        check_folder(run, recipe, shards)
    world = worlds.start()
    with ExitStack() as alive:  # the heartbeat lasts until the processes have disconnected, which may take seconds
        try:
            _refuse_differences(job, world)
            if overwrite:
                _delete(job, world)
                check_folder(run, recipe, shards)
            finished, created = world.broadcast(run.summary.exists()), False
            if not finished:
                step_tokens = recipe.global_batch(world.size) * recipe.length
                calibration.refuse_few_steps(job.budget, step_tokens)
                if recipe.origin.general:
                    open_shards(Path(recipe.origin.general))  # a resumed run needs it only after its last step
                created = _hold(run, world, alive)
                check_folder(run, recipe, shards)  # again: another process may have changed it since
                finished = world.broadcast(run.summary.exists())
            if finished:
                say(f"The run in '{out}' is finished; --overwrite starts it again.")
                return read_json(run.summary, Summary) if world.is_first else None
            return _pretrain(job, world, watching, alive, created)
        finally:
            worlds.stop(world)


def _refuse_differences(job: PretrainingJob, world: World) -> None:
    """Raise UserError on every process if the options or the data of one differ from those of the first process."""
    recipe, manifest = to_dict(job.recipe), job.shards.manifest
    del recipe["tokenizer"], recipe["origin"]  # they hold paths, which may differ between hosts
    own = fingerprint([recipe, manifest.tokenizer, manifest.train, manifest.heldout])
    if world.any(own != world.broadcast(own)):
        raise UserError(
            "The processes of this run have different options or different data.",
            "Give the same command on every host, and copy the folder of --data from one host to the others.",
        )


def _delete(job: PretrainingJob, world: World) -> None:
    """Delete the run folder, unless torchrun started one of the processes again after a crash."""
    # torchrun counts restarts on each host: on those whose processes did not fail, it is the first start.
    if world.any(worlds.is_restart()):
        say("torchrun started this process again, so --overwrite is ignored and the run continues.")
        return
    _refuse_unusable(job, world)
    job.run.delete([job.data, *source_folders(job.recipe)])
    world.barrier()  # so that none deletes what another one begins


def _refuse_unusable(job: PretrainingJob, world: World) -> None:
    """Raise UserError where a new run would before its first step, as far as it needs no measurement."""
    recipe, shards = job.recipe, job.shards
    choose_device()
    check_batch(recipe, world)
    if recipe.finish.enabled and recipe.finish.start == 0:
        check_passages(passages(shards.train))
    meta_model(recipe, shards.manifest.vocabulary)
    calibration.refuse_few_steps(job.budget, recipe.global_batch(world.size) * recipe.length)
    heldout_validation(recipe, shards, job.data, torch.device("cpu"))
    general_validation(recipe, shards, torch.device("cpu"))
    if recipe.origin.branch:
        refuse_other_tokenizer(RunFolder(Path(recipe.origin.branch)), shards)


def _hold(run: RunFolder, world: World, alive: ExitStack) -> bool:
    """Lock the run folder for the first process until ``alive`` closes; return whether the folder is new.

    UserError is raised on every process if another command holds the folder or it cannot be written.
    """
    created = not run.path.exists()
    refused: UserError | None = None
    if world.is_first:
        # The other processes wait for the result, at most as long as a message may take.
        patience = PATIENCE if world.size == 1 else min(PATIENCE, worlds.timeout().total_seconds() / 2)
        try:
            alive.enter_context(alone_in(run.path, patience))
        except UserError as error:
            refused = error
    created, refused = world.broadcast((created, refused))
    if refused:
        raise refused
    return created


def _pretrain(job: PretrainingJob, world: World, watching: Watching, alive: ExitStack, created: bool) -> Summary | None:
    run = job.run
    fresh = world.broadcast(not run.decisions.exists())
    if world.any(fresh and world.is_first and has_steps(run)):
        raise UserError(
            f"'{run.path}' holds checkpoints but not its decisions.json.",
            "Restore that file, start again with --overwrite, or choose another --out.",
        )
    try:
        if world.any(run.decisions.exists()) and fresh:
            raise UserError(
                f"The run folder '{run.path}' exists on another host, but not on the host of rank 0.",
                "Copy the folder to the host of rank 0, or give the rank 0 to the host that has it.",
            )
        kept = read_json(run.decisions, Decisions) if world.is_first and not fresh else None
        decisions = world.broadcast(first_decisions(job.recipe, world) if fresh else kept)
        use_device(decisions)
        if fresh and world.is_first:
            shutil.rmtree(run.checkpoints, ignore_errors=True)  # left by a start that was killed before its first step
            if other := other_tokenizer(job.recipe, job.shards.manifest):
                say(f"{other} daybreak prepare --recipe {job.recipe.name} trains that tokenizer.")
        with working("Measuring step times" if fresh else "Loading the checkpoint"):
            training, progress = setup_training(job, decisions, world)
            if world.is_first and not fresh:  # before compilation, which may take minutes
                alive.enter_context(closing(Heartbeat(run.heartbeat, training.clock.elapsed)))
            if world.is_first:
                size = checkpoint.bytes_of(training.model, training.average)
                weights, seconds = 4 * training.model.parameter_count(), job.budget.seconds or 0.0
                check_room(run.path, checkpoint_bytes=size, model_bytes=weights, seconds=seconds)
            charged = dict(training.time_by_category)
            ended = world.broadcast(exported(run, progress) is not None)
            if fresh:
                training = with_measurements(job, training, progress)
            else:
                training = resume(training, progress, run, trains=not ended)
            progress = progress.scaled_for(training.decisions.precision)
            if fresh and world.is_first:
                decided, device = training.decisions, training.device
                write_start(run, job.recipe, decided, job.shards, job.data, device, job.started)
    except BaseException:
        if fresh and world.is_first:
            shutil.rmtree(run.path if created else run.checkpoints, ignore_errors=True)
        raise
    # Steps run for measurement count as start time.
    saving = training.time_by_category["checkpoint"] - charged["checkpoint"]
    starting = max(0.0, uptime() - job.started - saving)
    training.time_by_category.update(
        charged | {"checkpoint": charged["checkpoint"] + saving, "start": charged["start"] + starting}
    )
    remote = None
    if world.is_first and watching.track:
        remote = Remote(watching.track, run=run, recipe=resolved(job.recipe), name=run.path.name)
    if world.is_first and fresh:
        alive.enter_context(closing(Heartbeat(run.heartbeat, training.clock.elapsed)))
    try:
        if not ended:
            progress = _train(training, progress, job, remote)
        # All ranks hold the same weights, so the first one finishes alone and the others do not wait.
        with working("Checking the model"):
            summary = finish(job, training, progress, watching.price) if world.is_first else None
        if remote and summary:
            remote.on_validation(summary.validation)
        return summary
    finally:
        if remote:
            remote.close()  # after the export, because closing may take seconds


def _forecast_monitor(job: PretrainingJob, training: Training) -> ForecastMonitor | None:
    """Return the monitor that forecasts the final loss, or None if the forecast does not support the recipe."""
    if why_no_forecast(job.recipe):
        return None
    shards, manifest, phase = job.shards, job.shards.manifest, training.phases[0]
    epochs, path = calibration.expected_epochs(training, job.budget, training.clock.elapsed()), job.run.forecast
    measured = read_json(path, ForecastLog).difficulty if path.exists() else None  # when the run started
    run = RunSpec(
        inner=inner_parameters(training.model.parameter_count(), manifest.vocabulary, training.model.hidden_size),
        tokens=epochs * phase.rows_per_epoch * phase.length,
        unique=manifest.train.tokens,
        unigram_loss=training.validation.unigram_loss,
        difficulty=difficulty(shards.train, shards.heldout, shards.unigram_counts) if measured is None else measured,
        copy_heads=has_copy_heads(job.recipe),
    )
    timed = job.budget.unit == "seconds"
    covered = pace_of(training.decisions).covered if timed else None
    return ForecastMonitor(shipped_law(), run, training.validation.positions, covered, path)


def _train(
    training: Training, progress: checkpoint.Progress, job: PretrainingJob, remote: Remote | None
) -> checkpoint.Progress:
    """Run the training loop with its journal and monitors."""
    run, budget, world = job.run, job.budget, training.world
    if world.is_first:
        # Charge the time of the start even if no step finishes.
        starting = replace(progress, elapsed=training.clock.elapsed(), time_by_category=dict(training.time_by_category))
        checkpoint.charge(run.checkpoints, starting)
    with ExitStack() as stack:
        watchdog = stack.enter_context(closing(Watchdog(run.stacks, world.rank)))
        training = replace(training, watchdog=watchdog)
        if not world.is_first:
            return fit(training, progress)
        journal = stack.enter_context(closing(Journal(run)))
        telemetry = stack.enter_context(closing(Telemetry(run.path)))
        page = stack.enter_context(closing(LivePage(run)))
        seconds = budget.amount - training.decisions.reserve_seconds if budget.unit == "seconds" else None
        work = stack.enter_context(working("Training"))
        forecast = _forecast_monitor(job, training)
        remark = forecast.remark if forecast else lambda: ""
        optional: list[Monitor] = [monitor for monitor in (forecast, remote) if monitor]
        plateau = training.plateau_loss
        live, warning = Live(work, seconds, plateau, remark), Plateau(plateau, smaller_than(job.recipe))
        monitors: list[Monitor] = [*optional, live, warning, page]
        training = replace(training, journal=journal, monitors=monitors, telemetry=telemetry)
        progress = fit(training, progress)
        telemetry.close()  # records the last half minute, so that its energy is counted
        observe_machine(training, progress, training.clock.elapsed())
        return progress
