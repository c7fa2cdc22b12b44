"""Replay of a run's recorded steps, compared bit for bit with the weights that the run saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say, working
from daybreak.core.world import World
from daybreak.pretraining.hardware_choices import compiled_everywhere
from daybreak.pretraining.setup import PretrainingJob, build, build_training, first_progress
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.records import Verified
from daybreak.schemas.run import Decisions, Environment, StepRecord, Summary, TraceRecord
from daybreak.training import checkpoint
from daybreak.training.checkpoint import Checkpoint, Progress
from daybreak.training.clock import ReplayClock
from daybreak.training.hardware import probe
from daybreak.training.loop import fit
from daybreak.training.monitoring.monitors import Live, Monitor
from daybreak.training.phases import with_microbatch
from daybreak.training.recovery import current_change, moves
from daybreak.training.step import MicrobatchTooLarge, Training

FIXED_ORDER = 128
"""Sequence length up to which attention without dropout sums gradients in a fixed order on a GPU: one block of keys, or
two with a mask (``models.layers``). More are added in the order in which they finish (FlashAttention-2, arXiv
2307.08691, section 3.1)."""


@dataclass(frozen=True)
class SavedWeights:
    """Weights that the run saved after a step: a checkpoint or the exported model."""

    step: int
    name: str
    path: Path
    """Folder of the checkpoint, or the weight file of the exported model."""
    exported: bool = False


def find_weights(folder: RunFolder, trace: list[TraceRecord]) -> list[SavedWeights]:
    """Return all saved weights of a run in order of steps, without incomplete checkpoints."""
    found = []
    for kept in (folder.branch, folder.best, folder.late, folder.checkpoints):
        for path in checkpoint.saved_in(kept):
            step = checkpoint.step_of(path)
            if step <= len(trace) and _is_complete(path):
                found.append(SavedWeights(step, f"{kept.name}/{path.name}", path))
    if folder.summary.exists():
        found.append(SavedWeights(len(trace), "the exported model", folder.model / "model.safetensors", exported=True))
    return sorted(found, key=lambda weights: (weights.step, weights.exported))


def _is_complete(checkpoint_: Path) -> bool:
    try:
        for file in checkpoint_.glob("*.safetensors"):
            with safe_open(file, framework="pt"):  # checks the header and the file size
                pass
    except (OSError, SafetensorError) as error:
        say(f"Skipping an incomplete checkpoint: {checkpoint_.name} ({error})")
        return False
    return True


def find_start(saved: list[SavedWeights], last: int, steps: int) -> Checkpoint | None:
    """Return the newest checkpoint at least ``last`` steps before the end, or None for the start of the run."""
    for weights in reversed(saved):
        if not weights.exported and 0 < weights.step <= steps - last:
            found, _ = checkpoint.read_newest(weights.path.parent, before=weights.step + 1)
            if found and found.progress.step == weights.step:
                return found
    return None


def check_world_size(
    decisions: Decisions, first: int, end: int, world: World, saved: Sequence[SavedWeights], total: int
) -> None:
    """Check that the steps were trained by as many processes as now, because gradients are summed in another order.

    Args:
        saved: the weights of the run, of which the error names those from which its last steps can be verified.
        total: the steps of the run.
    """
    steps = [first, *(change.step for change in decisions.changes if first < change.step < end)]
    sizes = {current_change(decisions, step).world_size for step in steps}
    if sizes == {world.size}:
        return
    if len(sizes) > 1:
        since = max(
            step
            for step in steps[1:]
            if current_change(decisions, step).world_size != current_change(decisions, step - 1).world_size
        )
        kept = [weights.step for weights in saved if not weights.exported and since <= weights.step < total]
        raise UserError(
            f"The number of processes changed during the run ({', '.join(map(str, sorted(sizes)))}), last at step "
            f"{since}.",
            f"Verify the steps after it: --last {total - kept[0]}."
            if kept
            else "No checkpoint after it was kept, so only a run with one number of processes can be verified.",
        )
    raise UserError(
        f"These steps were trained by {sizes.pop()} processes, not by {world.size}.",
        "Start verify with as many processes as the run: torchrun --nproc-per-node N -m daybreak verify RUN.",
    )


def replay(
    job: PretrainingJob,
    decisions: Decisions,
    trace: list[TraceRecord],
    start: Checkpoint | None,
    saved: list[SavedWeights],
    world: World,
) -> Verified:
    """Repeat the steps from ``start`` and compare with all saved weights on the way."""
    parts = build(job.recipe, job.shards, job.data, decisions, init=start is None)
    progress = checkpoint.load(start, *parts) if start else first_progress(job.recipe, *parts, world)
    progress = progress.scaled_for(decisions.precision)
    first = progress.step
    unvalidated = replace(decisions, validation_marks=0)
    training = build_training(job, parts, unvalidated, world, ReplayClock(trace), progress)
    recorded = [line for line in read_json_lines(job.run.metrics) if line["type"] == "step"]
    norms = Norms({line["step"]: line["gradient_norm"] for line in recorded})
    training = replace(training, run=None, record_seconds=0.0)
    settings = current_change(decisions, first)
    training = replace(training, phases=with_microbatch(training.phases, settings.microbatch))
    if settings.compiled:
        _compile(job.run, training, progress)
    total, names = saved[-1].step, list[str]()
    with working("Verifying") as work:
        monitors = (Live(work, None, training.validation.unigram_loss), norms) if world.is_first else ()
        for weights in saved:
            clock = ReplayClock(trace[: weights.step])
            progress = fit(replace(training, clock=clock, monitors=monitors), progress)
            replaced = not weights.exported and not weights.path.is_dir()  # by a run that is not finished
            differences = [norms.difference, "" if replaced else _difference(job.recipe, training, weights)]
            if weights.exported and not any(differences) and world.is_first:
                differences.append(_validation_difference(job.run, training))
            # Only the first rank knows the recorded norms.
            if found := world.broadcast("; ".join(filter(None, differences))):
                raise difference_error(job.run, decisions, found)
            verdict = "the run has replaced it, so it is not compared" if replaced else "equal"
            say(f"{weights.name}: {verdict}, {weights.step:,} of {total:,} steps.")
            names += [] if replaced else [weights.name]
    compared = f"{norms.compared:,} recorded gradient norms and {len(names)} sets of weights"
    say(f"Verified: steps {first:,} to {total:,} of '{job.run.path}' are equal bit for bit ({compared}).")
    loss = read_json(job.run.summary, Summary).validation.loss if saved[-1].exported else None
    if loss is not None:
        say(f"The held-out loss of the exported model equals the recorded one: {loss:.3f} nats.")
    return Verified(first=first, last=total, gradient_norms=norms.compared, weights=names, loss=loss)


class Norms(Monitor):
    """A monitor that compares gradient norms with the recorded ones."""

    def __init__(self, recorded: dict[int, float]):
        self._recorded = recorded
        self.compared = 0
        self.difference = ""
        """Description of the first difference; empty while all norms are equal."""

    def on_step(self, record: StepRecord) -> None:
        known = self._recorded.get(record.step)
        if known is None or self.difference:
            return
        self.compared += 1
        if known != record.gradient_norm:
            self.difference = (
                f"the gradient norm at step {record.step:,} is {record.gradient_norm!r}, recorded {known!r}"
            )


def _compile(run: RunFolder, training: Training, progress: Progress) -> None:
    remedy = "Verify the run where it was trained."
    try:
        compiled = compiled_everywhere(training, progress)
    except MicrobatchTooLarge:
        raise UserError(f"A microbatch of '{run.path}' does not fit into this device's memory.", remedy) from None
    if not compiled:
        raise UserError(f"'{run.path}' was trained with torch.compile, which fails on this machine.", remedy)


def _difference(recipe: Recipe, training: Training, saved: SavedWeights) -> str:
    """Describe the first tensor that differs from the saved weights; empty if all are equal."""
    if saved.exported:
        if training.average:
            training.average.put_in(training.model)
        return first_difference(recipe.model.export_weights(training.model), _read(saved.path), saved.name)
    ours = {checkpoint.WEIGHTS: dict(checkpoint.unique_state(training.model))}
    ours[checkpoint.MOMENTS] = checkpoint.optimizer_tensors(training.optimizer)
    if training.average:
        ours[checkpoint.AVERAGE] = training.average.tensors()
    for file, tensors in ours.items():
        if found := first_difference(tensors, _read(saved.path / file), f"{saved.name}/{file}"):
            return found
    return ""


def _validation_difference(run: RunFolder, training: Training) -> str:
    """Describe the first held-out number that differs from the recorded one; empty if all are equal."""
    measured, recorded = training.validation.evaluate(training.model), read_json(run.summary, Summary).validation
    for name in ("positions", "loss", "accuracy"):
        found, known = getattr(measured, name), getattr(recorded, name)
        if found != known:
            return f"the held-out {name.replace('_', ' ')} is {found!r}, recorded {known!r}"
    return ""


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"'{file}' cannot be read ({error}).", "Restore the file.") from None


def first_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor], where: str) -> str:
    """Describe the first tensor that differs between ``ours`` and ``theirs``; empty if all are equal bit for bit."""
    for name, tensor in ours.items():
        other = theirs.get(name)
        if other is None or other.shape != tensor.shape:
            return f"'{name}' is not in {where} in this shape"
        tensor = tensor.detach().cpu()
        if not torch.equal(tensor.view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)):
            apart = (tensor.double() - other.double()).abs().max().item()
            return f"'{name}' differs from {where}, by at most {apart:.3g}"
    if more := sorted(theirs.keys() - ours.keys()):
        return f"'{more[0]}' is only in {where}"
    return ""


def difference_error(run: RunFolder, decisions: Decisions, differences: str) -> UserError:
    """Return the error of a replay that differs, with possible causes."""
    environment = read_json(run.environment, Environment)
    now = probe.describe(torch.device(decisions.device), environment.started)
    names = ("torch", "device", "platform")
    changed = [
        f"{name} was {getattr(environment, name)} and is {getattr(now, name)}"
        for name in names
        if getattr(environment, name) != getattr(now, name)
    ]
    if moved := moves(decisions):
        remedy = f"Verify its steps after step {moved[-1].step} with --last, where they were trained ({moved[-1].why})"
    elif changed:
        remedy = f"Verify it where it was trained: {'; '.join(changed)}"
    else:
        remedy = "Restore its records and data: one of them was changed"
    recipe = load_recipe(run.path)
    dropout = getattr(recipe.model, "attention_dropout", getattr(recipe.model, "dropout", 0.0))
    if decisions.device == "cuda" and (dropout or recipe.longest_row > FIXED_ORDER):
        what = "with dropout" if dropout else f"over more than {FIXED_ORDER} positions"
        remedy += f", or it is rounding: attention {what} sums in any order on a GPU"
    return UserError(f"'{run.path}' differs from its records: {differences}.", f"{remedy}.")
