"""Held-out evaluation: the same positions for every recipe on the same data, 15 % masked, all by [MASK]."""

from __future__ import annotations

import statistics
import time
from dataclasses import astuple, dataclass

import numpy as np
import torch
from torch import Tensor

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder
from daybreak.schemas.run import SpecialIds, ValidationRecord
from daybreak.training.clock import Tick
from daybreak.training.objectives.masked import HeldOutResult, Masked
from daybreak.training.objectives.objective import choose

RATE = 0.15
SEED = 15_000_000
"""Seed of the masks; no run uses it, so no recipe can train on the same draw."""
ROWS = 512
"""Held-out sequences of the final validation; all sequences if there are fewer."""
BATCH_ROWS = 16
"""Sequences per forward pass; an interim validation has at least two such batches, and the first one is a warm-up."""


@dataclass(frozen=True)
class RecipeHeldOut:
    """Held-out sequences in the format and masking of the recipe (BERT: pairs with next-sentence labels)."""

    objective: Masked
    batch: Batch

    def evaluate(self, model: Encoder) -> HeldOutResult:
        """Evaluate ``model`` on all of them."""
        return self.objective.evaluate(model, self.batch, seed=SEED, position=0)


def words_only(counts: np.ndarray, special: SpecialIds) -> np.ndarray:
    """Return the counts of all ids, float64[V], with 0 for special tokens, which are never masked."""
    words = counts.astype(np.float64)
    words[list(astuple(special))] = 0.0
    return words


class Validation:
    """Measures a model on fixed masked positions.

    Args:
        batch: held-out sequences, [R, L] token ids that start with [CLS].
        unigram_counts: occurrences of each id in the training split, [V].
        own: held-out sequences in the format of the recipe, evaluated at the end; None if it equals that of ``batch``.
    """

    def __init__(
        self, batch: Batch, unigram_counts: np.ndarray, device: torch.device, own: RecipeHeldOut | None = None
    ):
        ids = torch.from_numpy(batch.input_ids).to(device)
        positions = choose(ids, RATE, seed=SEED, position=0, special=batch.special)
        masked = ids.scatter(1, positions, batch.special.mask)
        # Interim validations read the first sequences: shuffled, they represent all documents.
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(SEED)).to(device)
        self._masked, self._positions = masked[order], positions[order]
        self._answers = ids.gather(1, positions)[order]
        counts = words_only(unigram_counts, batch.special)
        smooth = torch.from_numpy(counts) + 1.0
        self._unigram = -(smooth / smooth.sum()).log().to(torch.float32).to(device)
        self._most_frequent = int(counts.argmax())
        self._own = own
        self.rows, self.length = ids.shape
        self.row_seconds = 0.0
        """Seconds per sequence in the last evaluation, without its first batch, which warms up memory and kernels."""
        self.special = batch.special

    def whole_seconds(self, row: float) -> float:
        """Seconds of the final validation if one sequence takes ``row`` seconds."""
        own_positions = (
            len(self._own.batch) * self._own.batch.input_ids.shape[1] / self._masked.shape[1] if self._own else 0
        )
        return row * (self.rows + own_positions)

    @property
    def positions(self) -> int:
        """Masked positions of the final validation."""
        return self._answers.numel()

    @property
    def unigram_loss(self) -> float:
        """Loss of the unigram baseline over all positions, nats."""
        return float(self._unigram[self._answers].double().mean())

    def cases(self) -> tuple[Tensor, Tensor, Tensor]:
        """Masked sequences [R, L], the masked positions [R, K], and their original tokens [R, K]."""
        return self._masked, self._positions, self._answers

    def evaluate(self, model: Encoder) -> ValidationRecord:
        """Evaluate ``model`` on all sequences, outside of a run."""
        now = Tick(0.0, 0.0)
        return self.measure(model.eval(), rows=self.rows, step=0, tokens=0, tick=now, final=False)

    def measure(
        self, model: Encoder, *, rows: int, step: int, tokens: int, tick: Tick, final: bool, interim_rows: int = 0
    ) -> ValidationRecord:
        """Evaluate ``model`` on the first ``rows`` sequences, in float32 regardless of the training precision.

        Args:
            interim_rows: sequences of the interim validations, which are also measured on their own; 0 for none.
        """
        started = time.monotonic()
        predictions: list[Tensor] = []
        seconds_per_row: list[float] = []
        losses: list[Tensor] = []
        total = torch.zeros((), dtype=torch.float64)
        answers = self._answers[:rows]
        with torch.inference_mode():
            for start in range(0, rows, BATCH_ROWS):
                batch_started, batch = time.monotonic(), slice(start, min(start + BATCH_ROWS, rows))
                logits = model.logits(self._masked[batch], self._positions[batch]).float()
                picked = logits.gather(2, self._answers[batch][:, :, None])[:, :, 0]
                loss = logits.logsumexp(dim=2) - picked
                total += loss.sum().double().cpu()
                losses.append(loss.double().mean(dim=1).cpu())
                predictions.append(logits.argmax(dim=2))
                seconds_per_row.append((time.monotonic() - batch_started) / (batch.stop - batch.start))
        prediction = torch.cat(predictions)
        correct = (prediction == answers).double()
        self.row_seconds = statistics.median(seconds_per_row[1:] or seconds_per_row)
        own = self._own.evaluate(model) if final and self._own else None
        return ValidationRecord(
            step=step,
            elapsed=tick.elapsed,
            progress=tick.progress,
            tokens=tokens,
            loss=float(total / answers.numel()),
            accuracy=float(correct.mean()),
            positions=answers.numel(),
            distinct=int(prediction.unique().numel()),
            unigram_loss=float(self._unigram[answers].double().mean()),
            most_frequent_fraction=float((answers == self._most_frequent).double().mean()),
            final=final,
            seconds=time.monotonic() - started,
            own_loss=own.loss if own else None,
            own_accuracy=own.accuracy if own else None,
            next_loss=own.next_loss if own else None,
            next_accuracy=own.next_accuracy if own else None,
            interim_loss=float(torch.cat(losses)[:interim_rows].mean()) if interim_rows else None,
            interim_accuracy=float(correct[:interim_rows].mean()) if interim_rows else None,
        )
