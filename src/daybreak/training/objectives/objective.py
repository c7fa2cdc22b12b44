"""What a model is asked to predict, as a function of (seed, position, progress): no random state to save.

B rows, L positions, K targets a row, D width.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import UserError
from daybreak.core.rng import draws
from daybreak.core.serialization import Component
from daybreak.schemas.run import SpecialIds
from daybreak.training.objectives.loss import LinearCrossEntropy

OURS = SpecialIds()
"""The special ids of every tokenizer that Daybreak trains."""


@dataclass(frozen=True, kw_only=True)
class Objective(Component):
    """What a model is asked to predict: how rows become a loss, and what that is called at each point of a run."""

    @abstractmethod
    def stage(self, progress: float) -> str:
        """Return the name of what is being learned at this point."""

    @property
    def given(self) -> float:
        """Share of the targets whose answer stands in the row: a loss that copying alone takes off."""
        return 0.0

    @property
    def averages_rows(self) -> bool:
        """Whether the loss has a part that is a mean over rows, so that ``loss`` must be told ``per_row``."""
        return False

    @property
    def whole_words(self) -> bool:
        """Whether words are hidden whole, so that ``Batch.continues`` must be there."""
        return False

    @abstractmethod
    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        """Return the ``count`` that ``loss`` would have for the same arguments, without a forward pass."""

    @abstractmethod
    def loss(
        self, model: Encoder, batch: Batch, *, seed: int, position: int, progress: float, per_row: float = 1.0
    ) -> LossSum:
        """Return the loss of rows position, position + 1, ... of the run.

        Args:
            batch: ids int64 [B, L] as torch tensors, nothing masked yet.
            per_row: targets of the whole step divided by its rows, where ``averages_rows``: the loss of a row counts
                this often, so that after the division by all targets it is a mean over rows.
        """


@dataclass(frozen=True, kw_only=True)
class CausalThenMasked(Objective):
    """Next-token prediction first, then masked-LM with the same weights, in place.

    A model that starts with masked LM alone can sit at the unigram entropy for minutes; a causal first stage takes it
    off (MLM against CLM, arXiv 2507.00994, section 4). All chosen positions become [MASK] (arXiv 2202.08005, table 3),
    with the rate falling in steps (arXiv 2305.15273): static shapes within a step. Padding is never a target.
    """

    causal_fraction: float = 0.35
    """Share of the run spent on next-token prediction; 0 for masked LM from the start."""
    causal_targets: float = 1.0
    """Share of a row's positions whose next token is predicted; fewer make the decoder cheaper."""
    mask_rates: tuple[float, ...] = (0.3, 0.25, 0.2, 0.15)
    """Masked shares of the equal parts of the masked stage; at most four."""

    def __post_init__(self) -> None:
        if not 0 <= self.causal_fraction < 1 or not 0 < self.causal_targets <= 1:
            raise UserError(
                "--objective.causal-fraction must be in [0, 1) and causal-targets in (0, 1].", "Correct it."
            )
        if not 1 <= len(self.mask_rates) <= 4 or not all(0 < rate < 1 for rate in self.mask_rates):
            raise UserError("--objective.mask-rates takes one to four shares between 0 and 1.", "Correct them.")

    def stage(self, progress: float) -> str:
        return "causal" if progress < self.causal_fraction else "masked"

    def mask_rate(self, progress: float) -> float:
        inside = (progress - self.causal_fraction) / (1.0 - self.causal_fraction)
        return self.mask_rates[min(int(max(inside, 0.0) * len(self.mask_rates)), len(self.mask_rates) - 1)]

    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        slots, answers = self._asked(batch, seed=seed, position=position, progress=progress)
        seen = self._seen(batch, slots, causal=self.stage(progress) == "causal")
        return answers.numel() if seen is None else int(seen.sum())

    def loss(
        self, model: Encoder, batch: Batch, *, seed: int, position: int, progress: float, per_row: float = 1.0
    ) -> LossSum:
        causal = self.stage(progress) == "causal"
        slots, answers = self._asked(batch, seed=seed, position=position, progress=progress)
        ids = batch.ids
        if slots is not None and not causal:
            ids = ids.scatter(1, slots, batch.special.mask)
        features = model.features(ids, slots, causal=causal, attend=batch.attend, types=batch.types)
        if slots is None:
            features = features[:, :-1]
        seen = self._seen(batch, slots, causal=causal)
        return decoded(model, features, answers) if seen is None else decoded(model, features[seen], answers[seen])

    def _asked(self, batch: Batch, *, seed: int, position: int, progress: float) -> tuple[Tensor | None, Tensor]:
        """Positions [B, K] that predict, None for all but the last, and what they should say, [B, K] or [B, L - 1]."""
        ids = batch.ids
        if self.stage(progress) != "causal":
            rate = self.mask_rate(progress)
            slots = choose(ids, rate, seed=seed, position=position, special=batch.special, attend=batch.attend)
            return slots, ids.gather(1, slots)
        if self.causal_targets >= 1.0:
            return None, ids[:, 1:]
        slots = choose(ids[:, 1:], self.causal_targets, seed=seed, position=position, special=batch.special)
        return slots, ids.gather(1, slots + 1)

    def _seen(self, batch: Batch, slots: Tensor | None, *, causal: bool) -> Tensor | None:
        """Bool like the answers, False where the answer is padding; None when nothing is padded."""
        if batch.attend is None:
            return None
        if slots is None:
            return batch.attend[:, 1:]
        return batch.attend.gather(1, slots + 1 if causal else slots)


def is_special(ids: Tensor, special: SpecialIds) -> Tensor:
    """Bool like ``ids``: whether an id is padding, unknown, [CLS], [SEP] or [MASK]."""
    found = ids == special.pad
    for one in (special.unk, special.cls, special.sep, special.mask):
        found = found | (ids == one)
    return found


def choose(
    ids: Tensor,
    share: float,
    *,
    seed: int,
    position: int,
    special: SpecialIds = OURS,
    attend: Tensor | None = None,
) -> Tensor:
    """Choose K = round(share * L) positions of each row of ``ids`` int64 [B, L], at least one, special tokens last.

    Args:
        attend: bool [B, L], False for padding. Of a padded row with n other positions only round(share * n) are
            chosen, at least one; the rest of its K entries name its first padding position.

    Returns:
        int64 [B, K], ascending.
    """
    keys = draws(seed, position, ids.shape[0], ids.shape[1], ids.device)
    keys = keys + is_special(ids, special).to(torch.int64) * (1 << 62)
    chosen = keys.argsort(dim=1)[:, : max(1, round(share * ids.shape[1]))]
    if attend is not None:
        wanted = (attend.sum(dim=1, keepdim=True).double() * share).round().clamp(min=1)
        padding = attend.to(torch.uint8).argmin(dim=1, keepdim=True)
        chosen = torch.where(torch.arange(chosen.shape[1], device=ids.device) < wanted, chosen, padding)
    return chosen.sort(dim=1).values


def mask_rows(
    ids: Tensor, share: float, *, seed: int, position: int, special: SpecialIds = OURS
) -> tuple[Tensor, Tensor]:
    """Hide exactly K = round(share * L) positions of each row of ``ids`` int64 [B, L].

    Returns:
        The rows with [MASK] at the chosen positions, and these positions, int64 [B, K].
    """
    slots = choose(ids, share, seed=seed, position=position, special=special)
    return ids.scatter(1, slots, special.mask), slots


def decoded(model: Encoder, features: Tensor, targets: Tensor) -> LossSum:
    """Cross-entropy of features [..., D] against targets int64 [...]."""
    flat = features.reshape(-1, features.shape[-1]).float()
    decoder = model.decoder
    loss = LinearCrossEntropy.apply(flat, decoder.weight, decoder.bias, targets.reshape(-1))
    return LossSum(sum=loss, count=targets.numel())
