"""What a model is asked to predict, as a function of (seed, position, progress): no random state to save.

B rows, L positions, K targets a row, D width.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from daybreak.base.chance import draws
from daybreak.base.encoder import Encoder, LossSum
from daybreak.base.errors import UserError
from daybreak.base.plain import Component
from daybreak.training.loss import LinearCrossEntropy

MASK_ID = 4
LAST_SPECIAL_ID = 4
"""Ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK] in every Daybreak tokenizer."""


@dataclass(frozen=True, kw_only=True)
class Objective(Component):
    def stage(self, progress: float) -> str:
        """Return the name of what is being learned at this point."""
        raise NotImplementedError

    @abstractmethod
    def loss(self, model: Encoder, ids: Tensor, *, seed: int, position: int, progress: float) -> LossSum:
        """Return the loss of rows position, position + 1, ... of the run.

        Args:
            ids: int64 [B, L], each row opened by [CLS].
        """


@dataclass(frozen=True, kw_only=True)
class CausalThenMasked(Objective):
    """Next-token prediction first, then masked-LM with the same weights, in place.

    A model that starts with masked LM alone can sit at the unigram entropy for minutes; a causal first stage takes it
    off (MLM against CLM, arXiv 2507.00994, section 4). All chosen positions become [MASK] (arXiv 2202.08005, table 3),
    with the rate falling in steps (arXiv 2305.15273): static shapes within a step.
    """

    causal_share: float = 0.35
    """Share of the run spent on next-token prediction; 0 for masked LM from the start."""
    causal_targets: float = 1.0
    """Share of a row's positions whose next token is predicted; fewer make the decoder cheaper."""
    mask_rates: tuple[float, ...] = (0.3, 0.25, 0.2, 0.15)
    """Masked shares of the equal parts of the masked stage; at most four."""

    def __post_init__(self) -> None:
        if not 0 <= self.causal_share < 1 or not 0 < self.causal_targets <= 1:
            raise UserError("--objective.causal-share must be in [0, 1) and causal-targets in (0, 1].", "Correct it.")
        if not 1 <= len(self.mask_rates) <= 4 or not all(0 < rate < 1 for rate in self.mask_rates):
            raise UserError("--objective.mask-rates takes one to four shares between 0 and 1.", "Correct them.")

    def stage(self, progress: float) -> str:
        return "causal" if progress < self.causal_share else "masked"

    def mask_rate(self, progress: float) -> float:
        inside = (progress - self.causal_share) / (1.0 - self.causal_share)
        return self.mask_rates[min(int(max(inside, 0.0) * len(self.mask_rates)), len(self.mask_rates) - 1)]

    def loss(self, model: Encoder, ids: Tensor, *, seed: int, position: int, progress: float) -> LossSum:
        if self.stage(progress) == "causal":
            if self.causal_targets >= 1.0:
                return decoded(model, model.features(ids, causal=True)[:, :-1], ids[:, 1:])
            slots = choose(ids[:, 1:], self.causal_targets, seed=seed, position=position)
            return decoded(model, model.features(ids, slots, causal=True), ids.gather(1, slots + 1))
        masked, slots = mask_rows(ids, self.mask_rate(progress), seed=seed, position=position)
        return decoded(model, model.features(masked, slots), ids.gather(1, slots))


def choose(ids: Tensor, share: float, *, seed: int, position: int) -> Tensor:
    """Choose K = round(share * L) positions of each row of ``ids`` int64 [B, L], at least one, special tokens last.

    Returns:
        int64 [B, K], ascending.
    """
    keys = draws(seed, position, ids.shape[0], ids.shape[1], ids.device)
    keys = keys + (ids <= LAST_SPECIAL_ID).to(torch.int64) * (1 << 62)
    return keys.argsort(dim=1)[:, : max(1, round(share * ids.shape[1]))].sort(dim=1).values


def mask_rows(ids: Tensor, share: float, *, seed: int, position: int) -> tuple[Tensor, Tensor]:
    """Hide exactly K = round(share * L) positions of each row of ``ids`` int64 [B, L].

    Returns:
        The rows with [MASK] at the chosen positions, and these positions, int64 [B, K].
    """
    slots = choose(ids, share, seed=seed, position=position)
    return ids.scatter(1, slots, MASK_ID), slots


def decoded(model: Encoder, features: Tensor, targets: Tensor) -> LossSum:
    """Cross-entropy of features [B, K, D] against targets int64 [B, K]."""
    flat = features.reshape(-1, features.shape[-1]).float()
    decoder = model.decoder
    loss = LinearCrossEntropy.apply(flat, decoder.weight, decoder.bias, targets.reshape(-1))
    return LossSum(sum=loss, count=targets.numel())
