"""Disk space: a check before a run starts, and a warning while it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from daybreak.core.errors import UserError
from daybreak.core.files import make_folder

CHECKPOINTS = 8
"""Maximum number of checkpoints at a time: two to resume from, one before a bad step, one rolled back to, one being
written, the best one, and those from before the decay and before the end."""
RECORDS_BYTES = 64 * 2**20
"""Report and other files without weights."""
SECOND_BYTES = 1400
"""Bytes of one second of training in the trace and the metrics, at ten steps per second."""
MODELS = 2
"""The exported weights, and those being written beside them."""


def most_bytes(*, checkpoint_bytes: int, model_bytes: int, seconds: float) -> int:
    """Maximum size of a run folder at any time.

    Args:
        checkpoint_bytes: weights and moments of the optimizer.
        model_bytes: the weights alone.
        seconds: the budget; 0 if it is not a time.
    """
    records = RECORDS_BYTES + int(SECOND_BYTES * seconds)
    return CHECKPOINTS * checkpoint_bytes + MODELS * model_bytes + records


def check_room(folder: Path, *, checkpoint_bytes: int, model_bytes: int, seconds: float = 0.0) -> None:
    """Check that the files of a run fit on the disk of ``folder``, which is created if it is missing.

    Weights and moments that are already in the folder count as free space, because new files replace them. User quotas
    are not considered.

    """
    make_folder(folder)
    needed = most_bytes(checkpoint_bytes=checkpoint_bytes, model_bytes=model_bytes, seconds=seconds)
    free = shutil.disk_usage(folder).free
    replaceable = sum(file.stat().st_size for file in folder.rglob("*.safetensors") if file.is_file())
    if free + replaceable < needed:
        raise UserError(
            f"The run will write up to {gigabytes(needed)} to '{folder}', but only "
            f"{gigabytes(free + replaceable)} are free there.",
            "Free disk space, or choose a folder on another disk with --out.",
        )


def low_room(folder: Path, checkpoint_bytes: int) -> str | None:
    """Return a warning if fewer than two checkpoints fit on the disk of ``folder``, else None."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return None  # the next write reports the error
    if free >= 2 * checkpoint_bytes:
        return None
    return (
        f"Only {gigabytes(free)} are left where '{folder}' lies, and a checkpoint takes {gigabytes(checkpoint_bytes)}: "
        "free disk space soon, or the run will stop at the first one that does not fit."
    )


def gigabytes(count: int) -> str:
    """``1234567890`` -> ``1.23 GB``."""
    return f"{count / 1e9:.2f} GB"
