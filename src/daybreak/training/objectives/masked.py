"""Masked language modeling in the variants of BERT and its successors, with or without next-sentence prediction.

B sequences, L positions, K masked positions of a sequence, N targets of all sequences, D hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from daybreak.core.batch import Batch
from daybreak.core.encoder import Encoder, LossSum
from daybreak.core.errors import UserError, check_option
from daybreak.core.rng import draws
from daybreak.core.serialization import check_choice
from daybreak.training.objectives.loss import CHUNK
from daybreak.training.objectives.objective import Objective, decoder_loss, is_special

COUNTS = ("fixed", "bernoulli", "rounded")
WHICH, SPLIT, REPLACEMENT = 1 << 40, 2 << 40, 3 << 40
"""Offsets of the seed, so that the three random choices for a position are independent of each other and of the
data."""
RANGE = 1 << 62
"""Exclusive upper limit of the draws."""
EVALUATION_ROWS = 32
"""Held-out sequences of one forward pass."""


@dataclass(frozen=True, kw_only=True)
class HeldOutResult:
    """Means over held-out sequences."""

    loss: float
    """Masked-LM loss, nats."""
    accuracy: float
    next_loss: float | None = None
    """Next-sentence loss, nats; None, like ``next_accuracy``, without next-sentence prediction."""
    next_accuracy: float | None = None


@dataclass(frozen=True)
class MaskedPositions:
    """Chosen positions of a batch, padded to the largest number in a sequence."""

    places: Tensor
    """int64 [B, K], ascending within the valid ones; never empty, because models need at least one."""
    valid: Tensor | None
    """int64 [N], indices of the valid ones among the B * K entries, ascending; None if all are valid."""

    def pick(self, values: Tensor) -> Tensor:
        """Values [B, K, ...] -> those of the valid entries, [N, ...]."""
        flat = values.flatten(0, 1)
        return flat if self.valid is None else flat.index_select(0, self.valid)


@dataclass(frozen=True, kw_only=True)
class Masked(Objective):
    """Masked LM (Devlin et al., arXiv 1810.04805, section 3.1), optionally with next-sentence prediction.

    ``count`` sets how many of a sequence's L positions are chosen:

    - ``fixed``: round(rate * L), as in crammed-bert, where L excludes padding outside the attention mask. Exactly
      round(split[0] * n) of these become [MASK], those up to round((split[0] + split[1]) * n) a random id, and the rest
      stay (n = 32: 26, 3, 3).
    - ``bernoulli``: each position independently with probability ``rate``; each then draws from ``split``
      independently.
    - ``rounded``: min(most, max(1, round(rate * n))) with n the length without padding, special tokens included, as in
      the original BERT; each then draws from ``split`` independently.

    A sequence with fewer candidates masks all of them. With ``whole_words`` words are chosen: each word independently
    for ``bernoulli``, otherwise in random order, where a word that would exceed the number is skipped and the next one
    tried, as in the original. A continuation token after a special token counts as a word of its own. Random ids come
    from the whole vocabulary.
    """

    rate: float = 0.15
    """Fraction of the positions that are predicted."""
    count: str = "fixed"
    """How many positions are chosen: fixed (the same number in each sequence), bernoulli (each with the probability
    ``rate``) or rounded (at most ``most``)."""
    split: tuple[float, ...] = (0.8, 0.1, 0.1)
    """Fractions of the chosen positions that become [MASK], become a random id, and stay."""
    protect_special: bool = True
    """Never choose padding, [UNK], [CLS], [SEP] or [MASK]. Padding outside the attention mask is never chosen."""
    whole_words: bool = False
    """Mask all tokens of a word or none."""
    most: int = 0
    """Maximum number of chosen positions of a sequence, for ``rounded``; 0 for no limit."""
    next_sentence: bool = False
    """Add the next-sentence loss as a mean over sequences."""
    next_sentence_weight: float = 1.0
    """Factor of the next-sentence loss. BERT adds it unweighted."""

    def __post_init__(self) -> None:
        weight = self.next_sentence_weight
        check_option("--objective.next-sentence-weight", weight, 0 < weight <= 1, "in (0, 1]")
        check_option("--objective.rate", self.rate, 0 < self.rate < 1, "between 0 and 1")
        check_choice("--objective.count", self.count, COUNTS)
        if len(self.split) != 3 or min(self.split) < 0 or abs(sum(self.split) - 1.0) > 1e-6:
            raise UserError(
                f"--objective.split is {self.split}, but it takes three fractions that add up to 1.",
                "Give the fractions that become [MASK], become a random token, and stay.",
            )
        if self.most < 0 or (self.most and self.count != "rounded"):
            raise UserError(
                f"--objective.most is {self.most} with the count '{self.count}'.",
                "Give a positive limit with --objective.count rounded, or 0.",
            )

    def stage(self, progress: float) -> str:
        return "masked"

    @property
    def given(self) -> float:
        return self.split[2]

    @property
    def averages_rows(self) -> bool:
        return self.next_sentence

    @property
    def count_varies(self) -> bool:
        return self.count != "fixed" or self.protect_special or self.whole_words

    def targets(self, batch: Batch, *, seed: int, position: int, progress: float) -> int:
        if self._always_full(batch):
            return len(batch) * self._fixed(batch.input_ids.shape[1])
        return int(self.chosen(batch, seed=seed, position=position).sum())

    def loss(
        self, model: Encoder, batch: Batch, *, seed: int, position: int, progress: float, per_row: float = 1.0
    ) -> LossSum:
        states, first, answers = self._read(model, batch, seed=seed, position=position)
        masked = decoder_loss(model, model.transform(states), answers)
        if first is None:
            return masked
        following = F.cross_entropy(model.next_logits(first).float(), batch.next_sentence_label, reduction="sum")
        return LossSum(
            sum=masked.sum + per_row * self.next_sentence_weight * following,
            count=masked.count,
            masked=masked.sum.detach(),
        )

    def evaluate(self, model: Encoder, batch: Batch, *, seed: int, position: int) -> HeldOutResult:
        """Evaluate ``model``, already in evaluation mode, on masks of (seed, position), in float32."""
        nats, next_nats = 0.0, 0.0
        hits = next_hits = predicted = 0
        with torch.inference_mode(), torch.autocast(batch.input_ids.device.type, enabled=False):
            for start in range(0, len(batch), EVALUATION_ROWS):
                rows = batch[start : start + EVALUATION_ROWS]
                states, first, answers = self._read(model, rows, seed=seed, position=position + start)
                predicted += len(answers)
                nats_of_rows = 0.0  # batch by batch, because the order of a sum decides its last bit
                for part, targets in zip(states.split(CHUNK), answers.split(CHUNK)):
                    logits = model.decoder(model.transform(part))
                    nats_of_rows += float(F.cross_entropy(logits, targets, reduction="sum"))
                    hits += int((logits.argmax(dim=1) == targets).sum())
                nats += nats_of_rows
                if first is not None:
                    logits = model.next_logits(first)
                    next_nats += float(F.cross_entropy(logits, rows.next_sentence_label, reduction="sum"))
                    next_hits += int((logits.argmax(dim=1) == rows.next_sentence_label).sum())
        result = HeldOutResult(loss=nats / max(predicted, 1), accuracy=hits / max(predicted, 1))
        if not self.next_sentence:
            return result
        return replace(result, next_loss=next_nats / len(batch), next_accuracy=next_hits / len(batch))

    def _read(self, model: Encoder, batch: Batch, *, seed: int, position: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """One forward pass: states [N, D] of the targets, states [B, D] of [CLS] or None, and the answers [N]."""
        chosen = self.chosen(batch, seed=seed, position=position)
        ids = self.replaced(batch, chosen, vocabulary=model.vocabulary, seed=seed, position=position)
        targets = self._positions(batch, chosen)
        positions = F.pad(targets.places, (1, 0)) if self.next_sentence else targets.places
        states = model.states(ids, positions, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids)
        answers = targets.pick(batch.input_ids.gather(1, targets.places))
        if self.next_sentence:
            return targets.pick(states[:, 1:]), states[:, 0], answers
        return targets.pick(states), None, answers

    def chosen(self, batch: Batch, *, seed: int, position: int) -> Tensor:
        """Return bool [B, L], True at the positions that the model predicts."""
        candidates = self._candidates(batch)
        rows, length = candidates.shape
        draw = draws(seed + WHICH, position, rows, length, candidates.device)
        words = word_starts(candidates, batch.is_continuation) if self.whole_words else None
        if self.count == "bernoulli":
            yes = draw < int(self.rate * RANGE)
            return candidates & (yes if words is None else yes.gather(1, words))
        count = self._count(batch)
        if words is None:
            return candidates & (ranks(draw, candidates) < count)
        sizes = torch.zeros_like(words).scatter_add_(1, words, candidates.to(torch.int64))
        return candidates & select_words(draw, sizes, count).gather(1, words)

    def replaced(self, batch: Batch, chosen: Tensor, *, vocabulary: int, seed: int, position: int) -> Tensor:
        """Return int64 [B, L]: the input ids, with chosen positions masked, replaced or unchanged."""
        rows, length = chosen.shape
        draw = draws(seed + SPLIT, position, rows, length, chosen.device)
        masked, swapped = self.split[0], self.split[0] + self.split[1]
        if self.count == "fixed":
            number = chosen.sum(dim=1, keepdim=True).double()
            rank = ranks(draw, chosen)
            hide, change = rank < (number * masked).round(), rank < (number * swapped).round()
        else:
            hide, change = draw < int(masked * RANGE), draw < int(swapped * RANGE)
        other = draws(seed + REPLACEMENT, position, rows, length, chosen.device) % vocabulary
        return torch.where(chosen & hide, batch.special.mask, torch.where(chosen & change, other, batch.input_ids))

    def _candidates(self, batch: Batch) -> Tensor:
        """Bool [B, L], True where a position may be chosen."""
        seen = (
            torch.ones_like(batch.input_ids, dtype=torch.bool) if batch.attention_mask is None else batch.attention_mask
        )
        return seen & ~is_special(batch.input_ids, batch.special) if self.protect_special else seen

    def _count(self, batch: Batch) -> Tensor | int:
        """Number of positions to choose: int64 [B, 1], or one number for all sequences."""
        if self.count == "fixed" and batch.attention_mask is None:
            return self._fixed(batch.input_ids.shape[1])
        present = batch.input_ids != batch.special.pad if batch.attention_mask is None else batch.attention_mask
        count = (present.sum(dim=1, keepdim=True).double() * self.rate).round().to(torch.int64)
        return count.clamp(min=1, max=self.most or None)

    def _fixed(self, length: int) -> int:
        return max(1, round(self.rate * length))

    def _always_full(self, batch: Batch) -> bool:
        """Whether every sequence has the same number of masked positions for any content, so that shapes are static."""
        return not self.count_varies and batch.attention_mask is None

    def _positions(self, batch: Batch, chosen: Tensor) -> MaskedPositions:
        order = chosen.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
        if self._always_full(batch):
            return MaskedPositions(order[:, : self._fixed(chosen.shape[1])], None)
        number = chosen.sum(dim=1)
        # One transfer from the device for all three; with a known size nonzero does not wait for the device.
        most, least, total = torch.stack((number.max(), number.min(), number.sum())).tolist()
        places = order[:, : max(1, most)]
        if least == most > 0:
            return MaskedPositions(places, None)
        return MaskedPositions(places, torch.nonzero_static(chosen.gather(1, places).flatten(), size=total)[:, 0])


def ranks(draw: Tensor, among: Tensor) -> Tensor:
    """Return int64 [B, L]: the rank of each position in a random order in which positions with ``among`` come first.

    Args:
        draw: int64 [B, L] below RANGE.
        among: bool [B, L].
    """
    return torch.where(among, draw, RANGE).argsort(dim=1, stable=True).argsort(dim=1)


def word_starts(candidates: Tensor, is_continuation: Tensor) -> Tensor:
    """Return int64 [B, L]: where the word of each position starts in its sequence.

    Args:
        candidates: bool [B, L]; other positions are words of their own and end a word.
        continues: bool [B, L], True for a token that continues a word.
    """
    before = F.pad(candidates[:, :-1], (1, 0))
    inside = is_continuation & candidates & before
    here = torch.arange(candidates.shape[1], device=candidates.device).expand_as(candidates)
    return here.masked_fill(inside, 0).cummax(dim=1).values


def select_words(draw: Tensor, sizes: Tensor, limit: Tensor | int) -> Tensor:
    """Take words in random order, skipping each that no longer fits: bool [B, L], True where a taken word starts.

    Args:
        draw: int64 [B, L], orders the words of a sequence.
        sizes: int64 [B, L], tokens of the word that starts at a position, 0 where none starts.
        limit: maximum number of tokens, for all sequences or int64 [B, 1].
    """
    order = draw.argsort(dim=1)
    ordered = sizes.gather(1, order)
    taken = ordered > 0
    place = torch.arange(sizes.shape[1], device=sizes.device)
    while True:
        # Take all up to the first that does not fit; drop it and all later ones larger than the rest at that point.
        total = (ordered * taken).cumsum(dim=1)
        over = taken & (total > limit)
        if not over.any():
            return torch.zeros_like(taken).scatter_(1, order, taken)
        first = over.to(torch.uint8).argmax(dim=1, keepdim=True)
        left = limit - (total - ordered).gather(1, first)
        taken = taken & ~(over.any(dim=1, keepdim=True) & (place >= first) & (ordered > left))
