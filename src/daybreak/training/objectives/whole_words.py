"""Which pieces are one word, and a choice that falls on words.

B rows, L positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def word_starts(candidates: Tensor, continues: Tensor) -> Tensor:
    """Return int64 [B, L]: where the word of each position starts in its row.

    Args:
        candidates: bool [B, L]; other positions stand alone, and no word goes across them.
        continues: bool [B, L], True for a piece that goes on a word.
    """
    before = F.pad(candidates[:, :-1], (1, 0))
    inside = continues & candidates & before
    here = torch.arange(candidates.shape[1], device=candidates.device).expand_as(candidates)
    return here.masked_fill(inside, 0).cummax(dim=1).values


def fitting(draw: Tensor, sizes: Tensor, wanted: Tensor | int) -> Tensor:
    """Take words in random order, passing over each that no longer fits, until the number is reached.

    Args:
        draw: int64 [B, L], orders the words of a row.
        sizes: int64 [B, L], pieces of the word that starts at a position, 0 where none starts.
        wanted: pieces to take at most, for all rows or int64 [B, 1].

    Returns:
        bool [B, L], True where a taken word starts.
    """
    order = draw.argsort(dim=1)
    ordered = sizes.gather(1, order)
    taken = ordered > 0
    place = torch.arange(sizes.shape[1], device=sizes.device)
    while True:
        # All at once up to the first that does not fit; with it go all later ones larger than what is left there.
        total = (ordered * taken).cumsum(dim=1)
        over = taken & (total > wanted)
        if not over.any():
            return torch.zeros_like(taken).scatter_(1, order, taken)
        first = over.to(torch.uint8).argmax(dim=1, keepdim=True)
        left = wanted - (total - ordered).gather(1, first)
        taken = taken & ~(over.any(dim=1, keepdim=True) & (place >= first) & (ordered > left))
