"""Checkpoints: written beside, renamed into place, found again newest first; safetensors and JSON, never pickle."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from daybreak.base.encoder import Encoder
from daybreak.base.errors import UserError
from daybreak.base.files import read_json, write_json
from daybreak.training.phases import LossHistory

KEEP = 2


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
    spent: dict[str, float]
    """Seconds by use, see ``Summary.spent``."""
    second_from: float | None = None
    """Progress at which the second phase began; None before, and in a run of one phase."""
    losses: LossHistory = LossHistory()
    branched_at: float | None = None
    """Progress at which the checkpoint before the decay was kept; None before."""
    first: int = 0
    """``position`` at the run's first step: above 0 where it goes on from before another's decay."""

    @property
    def rows(self) -> int:
        """Rows that this run read itself."""
        return self.position - self.first


START = Progress(step=0, position=0, tokens=0, targets=0, elapsed=0.0, resumes=0, spent={})


def save(folder: Path, progress: Progress, model: Encoder, optimizer: torch.optim.Optimizer) -> Path:
    """Write ``folder/step-N`` in one step and drop all but the newest KEEP.

    Raises:
        UserError: the disk is full or not writable; earlier checkpoints stay.
    """
    final = folder / f"step-{progress.step:09d}"
    temporary = folder / f".{final.name}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_file(dict(unique_state(model)), temporary / "model.safetensors")
        save_file(optimizer_tensors(optimizer), temporary / "optimizer.safetensors")
        write_json(temporary / "progress.json", progress)
        for file in temporary.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"The checkpoint at step {progress.step} cannot be written in '{folder}' ({error}).",
            "Free disk space or mend the permissions, then give the same command to go on from the last one.",
        ) from None
    for old in sorted(folder.glob("step-*"))[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def charge(folder: Path, progress: Progress) -> None:
    """Put ``progress`` in the place of what the checkpoint at its step says.

    A resume cuts the trace, which holds the last heartbeat, so what it charges must be on disk before: otherwise a
    second kill, before the next step, would give the time back.
    """
    path = folder / f"step-{progress.step:09d}"
    if path.is_dir():  # all may be torn, and the run begins again
        write_json(path / "progress.json", progress)


@dataclass(frozen=True)
class Found:
    """A checkpoint that is whole, in memory."""

    progress: Progress
    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]


def newest(folder: Path) -> tuple[Found | None, list[str]]:
    """Read the newest checkpoint that is whole.

    Returns:
        It, or None when there is none, and the names of those that could not be read.
    """
    torn: list[str] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            progress = read_json(path / "progress.json", Progress)
            weights = load_file(path / "model.safetensors")
            return Found(progress, weights, load_file(path / "optimizer.safetensors")), torn
        except (UserError, OSError, SafetensorError) as error:
            torn.append(f"{path.name} ({error})")
    return None, torn


def load(found: Found, model: Encoder, optimizer: torch.optim.Optimizer) -> Progress:
    """Bring ``model`` and ``optimizer`` to where the checkpoint stands."""
    outcome = model.load_state_dict(found.weights, strict=False)
    tied = set(model.state_dict()) - {name for name, _ in model.named_parameters()}
    assert not outcome.unexpected_keys and set(outcome.missing_keys) <= tied
    restore_optimizer(optimizer, found.moments)
    return found.progress


def load_newest(folder: Path, model: Encoder, optimizer: torch.optim.Optimizer) -> tuple[Progress | None, list[str]]:
    """Load the newest checkpoint that is whole into ``model`` and ``optimizer``.

    Returns:
        Its progress, or None when there is none, and the names of those that could not be read.
    """
    found, torn = newest(folder)
    return (load(found, model, optimizer) if found else None), torn


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
