"""An objective of your own: masked words that lie in spans (as in SpanBERT, Joshi et al. 2019, arXiv 1907.10529).

    daybreak pretrain examples/own_objective.py --data DATA --budget 15m --out runs/spans

Each sequence is cut into spans of ``span`` positions with a random offset. Spans are masked until a fraction ``rate``
of the sequence is masked. The paper draws the lengths of spans; here all but the first and the last are equally long.

B sequences, L positions, K targets per sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import UserError
from daybreak.core.rng import draws
from daybreak.data.tokenizers.tokenizer import WordPiece
from daybreak.models.modern import ModernEncoder
from daybreak.recipe import Recipe
from daybreak.training.objectives.objective import Objective, decoder_loss, is_special
from daybreak.training.optim.optimizers import AdamW
from daybreak.training.schedule import Trapezoid

LAST = 1 << 62
"""Larger than every draw: a position to which it is added is chosen last."""


@dataclass(frozen=True, kw_only=True)
class MaskedSpans(Objective):
    """Masked language modeling on spans; every field is a flag: --objective.span 5."""

    rate: float = 0.15
    """Fraction of the positions that are predicted."""
    span: int = 3
    """Positions that are masked together."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1 or self.span < 1:
            raise UserError("--objective.rate is between 0 and 1, and --objective.span at least 1.", "Correct it.")

    def stage(self, progress: float) -> str:
        return "masked"

    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        positions = self.positions(batch, seed=seed, position=position)
        return (
            positions.numel() if batch.attention_mask is None else int(batch.attention_mask.gather(1, positions).sum())
        )

    def loss(
        self, model: Encoder, batch: Batch, *, seed: int, position: int, progress: float, per_row: float = 1.0
    ) -> LossSum:
        positions = self.positions(batch, seed=seed, position=position)
        masked = batch.input_ids.scatter(1, positions, batch.special.mask)
        features = model.features(
            masked, positions, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
        )
        answers = batch.input_ids.gather(1, positions)
        if batch.attention_mask is None:
            return decoder_loss(model, features, answers)
        seen = batch.attention_mask.gather(1, positions)  # padding is not a target
        return decoder_loss(model, features[seen], answers[seen])

    def positions(self, batch: Batch, *, seed: int, position: int) -> Tensor:
        """Return the masked positions, int64 [B, K], ascending; special tokens only if no other token is left.

        It depends only on (seed, position), so a resumed run draws the same positions.
        """
        rows, length = batch.input_ids.shape
        pieces = (length + self.span - 2) // self.span + 1
        drawn = draws(seed, position, rows, 1 + pieces, batch.input_ids.device)
        places = torch.arange(length, device=batch.input_ids.device)
        piece = (places + drawn[:, :1] % self.span) // self.span
        order = drawn[:, 1:].gather(1, piece) + is_special(batch.input_ids, batch.special).to(torch.int64) * LAST
        chosen = order.argsort(dim=1, stable=True)[:, : max(1, round(self.rate * length))]
        return chosen.sort(dim=1).values


recipe = Recipe(
    name="own-objective",
    tokenizer=WordPiece(vocabulary=8_192),
    model=ModernEncoder(layers=4, hidden_size=256, heads=4, intermediate_size=512, init_std=0.0625),
    objective=MaskedSpans(),
    optimizer=AdamW(lr=2e-3),
    schedule=Trapezoid(warmup=0.02, decay=0.6),
    length=128,
    batch=16,
    budget="15m",
)
