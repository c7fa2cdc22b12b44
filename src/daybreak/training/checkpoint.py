"""Checkpoints as safetensors and JSON, without pickle; each is written to a temporary folder and renamed into place."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from daybreak.core.encoder import Encoder
from daybreak.core.errors import UserError
from daybreak.core.files import read_json, replace_folder, write_json
from daybreak.core.world import World
from daybreak.training.averaging import COUNT, MEAN, RunningAverage
from daybreak.training.guard import Health, LossScale
from daybreak.training.phases import LossHistory

KEEP = 2
LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "momentum_buffer")
"""States of optimizers that have the shape of their parameter; an optimizer of the user may have others."""
WEIGHTS, MOMENTS, AVERAGE = "model.safetensors", "optimizer.safetensors", "average.safetensors"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """State of a run between two steps; with the trace and the tensors it is all that a resume needs."""

    step: int
    """Completed optimizer steps."""
    position: int
    """Position of the next sequence; a branched run continues the count of its parent."""
    tokens: int
    targets: int
    elapsed: float
    """Seconds charged when the checkpoint was written."""
    resumes: int
    """Processes that ended before the end of the budget."""
    time_by_category: dict[str, float]
    """Seconds by category, see ``Summary.time_by_category``."""
    epochs: float | None = None
    """Passes over the text: the sequences of each phase as a fraction of its epoch. None in checkpoints of earlier
    versions."""
    second_from: float | None = None
    """Progress at which the second phase started; None before, and in a run of one phase."""
    losses: LossHistory = LossHistory()
    branched_at: float | None = None
    """Progress of the checkpoint before the decay; None before it is written."""
    first: int = 0
    """``position`` at the run's first step: above 0 for a run that branched off another one."""
    health: Health = Health()
    scale: LossScale = LossScale()
    best: float | None = None
    """Lowest held-out loss of an interim validation with a saved checkpoint; None before."""
    reserve: float = 0.0
    """Seconds reserved for the end, from the latest measurements."""
    late_at: float | None = None
    """Progress of the checkpoint near the end, for ``daybreak verify``; None before it is written."""
    first_step_at: float | None = 0.0
    """Seconds charged when the first step starts, at progress 0; None before it. Runs of earlier versions count
    progress from the start of the process and continue with 0."""

    @property
    def rows(self) -> int:
        """Sequences that this run has read itself."""
        return self.position - self.first

    @property
    def first_bad(self) -> int:
        """The first bad step in the recent window, or this step if there is none. Earlier checkpoints are good."""
        return self.step - self.health.recent.bit_length()

    def scaled_for(self, precision: str) -> Progress:
        """The progress with the initial loss scale at step 0, which is saved before the precision is chosen."""
        return self if self.step else replace(self, scale=LossScale.first(precision))


START = Progress(
    step=0,
    position=0,
    tokens=0,
    targets=0,
    elapsed=0.0,
    resumes=0,
    time_by_category={},
    epochs=0.0,
    first_step_at=None,
)


def bytes_of(model: Encoder, average: RunningAverage | None = None) -> int:
    """Approximate size of a checkpoint: the weights, two moments of each, and their average if there is one."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return weights * (4 if average else 3)


def save(
    folder: Path,
    progress: Progress,
    model: Encoder,
    optimizer: torch.optim.Optimizer,
    average: RunningAverage | None = None,
    *,
    keep: int = KEEP,
) -> Path:
    """Write ``folder/step-N`` atomically and delete all but the newest ``keep``.

    After skipped steps the newest checkpoint that precedes a good step stays too, if ``keep`` is 2 or more: the run may
    roll back to it.

    Raises:
        UserError: the disk is full or not writable; earlier checkpoints stay.
    """
    final = folder_of(folder, progress.step)
    temporary = folder / f".{final.name}.tmp"
    try:
        for leftover in folder.glob(".step-*"):  # left by a kill; nothing else deletes them
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_file(dict(unique_state(model)), temporary / WEIGHTS)
        save_file(optimizer_tensors(optimizer), temporary / MOMENTS)
        if average:
            save_file(average.tensors(), temporary / AVERAGE)
        write_json(temporary / "progress.json", progress)
        for file in temporary.iterdir():
            shutil.copymode(temporary / "progress.json", file)  # safetensors sets owner-only permissions
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        replace_folder(temporary, final)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"The checkpoint at step {progress.step} cannot be written in '{folder}' ({error}).",
            "Free disk space or correct the permissions, then run the same command to continue from the last one.",
        ) from None
    paths = saved_in(folder)
    good = [path for path in paths if keep > 1 and step_of(path) < progress.first_bad][-1:]
    for old in paths[:-keep]:
        if old not in good:
            shutil.rmtree(old, ignore_errors=True)
    return final


def folder_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}"


def charge(folder: Path, progress: Progress) -> None:
    """Replace the saved progress of the checkpoint at this step.

    A resume cuts the trace, which holds the last heartbeat, so the time it charges must be on disk first. Otherwise a
    second kill before the next step would refund this time.
    """
    path = folder_of(folder, progress.step)
    if path.is_dir():  # if no checkpoint is readable, the run starts again
        write_json(path / "progress.json", progress)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint in memory."""

    progress: Progress
    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]
    average: dict[str, torch.Tensor]
    """Empty without averaging."""


def step_of(path: Path) -> int:
    """The step of a checkpoint, from its name."""
    return int(path.name.removeprefix("step-"))


def saved_in(folder: Path) -> list[Path]:
    """Folders of the checkpoints in ``folder`` in order of their steps, whose numbers may have different lengths."""
    return sorted((path for path in folder.glob("step-*") if path.name[len("step-") :].isdecimal()), key=step_of)


def read_newest(folder: Path, *, before: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Read the newest complete checkpoint of a step before ``before``, and the names of those that are unreadable.

    Raises:
        UserError: this user may not read a checkpoint. A resume would take it for an incomplete one and delete it.
    """
    unreadable: list[str] = []
    for path in reversed(saved_in(folder)):
        if before is not None and step_of(path) >= before:
            continue
        _refuse_forbidden(path)
        try:
            progress = read_json(path / "progress.json", Progress)
            average = load_file(path / AVERAGE) if (path / AVERAGE).exists() else {}
            return Checkpoint(progress, load_file(path / WEIGHTS), load_file(path / MOMENTS), average), unreadable
        except (UserError, OSError, SafetensorError) as error:
            unreadable.append(f"{path.name} ({error})")
    return None, unreadable


def _refuse_forbidden(path: Path) -> None:
    try:
        for file in path.iterdir():
            file.open("rb").close()
    except PermissionError:
        raise UserError(
            f"The checkpoint '{path}' cannot be read: permission denied.",
            "Correct the permissions of its files, then repeat the command.",
        ) from None
    except OSError:  # damaged, or deleted meanwhile
        return


def broadcast(saved: Checkpoint | None, world: World) -> Checkpoint | None:
    """Send the first rank's checkpoint to every rank; the other ranks need no shared disk."""
    if world.size == 1:
        return saved
    progress = world.broadcast(saved.progress if saved else None)
    if progress is None:
        return None
    kinds = ("weights", "moments", "average")
    named = None
    if saved:
        named = {f"{kind}/{name}": tensor for kind in kinds for name, tensor in getattr(saved, kind).items()}
    tensors = world.broadcast_tensors(named)
    parts = {
        kind: {key.partition("/")[2]: tensor for key, tensor in tensors.items() if key.startswith(f"{kind}/")}
        for kind in kinds
    }
    return Checkpoint(progress, **parts)


def load(
    saved: Checkpoint,
    model: Encoder,
    optimizer: torch.optim.Optimizer,
    average: RunningAverage | None = None,
    remedy: str = "",
) -> Progress:
    """Load the checkpoint into ``model``, ``optimizer`` and ``average``; refuse one that does not fit them.

    Args:
        remedy: by default, to delete the checkpoint.
    """
    if problem := misfit(saved, model, optimizer, average):
        raise UserError(
            f"The checkpoint of step {saved.progress.step} does not fit the run: {problem}.",
            remedy
            or f"Delete its folder step-{saved.progress.step:09d}; the same command continues from an earlier one.",
        )
    model.load_state_dict(saved.weights, strict=False)
    restore_optimizer(optimizer, saved.moments)
    if average:
        average.restore(saved.average)
    return saved.progress


def misfit(
    saved: Checkpoint, model: Encoder, optimizer: torch.optim.Optimizer, average: RunningAverage | None = None
) -> str:
    """Describe a tensor of the checkpoint that is missing, unknown or of another size; empty if all fit."""
    sizes = {name: parameter.shape for name, parameter in model.named_parameters()}
    held = [("weights", saved.weights)]
    if average:
        means = {name.removeprefix(MEAN): tensor for name, tensor in saved.average.items() if name != COUNT}
        if COUNT not in saved.average:
            return "the average of the weights is missing"
        held += [("average of the weights", means)] if int(saved.average[COUNT]) else []
    for what, tensors in held:
        for name in sorted({*sizes, *tensors}):
            if name not in sizes or name not in tensors or tensors[name].shape != sizes[name]:
                return f"the {what} '{name}' are missing, unknown or of another size"
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, tensor in saved.moments.items():
        index, _, name = key.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            return f"the optimizer has no parameter for '{key}'"
        if name in LIKE_PARAMETER and tensor.shape != parameters[int(index)].shape:
            return f"the optimizer's '{key}' has another size than its parameter"
    return ""


def load_newest(
    folder: Path, model: Encoder, optimizer: torch.optim.Optimizer, average: RunningAverage | None = None
) -> tuple[Progress | None, list[str]]:
    """Load the newest complete checkpoint; return its progress, and the names of those that are unreadable."""
    saved, unreadable = read_newest(folder)
    return (load(saved, model, optimizer, average) if saved else None), unreadable


def drop_after(folder: Path, step: int) -> None:
    """Delete the checkpoints of later steps, which belong to an abandoned part of the run."""
    for path in saved_in(folder):
        if step_of(path) > step:
            shutil.rmtree(path, ignore_errors=True)


def any_in(folder: Path) -> bool:
    """Whether the folder holds a checkpoint."""
    return bool(saved_in(folder))


def unique_state(model: Encoder) -> list[tuple[str, torch.Tensor]]:
    """Named parameters, shared ones once (the model restores a tied decoder)."""
    return [(name, parameter.detach().contiguous()) for name, parameter in model.named_parameters()]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Flatten an optimizer's per-parameter state into names like ``17.exp_avg``."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": value.contiguous() for index, item in state.items() for name, value in item.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Load the result of ``optimizer_tensors``."""
    whole = optimizer.state_dict()
    whole["state"] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        whole["state"].setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(whole)
