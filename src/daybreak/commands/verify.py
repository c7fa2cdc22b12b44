"""Verb: a run's recorded steps once more, and whether the weights come out as they did, bit for bit."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from daybreak.core import world as worlds
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, read_json_lines
from daybreak.core.run_folder import RunFolder
from daybreak.core.terminal import say, working
from daybreak.core.world import World
from daybreak.data.sequences.shards import open_shards
from daybreak.pretraining.hardware_choices import compiled_everywhere, use_device
from daybreak.pretraining.run_start import refuse_other_data
from daybreak.pretraining.setup import PretrainingJob, build, build_training, first_progress
from daybreak.recipe import Recipe, load_recipe
from daybreak.schemas.changes import MachineRecord
from daybreak.schemas.records import Verified
from daybreak.schemas.run import Decisions, Environment, StepRecord, Summary, TraceRecord, ValidationRecord
from daybreak.training import checkpoint
from daybreak.training.changes import in_force
from daybreak.training.checkpoint import Found
from daybreak.training.clock import ReplayClock, read_trace
from daybreak.training.hardware import probe
from daybreak.training.loop import fit
from daybreak.training.monitoring.monitors import Live
from daybreak.training.phases import with_microbatch
from daybreak.training.step import Training

FIXED_ORDER = 128
"""Positions up to which the gradients of torch's fused attention are sums in a fixed order on a GPU: one block of keys.
Beyond them blocks add to the same numbers as they come (FlashAttention-2, arXiv 2307.08691, section 3.1)."""


def verify(run: Path, *, data: Path | None = None, last: int = 0) -> Verified:
    """Run the recorded steps of ``run`` again and compare gradient norms, every kept checkpoint and the exported model,
    whose held-out loss is judged once more.

    Clock readings, decisions and changes of course are taken from the run's records, rows from its data, whose hashes
    are checked as they are read.

    Args:
        data: the run's prepared data; ``run/data`` when None.
        last: only so many steps, from the newest checkpoint before them (RUN/before-end, or one still kept); 0 for all.

    Raises:
        UserError: something differs (it is named), or there is nothing that could be compared.
    """
    folder = RunFolder(run)
    if not folder.recipe.is_file():
        raise UserError(f"'{run}' is no run folder.", "Name one that daybreak pretrain made.")
    recipe, decisions = load_recipe(run), read_json(folder.decisions, Decisions)
    shards = open_shards(data or run / "data")
    refuse_other_data(folder, shards)
    trace = read_trace(folder.trace)
    if not trace or [record.step for record in trace] != list(range(len(trace))):
        raise UserError(f"Steps are missing in '{folder.trace}'.", "Only a run with a whole trace can be verified.")
    world = worlds.start()
    try:
        use_device(decisions)
        order = PretrainingJob(
            recipe=recipe, shards=shards, data=data or run / "data", run=folder, started=time.monotonic()
        )
        witnesses = _witnesses(folder, trace)
        start = _start(witnesses, last, len(trace)) if last else None
        first = start.progress.step if start else 0
        ahead = [witness for witness in witnesses if witness.step > first]
        if not ahead:
            raise UserError(f"'{run}' has no later checkpoint and no model to compare with.", "Let it train on.")
        _refuse_other_processes(decisions, first, ahead[-1].step, world)
        torch.set_num_threads(in_force(decisions, first).threads)
        return _replay(order, decisions, trace, start, ahead, world)
    finally:
        worlds.stop(world)


@dataclass(frozen=True)
class Witness:
    """Weights that the run left behind, at a step border."""

    step: int
    name: str
    path: Path
    """Of a checkpoint; of the exported model's weights where ``exported``."""
    exported: bool = False


def _witnesses(folder: RunFolder, trace: list[TraceRecord]) -> list[Witness]:
    """In order of steps; a checkpoint that is torn is none."""
    found = []
    for kept in (folder.branch, folder.best, folder.late, folder.checkpoints):
        for path in kept.glob("step-*"):
            step = checkpoint.step_of(path)
            if step <= len(trace) and _is_whole(path):
                found.append(Witness(step, f"{kept.name}/{path.name}", path))
    if folder.summary.exists():
        found.append(Witness(len(trace), "the exported model", folder.model / "model.safetensors", exported=True))
    return sorted(found, key=lambda witness: (witness.step, witness.exported))


def _is_whole(checkpoint_: Path) -> bool:
    try:
        for file in checkpoint_.glob("*.safetensors"):
            with safe_open(file, framework="pt"):  # reads the header, and whether all that it speaks of is there
                pass
    except (OSError, SafetensorError) as error:
        say(f"Passing over a torn checkpoint: {checkpoint_.name} ({error})")
        return False
    return True


def _start(witnesses: list[Witness], last: int, steps: int) -> Found | None:
    """The newest checkpoint that is at least ``last`` steps from the end; None for the beginning."""
    for witness in reversed(witnesses):
        if not witness.exported and 0 < witness.step <= steps - last:
            found, _ = checkpoint.newest(witness.path.parent, before=witness.step + 1)
            if found and found.progress.step == witness.step:
                return found
    return None


def _refuse_other_processes(decisions: Decisions, first: int, end: int, world: World) -> None:
    """Sums over other processes come in another order: bits cannot be compared across them."""
    steps = [first, *(change.step for change in decisions.changes if first < change.step < end)]
    asked = {in_force(decisions, step).world_size for step in steps}
    if asked == {world.size}:
        return
    if len(asked) > 1:
        since = max(step for step in steps[1:] if _processes_change(decisions, step))
        raise UserError(
            f"The number of processes changed on the way ({', '.join(map(str, sorted(asked)))}).",
            f"Only what came after step {since} can be equal bit for bit: choose --last accordingly.",
        )
    raise UserError(
        f"These steps were trained by {asked.pop()} processes, not by {world.size}.",
        "Start verify as the run was started: torchrun --nproc-per-node N -m daybreak verify RUN.",
    )


def _processes_change(decisions: Decisions, step: int) -> bool:
    return in_force(decisions, step).world_size != in_force(decisions, step - 1).world_size


def _replay(
    order: PretrainingJob,
    decisions: Decisions,
    trace: list[TraceRecord],
    start: Found | None,
    witnesses: list[Witness],
    world: World,
) -> Verified:
    """Go from witness to witness, and compare with each."""
    parts = build(order.recipe, order.shards, order.data, decisions, init=start is None)
    progress = checkpoint.load(start, *parts) if start else first_progress(order.recipe, *parts, world)
    progress = progress.scaled_for(decisions.precision)
    begun = progress.step
    quiet = replace(decisions, validation_marks=0)
    training = build_training(order, parts, quiet, world, ReplayClock(trace), progress)
    norms = Norms({line["step"]: line["gradient_norm"] for line in _step_lines(order.run)})
    training = replace(training, run=None, record_seconds=0.0)
    held = in_force(decisions, begun)
    training = replace(training, phases=with_microbatch(training.phases, held.microbatch))
    if held.compiled and not compiled_everywhere(training, progress):
        raise UserError(
            f"'{order.run.path}' was compiled, and this machine cannot compile it.", "Verify where it was trained."
        )
    total = witnesses[-1].step
    with working("Verifying") as work:
        watching = (Live(work, None, training.validation.unigram_loss), norms) if world.is_first else ()
        for witness in witnesses:
            clock = ReplayClock(trace[: witness.step])
            progress = fit(replace(training, clock=clock, monitors=watching), progress)
            differences = [norms.differs, _difference(order.recipe, training, witness)]
            if witness.exported and not any(differences) and world.is_first:
                differences.append(_other_judgement(order.run, training))
            if found := world.broadcast(
                "; ".join(filter(None, differences))
            ):  # norms are known to the first rank alone
                raise _other(order.run, decisions, found)
            say(f"{witness.name}: equal, {witness.step:,} of {total:,} steps.")
    compared = f"{norms.compared:,} recorded gradient norms and {len(witnesses)} sets of weights"
    say(f"Verified: steps {begun:,} to {total:,} of '{order.run.path}' come out the same bit for bit ({compared}).")
    loss = read_json(order.run.summary, Summary).validation.loss if witnesses[-1].exported else None
    if loss is not None:
        say(f"The held-out loss of the exported model is the recorded one too: {loss:.3f} nats.")
    names = [witness.name for witness in witnesses]
    return Verified(first=begun, last=total, gradient_norms=norms.compared, weights=names, loss=loss)


def _step_lines(run: RunFolder) -> list[dict[str, Any]]:
    return [line for line in read_json_lines(run.metrics) if line["type"] == "step"]


class Norms:
    """A monitor that compares gradient norms with those that the run wrote down."""

    def __init__(self, recorded: dict[int, float]):
        self._recorded = recorded
        self.compared = 0
        self.differs = ""
        """The first step whose norm is another, in words; empty while all are equal."""

    def on_step(self, record: StepRecord) -> None:
        known = self._recorded.get(record.step)
        if known is None or self.differs:
            return
        self.compared += 1
        if known != record.gradient_norm:
            self.differs = f"the gradient norm at step {record.step:,} is {record.gradient_norm!r}, recorded {known!r}"

    def on_validation(self, record: ValidationRecord) -> None:
        """Nothing: a replay validates nothing."""

    def on_machine(self, record: MachineRecord) -> None:
        """Nothing."""


def _difference(recipe: Recipe, training: Training, witness: Witness) -> str:
    """The first tensor that is another, in words; empty when all are equal."""
    if witness.exported:
        if training.average:
            training.average.put_in(training.model)
        return first_difference(recipe.model.export_weights(training.model), _read(witness.path), witness.name)
    ours = {checkpoint.WEIGHTS: dict(checkpoint.unique_state(training.model))}
    ours[checkpoint.MOMENTS] = checkpoint.optimizer_tensors(training.optimizer)
    if training.average:
        ours[checkpoint.AVERAGE] = training.average.tensors()
    for file, tensors in ours.items():
        if found := first_difference(tensors, _read(witness.path / file), f"{witness.name}/{file}"):
            return found
    return ""


def _other_judgement(run: RunFolder, training: Training) -> str:
    """How the summary's held-out numbers differ from those of the weights as they are, in words; empty when equal."""
    seen, recorded = training.validation.evaluate(training.model), read_json(run.summary, Summary).validation
    for name in ("positions", "unigram_loss", "loss", "accuracy"):
        found, known = getattr(seen, name), getattr(recorded, name)
        if found != known:
            return f"the held-out {name.replace('_', ' ')} is {found!r}, recorded {known!r}"
    return ""


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"'{file}' cannot be read ({error}).", "Nothing can be compared with it: restore it.") from None


def first_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor], where: str) -> str:
    """Name the first tensor of ``ours`` that is not bit for bit in ``theirs``; empty when all are."""
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


def _other(run: RunFolder, decisions: Decisions, differences: str) -> UserError:
    """What to say when a replay comes out differently, with what is known of the cause."""
    environment = read_json(run.environment, Environment)
    now = probe.describe(torch.device(decisions.device), environment.started)
    names = ("torch", "device", "platform")
    changed = [
        f"{name} was {getattr(environment, name)} and is {getattr(now, name)}"
        for name in names
        if getattr(environment, name) != getattr(now, name)
    ]
    remedy = "Verify where it was trained: " + "; ".join(changed) if changed else "Its records or its data were changed"
    if decisions.device == "cuda" and load_recipe(run.path).longest_row > FIXED_ORDER:
        remedy += f", or it is rounding: attention over more than {FIXED_ORDER} positions adds in no fixed order there"
    return UserError(
        f"'{run.path}' does not come out as recorded: {differences}.",
        f"{remedy}.",
    )
