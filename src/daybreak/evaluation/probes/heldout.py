"""Held-out documents and padded batches for the probes that use a Daybreak encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def document_bounds(stream: np.ndarray, document_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the int64 starts and ends of the documents that lie within ``stream``.

    Args:
        document_ends: for each document, the position just past its separator.
    """
    ends = document_ends[document_ends <= len(stream)].astype(np.int64)
    return np.concatenate([[0], ends])[: len(ends)].astype(np.int64), ends


def padded_batch(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids int64[N, L], padded on the right, and the mask bool[N, L] of the real tokens."""
    sizes = np.array([len(row) for row in rows])
    ids = np.full((len(rows), int(sizes.max())), pad, np.int64)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(ids).to(device), torch.from_numpy(np.arange(ids.shape[1]) < sizes[:, None]).to(device)
