"""Room on the disk: enough before a run begins, and said in time when it goes short."""

from __future__ import annotations

import shutil
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder

CHECKPOINTS = 8
"""At the same time at most: two to resume from, one spared since a step was bad, one gone back to, one that is being
written, the best, and those from before the decay and before the end."""
RECORDS_BYTES = 64 * 2**20
"""Trace, metrics, report and what else a run writes that is not weights."""
MODELS = 2
"""The export's weights, and those being written beside them."""


def most_bytes(*, checkpoint_bytes: int, model_bytes: int) -> int:
    """What a run writes into its folder at most, at any time.

    Args:
        checkpoint_bytes: weights and moments of the optimizer.
        model_bytes: the weights alone.
    """
    return CHECKPOINTS * checkpoint_bytes + MODELS * model_bytes + RECORDS_BYTES


def check_room(folder: Path, *, checkpoint_bytes: int, model_bytes: int) -> None:
    """Check that all that a run will write fits where its folder lies.

    Weights and moments that are in the folder already count as room: what is written takes their place. Quotas of a
    user are not seen.

    Args:
        folder: of the run; made here where there is none.
        checkpoint_bytes: weights and moments of the optimizer.
        model_bytes: the weights alone.

    Raises:
        UserError: the file system has less room, or cannot be written, as one that is mounted read-only.
    """
    make_folder(folder)
    needed = most_bytes(checkpoint_bytes=checkpoint_bytes, model_bytes=model_bytes)
    free = shutil.disk_usage(folder).free
    held = sum(file.stat().st_size for file in folder.rglob("*.safetensors") if file.is_file())
    if free + held < needed:
        raise UserError(
            f"The run will write up to {gigabytes(needed)} to '{folder}', but only {gigabytes(free + held)} are free "
            "there.",
            "Free some room, or choose a folder on another disk with --out.",
        )


def low_room(folder: Path, checkpoint_bytes: int) -> str | None:
    """Return a warning when less than two checkpoints fit where ``folder`` lies, else None."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return None  # what is really wrong is said by whoever writes there next
    if free >= 2 * checkpoint_bytes:
        return None
    return (
        f"Only {gigabytes(free)} are left where '{folder}' lies, and a checkpoint takes {gigabytes(checkpoint_bytes)}: "
        "free some room soon, or the run will stop at the first one that does not fit."
    )


def gigabytes(count: int) -> str:
    """``1234567890`` -> ``1.23 GB``."""
    return f"{count / 1e9:.2f} GB"
