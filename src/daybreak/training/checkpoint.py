"""Checkpoints: written beside, renamed into place, found again newest first; safetensors and JSON, never pickle."""

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
from daybreak.training.averaging import RunningAverage
from daybreak.training.guard import Health, LossScale
from daybreak.training.phases import LossHistory

KEEP = 2
WEIGHTS, MOMENTS, AVERAGE = "model.safetensors", "optimizer.safetensors", "average.safetensors"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands at a step border; with the trace this is all that a resume needs beside the tensors."""

    step: int
    """Optimizer steps done."""
    position: int
    """The next row; a branched run goes on where its parent stood."""
    tokens: int
    targets: int
    elapsed: float
    """Seconds charged when the checkpoint was written."""
    resumes: int
    """Processes that ended before the budget did."""
    time_by_category: dict[str, float]
    """Seconds by use, see ``Summary.time_by_category``."""
    second_from: float | None = None
    """Progress at which the second phase began; None before, and in a run of one phase."""
    losses: LossHistory = LossHistory()
    branched_at: float | None = None
    """Progress at which the checkpoint before the decay was kept; None before."""
    first: int = 0
    """``position`` at the run's first step: above 0 where it goes on from before another's decay."""
    health: Health = Health()
    scale: LossScale = LossScale()
    best: float | None = None
    """Lowest held-out loss of an interim validation, of the checkpoint that is kept for it; None before."""
    reserve: float = 0.0
    """Seconds kept back for the end, as measured lately."""
    late_at: float | None = None
    """Progress at which the checkpoint near the end was kept, for ``daybreak verify``; None before."""
    first_step_at: float | None = 0.0
    """Seconds charged when the first step began, at progress 0; None before it. Runs of earlier versions, whose
    schedules count from the start of the process, go on with 0."""

    @property
    def rows(self) -> int:
        """Rows that this run read itself."""
        return self.position - self.first

    @property
    def first_bad(self) -> int:
        """The first bad one of the last steps, this step if none: earlier checkpoints were followed by a good one."""
        return self.step - self.health.recent.bit_length()

    def scaled_for(self, precision: str) -> Progress:
        """At step 0, where it is saved before the precision is chosen, with the loss scale to begin with."""
        return self if self.step else replace(self, scale=LossScale.first(precision))


START = Progress(
    step=0, position=0, tokens=0, targets=0, elapsed=0.0, resumes=0, time_by_category={}, first_step_at=None
)


def bytes_of(model: Encoder, average: RunningAverage | None = None) -> int:
    """Roughly how large a checkpoint is: the weights, two moments of each, and their average where there is one."""
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
    """Write ``folder/step-N`` in one step and drop all but the newest ``keep``.

    Of a run that leaves out steps the newest one that was followed by a good step stays too, where ``keep`` is 2 or
    more: it may be needed to go back to.

    Raises:
        UserError: the disk is full or not writable; earlier checkpoints stay.
    """
    final = folder_of(folder, progress.step)
    temporary = folder / f".{final.name}.tmp"
    try:
        for torn in folder.glob(".step-*"):  # a kill left it, and nobody else would ever clear its gigabytes away
            shutil.rmtree(torn, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_file(dict(unique_state(model)), temporary / WEIGHTS)
        save_file(optimizer_tensors(optimizer), temporary / MOMENTS)
        if average:
            save_file(average.tensors(), temporary / AVERAGE)
        write_json(temporary / "progress.json", progress)
        for file in temporary.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        replace_folder(temporary, final)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"The checkpoint at step {progress.step} cannot be written in '{folder}' ({error}).",
            "Free disk space or mend the permissions, then give the same command to go on from the last one.",
        ) from None
    paths = sorted(folder.glob("step-*"))
    good = [path for path in paths if keep > 1 and step_of(path) < progress.first_bad][-1:]
    for old in paths[:-keep]:
        if old not in good:
            shutil.rmtree(old, ignore_errors=True)
    return final


def folder_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies in ``folder``."""
    return folder / f"step-{step:09d}"


def charge(folder: Path, progress: Progress) -> None:
    """Put ``progress`` in the place of what the checkpoint at its step says.

    A resume cuts the trace, which holds the last heartbeat, so what it charges must be on disk before: otherwise a
    second kill, before the next step, would give the time back.
    """
    path = folder_of(folder, progress.step)
    if path.is_dir():  # all may be torn, and the run begins again
        write_json(path / "progress.json", progress)


@dataclass(frozen=True)
class Found:
    """A checkpoint that is whole, in memory."""

    progress: Progress
    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]
    average: dict[str, torch.Tensor]
    """Empty where nothing is averaged."""


def step_of(path: Path) -> int:
    """The step of a checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def newest(folder: Path, *, before: int | None = None) -> tuple[Found | None, list[str]]:
    """Read the newest checkpoint that is whole.

    Args:
        before: only of earlier steps than this one.

    Returns:
        It, or None when there is none, and the names of those that could not be read.
    """
    torn: list[str] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        if before is not None and step_of(path) >= before:
            continue
        try:
            progress = read_json(path / "progress.json", Progress)
            average = load_file(path / AVERAGE) if (path / AVERAGE).exists() else {}
            return Found(progress, load_file(path / WEIGHTS), load_file(path / MOMENTS), average), torn
        except (UserError, OSError, SafetensorError) as error:
            torn.append(f"{path.name} ({error})")
    return None, torn


def agreed(found: Found | None, world: World) -> Found | None:
    """The first rank's checkpoint on every rank; others need no disk in common with it."""
    if world.size == 1:
        return found
    progress = world.broadcast(found.progress if found else None)
    if progress is None:
        return None
    kinds = ("weights", "moments", "average")
    mine = None
    if found:
        mine = {f"{kind}/{name}": tensor for kind in kinds for name, tensor in getattr(found, kind).items()}
    tensors = world.spread(mine)
    parts = {
        kind: {key.partition("/")[2]: tensor for key, tensor in tensors.items() if key.startswith(f"{kind}/")}
        for kind in kinds
    }
    return Found(progress, **parts)


def load(
    found: Found, model: Encoder, optimizer: torch.optim.Optimizer, average: RunningAverage | None = None
) -> Progress:
    """Bring ``model``, ``optimizer`` and ``average`` to where the checkpoint stands."""
    outcome = model.load_state_dict(found.weights, strict=False)
    tied = set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    assert not outcome.unexpected_keys and set(outcome.missing_keys) <= tied
    restore_optimizer(optimizer, found.moments)
    if average:
        average.restore(found.average)
    return found.progress


def load_newest(
    folder: Path, model: Encoder, optimizer: torch.optim.Optimizer, average: RunningAverage | None = None
) -> tuple[Progress | None, list[str]]:
    """Load the newest checkpoint that is whole into ``model``, ``optimizer`` and ``average``.

    Returns:
        Its progress, or None when there is none, and the names of those that could not be read.
    """
    found, torn = newest(folder)
    return (load(found, model, optimizer, average) if found else None), torn


def drop_after(folder: Path, step: int) -> None:
    """Delete the checkpoints of later steps: they belong to a course that the run has left."""
    for path in folder.glob("step-*"):
        if step_of(path) > step:
            shutil.rmtree(path, ignore_errors=True)


def unique_state(model: Encoder) -> list[tuple[str, torch.Tensor]]:
    """Named parameters, shared ones once (a tied decoder is restored by the tie)."""
    return [(name, parameter.detach().contiguous()) for name, parameter in model.named_parameters()]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Flatten an optimizer's per-parameter state into names like ``17.exp_avg``."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": value.contiguous() for index, item in state.items() for name, value in item.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    """Undo ``optimizer_tensors``."""
    whole = optimizer.state_dict()
    whole["state"] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        whole["state"].setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(whole)
