"""Held-out evaluation: the same positions for every recipe on the same data, 15 % masked, all as [MASK]."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder
from daybreak.schemas.run import ValidationRecord
from daybreak.training.clock import Tick
from daybreak.training.objectives.masked import Judged, Masked
from daybreak.training.objectives.objective import mask_rows

RATE = 0.15
SEED = 15_000_000
"""Of the masks; no run's seed, so that no recipe can train on the same draw."""
ROWS = 512
"""Held-out rows that the final validation reads, or all where there are fewer."""
BATCH_ROWS = 16
"""At a time: at least two of them in an interim validation, of which the first one warms up."""


@dataclass(frozen=True)
class OwnRows:
    """What a recipe trains on, held out: its own rows, masked in its own way (BERT: pairs, with their labels)."""

    objective: Masked
    batch: Batch

    def evaluate(self, model: Encoder) -> Judged:
        """Judge ``model`` on all of them."""
        return self.objective.evaluate(model, self.batch, seed=SEED, position=0)


class Validation:
    """Measures a model on fixed masked positions.

    Args:
        batch: R held-out rows of L ids, opened by [CLS].
        unigram_counts: occurrences of each id in the training split, [V].
        own: rows of the recipe's own kind, evaluated at the end; None where the recipe trains on rows like these.
    """

    def __init__(self, batch: Batch, unigram_counts: np.ndarray, device: torch.device, own: OwnRows | None = None):
        ids = torch.from_numpy(batch.ids).to(device)
        masked, slots = mask_rows(ids, RATE, seed=SEED, position=0, special=batch.special)
        # Interim validations read the first rows: shuffled, these speak for all documents, not for the first few.
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(SEED)).to(device)
        self._masked, self._slots = masked[order], slots[order]
        self._answers = ids.gather(1, slots)[order]
        smooth = torch.from_numpy(unigram_counts.astype(np.float64)) + 1.0
        self._unigram = -(smooth / smooth.sum()).log().to(torch.float32).to(device)
        self._most_frequent = int(unigram_counts.argmax())
        self._own = own
        self.rows, self.length = ids.shape
        self.row_seconds = 0.0
        """What a row took in the last measurement, its first rows left out: they wait for memory and for kernels."""
        self.special = batch.special

    def whole_seconds(self, row: float) -> float:
        """How long the final validation takes where a row takes ``row`` seconds."""
        own = len(self._own.batch) * self._own.batch.ids.shape[1] / self._masked.shape[1] if self._own else 0
        return row * (self.rows + own)

    @property
    def unigram_loss(self) -> float:
        """Loss of word frequencies alone on all positions, nats."""
        return float(self._unigram[self._answers].double().mean())

    def cases(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows with [MASK] in place [R, L], the masked positions [R, K], and what stood there [R, K]."""
        return self._masked, self._slots, self._answers

    def evaluate(self, model: Encoder) -> ValidationRecord:
        """Judge ``model`` on all rows, outside of any run."""
        now = Tick(0.0, 0.0)
        return self.measure(model.eval(), rows=self.rows, step=0, tokens=0, tick=now, final=False)

    def measure(
        self, model: Encoder, *, rows: int, step: int, tokens: int, tick: Tick, final: bool, interim_rows: int = 0
    ) -> ValidationRecord:
        """Judge ``model`` on the first ``rows`` rows, in float32 whatever it trains in: so it will be used.

        Args:
            interim_rows: rows of the interim validations, whose loss is reported beside that of all; 0 for none.
        """
        begun = time.monotonic()
        guesses: list[Tensor] = []
        paces: list[float] = []
        losses: list[Tensor] = []
        total = torch.zeros((), dtype=torch.float64)
        answers = self._answers[:rows]
        with torch.inference_mode():
            for start in range(0, rows, BATCH_ROWS):
                since, part = time.monotonic(), slice(start, min(start + BATCH_ROWS, rows))
                logits = model.logits(self._masked[part], self._slots[part]).float()
                picked = logits.gather(2, self._answers[part][:, :, None])[:, :, 0]
                loss = logits.logsumexp(dim=2) - picked
                total += loss.sum().double().cpu()
                losses.append(loss.double().mean(dim=1).cpu())
                guesses.append(logits.argmax(dim=2))
                paces.append((time.monotonic() - since) / (part.stop - part.start))
        guess = torch.cat(guesses)
        self.row_seconds = statistics.median(paces[1:] or paces)
        own = self._own.evaluate(model) if final and self._own else None
        return ValidationRecord(
            step=step,
            elapsed=tick.elapsed,
            progress=tick.progress,
            tokens=tokens,
            loss=float(total / answers.numel()),
            accuracy=float((guess == answers).double().mean()),
            positions=answers.numel(),
            distinct=int(guess.unique().numel()),
            unigram_loss=float(self._unigram[answers].double().mean()),
            most_frequent_fraction=float((answers == self._most_frequent).double().mean()),
            final=final,
            seconds=time.monotonic() - begun,
            own_loss=own.loss if own else None,
            own_accuracy=own.accuracy if own else None,
            next_loss=own.next_loss if own else None,
            next_accuracy=own.next_accuracy if own else None,
            interim_loss=float(torch.cat(losses)[:interim_rows].mean()) if interim_rows else None,
        )
