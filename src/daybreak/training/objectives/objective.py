"""Training objectives as functions of (seed, position, progress): there is no random state to save.

B sequences, L positions, K targets of a sequence, D hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import UserError, check_option
from daybreak.core.rng import draws
from daybreak.core.serialization import Component
from daybreak.schemas.run import SpecialIds
from daybreak.training.objectives.loss import LinearCrossEntropy


@dataclass(frozen=True, kw_only=True)
class Objective(Component):
    """A training objective: the loss of a batch, and the name of the stage at each progress."""

    @abstractmethod
    def stage(self, progress: float) -> str:
        """Return the name of the stage at this progress."""

    def conditions(self, progress: float) -> Hashable:
        """Return what the loss at this progress depends on besides model and sequences; losses of equal ones compare.

        An objective that changes within a stage, by its mask rate for example, overrides this.
        """
        return self.stage(progress)

    @property
    def given(self) -> float:
        """Fraction of the targets that stay unchanged in the input; copying alone predicts these."""
        return 0.0

    @property
    def averages_rows(self) -> bool:
        """Whether the loss has a part that is a mean over sequences, so that ``loss`` needs ``per_row``."""
        return False

    @property
    def whole_words(self) -> bool:
        """Whether whole words are masked, so that ``Batch.is_continuation`` is required."""
        return False

    @property
    def count_varies(self) -> bool:
        """Whether the number of positions that the model predicts differs from batch to batch."""
        return False

    @abstractmethod
    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        """Return the ``count`` of ``loss`` for the same arguments, without a forward pass."""

    @abstractmethod
    def loss(
        self, model: Encoder, batch: Batch, *, seed: int, position: int, progress: float, per_row: float = 1.0
    ) -> LossSum:
        """Return the loss of the sequences position, position + 1, ... of the run.

        Args:
            batch: ids int64 [B, L] as torch tensors, without masking.
            per_row: targets of the step divided by its sequences, passed only if ``averages_rows``: the factor of a
                sequence's loss, so that the division by all targets gives a mean over sequences.
        """


@dataclass(frozen=True, kw_only=True)
class CausalThenMasked(Objective):
    """Next-token prediction first, then masked LM with the same weights.

    With masked LM alone the loss can stay at the unigram baseline for minutes; a causal first stage avoids this (MLM
    against CLM, arXiv 2507.00994, section 4). All chosen positions become [MASK] (arXiv 2202.08005, table 3). The
    mask rate falls in a few steps (after arXiv 2305.15096) and is constant between them. Padding is never a target.
    """

    causal_fraction: float = 0.35
    """Fraction of the run with next-token prediction; 0 for masked LM from the start."""
    causal_targets: float = 1.0
    """Fraction of the positions whose next token is predicted; a smaller one makes a step cheaper."""
    mask_rates: tuple[float, ...] = (0.3, 0.25, 0.2, 0.15)
    """Mask rates. The masked stage has as many parts of equal length; at most four."""

    def __post_init__(self) -> None:
        check_option("--objective.causal-fraction", self.causal_fraction, 0 <= self.causal_fraction < 1, "in [0, 1)")
        check_option("--objective.causal-targets", self.causal_targets, 0 < self.causal_targets <= 1, "in (0, 1]")
        if not 1 <= len(self.mask_rates) <= 4 or not all(0 < rate < 1 for rate in self.mask_rates):
            raise UserError(
                f"--objective.mask-rates cannot be {' '.join(map(str, self.mask_rates)) or 'empty'}.",
                "Give one to four fractions between 0 and 1.",
            )

    def stage(self, progress: float) -> str:
        return "causal" if progress < self.causal_fraction else "masked"

    def conditions(self, progress: float) -> Hashable:
        stage = self.stage(progress)
        return stage, self.mask_rate(progress) if stage == "masked" else None

    def mask_rate(self, progress: float) -> float:
        inside = (progress - self.causal_fraction) / (1.0 - self.causal_fraction)
        return self.mask_rates[min(int(max(inside, 0.0) * len(self.mask_rates)), len(self.mask_rates) - 1)]

    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        positions, answers = self._targets(batch, seed=seed, position=position, progress=progress)
        not_padding = self._not_padding(batch, positions, causal=self.stage(progress) == "causal")
        return answers.numel() if not_padding is None else int(not_padding.sum())

    def loss(
        self, model: Encoder, batch: Batch, *, seed: int, position: int, progress: float, per_row: float = 1.0
    ) -> LossSum:
        causal = self.stage(progress) == "causal"
        positions, answers = self._targets(batch, seed=seed, position=position, progress=progress)
        ids = batch.input_ids
        if positions is not None and not causal:
            ids = ids.scatter(1, positions, batch.special.mask)
        features = model.features(
            ids, positions, causal=causal, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
        )
        if positions is None:
            features = features[:, :-1]
        not_padding = self._not_padding(batch, positions, causal=causal)
        return (
            decoder_loss(model, features, answers)
            if not_padding is None
            else decoder_loss(model, features[not_padding], answers[not_padding])
        )

    def _targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> tuple[Tensor | None, Tensor]:
        """Positions [B, K] that predict, None for all but the last, and their targets, [B, K] or [B, L - 1]."""
        ids = batch.input_ids
        if self.stage(progress) != "causal":
            rate = self.mask_rate(progress)
            positions = choose(
                ids, rate, seed=seed, position=position, special=batch.special, attention_mask=batch.attention_mask
            )
            return positions, ids.gather(1, positions)
        if self.causal_targets >= 1.0:
            return None, ids[:, 1:]
        positions = choose(ids[:, 1:], self.causal_targets, seed=seed, position=position, special=batch.special)
        return positions, ids.gather(1, positions + 1)

    def _not_padding(self, batch: Batch, positions: Tensor | None, *, causal: bool) -> Tensor | None:
        """Bool like the targets, False for padding; None if nothing is padded."""
        if batch.attention_mask is None:
            return None
        if positions is None:
            return batch.attention_mask[:, 1:]
        return batch.attention_mask.gather(1, positions + 1 if causal else positions)


def is_special(ids: Tensor, special: SpecialIds) -> Tensor:
    """Bool like ``ids``: whether an id is padding, unknown, [CLS], [SEP] or [MASK]."""
    special_mask = ids == special.pad
    for one in (special.unk, special.cls, special.sep, special.mask):
        special_mask = special_mask | (ids == one)
    return special_mask


def choose(
    ids: Tensor,
    fraction: float,
    *,
    seed: int,
    position: int,
    special: SpecialIds = SpecialIds(),
    attention_mask: Tensor | None = None,
) -> Tensor:
    """Choose K = round(fraction * L) positions of each sequence of ``ids`` int64 [B, L], at least one.

    Special tokens are chosen last. The result, int64 [B, K], is ascending.

    Args:
        attend: bool [B, L], False for padding. For a padded sequence with n other positions only round(fraction * n)
            are chosen, at least one; the rest of its K entries are its first padding position.
    """
    keys = draws(seed, position, ids.shape[0], ids.shape[1], ids.device)
    keys = keys + is_special(ids, special).to(torch.int64) * (1 << 62)
    chosen = keys.argsort(dim=1)[:, : max(1, round(fraction * ids.shape[1]))]
    if attention_mask is not None:
        counts = (attention_mask.sum(dim=1, keepdim=True).double() * fraction).round().clamp(min=1)
        padding = attention_mask.to(torch.uint8).argmin(dim=1, keepdim=True)
        chosen = torch.where(torch.arange(chosen.shape[1], device=ids.device) < counts, chosen, padding)
    return chosen.sort(dim=1).values


def decoder_loss(model: Encoder, features: Tensor, targets: Tensor) -> LossSum:
    """Cross-entropy of features [..., D] against targets int64 [...]."""
    flat = features.reshape(-1, features.shape[-1]).float()
    decoder, compiled = model.decoder, model.compiled_loss if model.training and model.compiled else None
    loss = LinearCrossEntropy.apply(flat, decoder.weight, decoder.bias, targets.reshape(-1), compiled)
    return LossSum(sum=loss, count=targets.numel())
