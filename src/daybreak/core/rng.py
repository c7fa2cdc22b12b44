"""Random numbers as a function of (seed, row, slot): no state to save or restore, and the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK_64 = (1 << 64) - 1


def _signed(value: int) -> int:
    """Fold a 64-bit pattern into the range of int64."""
    value &= _MASK_64
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift of int64 (torch's own keeps the sign)."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele et al., OOPSLA 2014): a bijection of 64 bits whose output looks random."""
    bits = (bits ^ _shift_right(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shift_right(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shift_right(bits, 31)


def draws(seed: int, first_row: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """Return non-negative int64 [rows, columns], uniform in [0, 2**62), for rows first_row, first_row + 1, ..."""
    golden = _signed(0x9E3779B97F4A7C15)
    row = torch.arange(first_row, first_row + rows, dtype=torch.int64, device=device)[:, None]
    column = torch.arange(columns, dtype=torch.int64, device=device)[None]
    keyed = _mix(_mix(row * golden + _signed(seed * 0xD1B54A32D192ED03 + 1)) + column * golden)
    return _shift_right(_mix(keyed), 2)
