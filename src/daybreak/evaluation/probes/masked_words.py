"""Accuracy, loss and calibration of a masked language model on held-out text.

The scores are also given by token frequency, by position, by sequence length and by confidence. N tokens of text, K of
them masked; ids and positions are int64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest

from daybreak.core.errors import UserError
from daybreak.evaluation.probes.frozen import BATCH_TOKENS, FrozenModel, Show, longest_row, part_of
from daybreak.evaluation.scoring.metrics import BINS, bin_of, calibration_error
from daybreak.evaluation.tasks.batches import check_ids
from daybreak.schemas.probes import BucketScore, CalibrationBin, MaskedWords, RowLength

MASKED_FRACTION = 0.15
"""Fraction of the tokens that is masked, special tokens excluded."""
SEED = 15_000_001
"""Seed of the masked positions, different from the seeds of pretraining and its held-out evaluation."""
MOST_TOKENS = 1 << 17
"""Most tokens of a text, read from its beginning: about 20,000 masked ones, a minute on a CPU for a small model."""
LONGEST_ROW = 2048
"""Longest sequence, because the cost of attention grows with the square of the length."""
LENGTH_FACTORS = (1, 2, 4)
"""Multiples of the trained length to test, if the model has no table of positions."""
RANKS = ((1, 10), (11, 100), (101, 1000), (1001, 10_000), (10_001, None))
FIRST_POSITIONS = 16
"""Width of the first range of positions; each later one reaches to twice the end of the one before."""
CONFIDENCE = 0.95
"""Confidence level of the intervals."""

Range = tuple[int, int | None]
"""First and last, both included; None for no end."""


@dataclass(frozen=True)
class HeldOutText:
    """Text as a stream of token ids; the separator ends each document."""

    name: str
    ids: np.ndarray
    """int64[N]."""
    training_counts: np.ndarray | None
    """Count of each id in the training text; None if it is not known."""


@dataclass(frozen=True)
class Guesses:
    """The predictions for the masked tokens; arrays over K."""

    right: np.ndarray
    """bool."""
    losses: np.ndarray
    """float64, nats."""
    confidences: np.ndarray
    """float64, the probability of the prediction."""
    positions: np.ndarray
    """Position in the sequence; the first token has position 0."""


def token_stream(tokenizer: Any, texts: Iterable[str]) -> np.ndarray:
    """Encode documents until there are MOST_TOKENS ids, int64."""
    found: list[int] = []
    for text in texts:
        # verbose=False, because a document may be longer than a sequence. Special tokens in the text are plain text.
        made = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        found += [*made["input_ids"], tokenizer.sep_token_id]
        if len(found) >= MOST_TOKENS:
            break
    return np.array(found[:MOST_TOKENS], dtype=np.int64)


def masked_positions(ids: np.ndarray, special: Sequence[int]) -> np.ndarray:
    """Return the positions to mask: MASKED_FRACTION of the tokens that are not special, drawn with SEED, sorted."""
    words = np.flatnonzero(~np.isin(ids, list(special)))
    count = round(MASKED_FRACTION * len(words))
    if count == 0:
        raise UserError(f"The text has {len(words)} tokens, too few to mask some.", "Give more text with --text.")
    return np.sort(np.random.default_rng(SEED).permutation(words)[:count])


def probe_masked_words(frozen: FrozenModel, text: HeldOutText, show: Show) -> MaskedWords:
    """Mask MASKED_FRACTION of the tokens of ``text`` and evaluate the predictions.

    A sequence is [CLS] and the next tokens of the stream, across document borders, as in Daybreak's pretraining.
    Sequences longer than the trained length are also tested if the model has no table of positions.

    ``frozen`` is from ``load_masked_model``.
    """
    special = frozen.tokenizer.all_special_ids
    places = masked_positions(text.ids, special)
    check_ids([text.ids.tolist()], frozen.vocabulary)
    lengths = row_lengths(frozen.length, longest_row(frozen.model), len(text.ids))
    runs = [
        (length, guess(frozen, text.ids, places, length, part_of(show, done, len(lengths))))
        for done, length in enumerate(lengths)
    ]
    first = runs[0][1]
    counts = np.bincount(text.ids, minlength=frozen.vocabulary)
    ranks = token_ranks(counts if text.training_counts is None else text.training_counts, special)
    answers = ranks[text.ids[places]]
    return MaskedWords(
        text=text.name,
        tokens=len(text.ids),
        trained_length=frozen.length,
        ranks_from="this text" if text.training_counts is None else "training text",
        constant=float((answers == 1).mean()),
        lengths=[
            RowLength(
                length=length,
                times_trained=max(1, length // frozen.length),
                positions=bucket_scores(guesses.positions, position_ranges(length), guesses),
                **_scored(guesses.right, guesses.losses),
            )
            for length, guesses in runs
        ],
        frequency=bucket_scores(answers, RANKS, first),
        calibration=calibration_bins(first.confidences, first.right),
        calibration_error=calibration_error(first.confidences, first.right),
    )


def row_lengths(trained: int, table: int | None, tokens: int) -> list[int]:
    """Return the sequence lengths to test: the trained length, and multiples that text, table and cost allow."""
    first = min(trained, LONGEST_ROW)
    most = LONGEST_ROW if table is None else min(LONGEST_ROW, table)
    wanted = [times * trained for times in LENGTH_FACTORS[1:]]
    return [first, *(length for length in wanted if length <= most and length - 1 <= tokens)]


def guess(frozen: FrozenModel, ids: np.ndarray, places: np.ndarray, length: int, show: Show) -> Guesses:
    """Split the stream into sequences of ``length`` tokens, the last one possibly shorter, and predict."""
    width = length - 1
    is_masked = np.zeros(len(ids), bool)
    is_masked[places] = True
    shown = np.where(is_masked, frozen.tokenizer.mask_token_id, ids)
    rows = max(1, BATCH_TOKENS // length)
    whole = len(ids) // width * width
    starts = [*range(0, whole, rows * width), *([whole] if whole < len(ids) else [])]
    parts = []
    for start, stop in zip(starts, [*starts[1:], len(ids)]):
        across = min(width, stop - start)
        first = ((0, 0), (1, 0))  # [CLS] opens every sequence
        batch = np.pad(shown[start:stop].reshape(-1, across), first, constant_values=frozen.tokenizer.cls_token_id)
        masked = np.pad(is_masked[start:stop].reshape(-1, across), first)
        parts.append(_evaluate(frozen, batch, masked, ids[start:stop][is_masked[start:stop]]))
        show(stop / len(ids))
    right, losses, confidences = (np.concatenate(found) for found in zip(*parts))
    return Guesses(right, losses, confidences, positions=places % width + 1)


@torch.inference_mode()
def _evaluate(
    frozen: FrozenModel, rows: np.ndarray, masked: np.ndarray, answers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return right, losses and confidences of the positions where ``masked`` is true, row by row."""
    where = torch.from_numpy(masked).to(frozen.device)

    def keep_masked(module: Any, inputs: Any, outputs: Any) -> Any:
        outputs.last_hidden_state = outputs.last_hidden_state[where][None]
        return outputs

    # Apply the head to the masked positions only: it is most of the work of a small model.
    hook = frozen.model.base_model.register_forward_hook(keep_masked)
    try:
        logits = frozen.model(input_ids=torch.from_numpy(rows).to(frozen.device)).logits[0].float()
    finally:
        hook.remove()
    total = logits.logsumexp(dim=1)
    targets = torch.from_numpy(answers).to(frozen.device)
    best, guesses = logits.max(dim=1)
    losses = total - logits.gather(1, targets[:, None])[:, 0]
    found = (guesses == targets, losses.double(), (best - total).double().exp())
    right, nats, confidences = (each.cpu().numpy() for each in found)
    return right, nats, confidences


def token_ranks(counts: np.ndarray, special: Sequence[int]) -> np.ndarray:
    """Return int64[V]: rank 1 for the most frequent id; ties by id; special ids last."""
    counts = counts.astype(np.int64)
    counts[[id for id in special if id < len(counts)]] = -1
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(1, len(counts) + 1)
    return ranks


def position_ranges(length: int) -> list[Range]:
    """Return the ranges 0-15, 16-31, 32-63, 64-127 and so on up to ``length``."""
    found: list[Range] = []
    first, after = 0, FIRST_POSITIONS
    while first < length:
        found.append((first, min(after, length) - 1))
        first, after = after, 2 * after
    return found


def interval(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval (Wilson 1927) of ``right`` out of ``count``, at least 1."""
    found = binomtest(right, count).proportion_ci(CONFIDENCE, method="wilson")
    return float(found.low), float(found.high)


def bucket_scores(values: np.ndarray, ranges: Sequence[Range], guesses: Guesses) -> list[BucketScore]:
    """Score the predictions in each range of ``values``; empty ranges are left out."""
    scores = []
    for first, last in ranges:
        inside = (values >= first) & (values <= (np.inf if last is None else last))
        if inside.any():
            scores.append(BucketScore(first=first, last=last, **_scored(guesses.right[inside], guesses.losses[inside])))
    return scores


def _scored(right: np.ndarray, losses: np.ndarray) -> dict[str, Any]:
    low, high = interval(int(right.sum()), len(right))
    return {
        "count": len(right), "accuracy": float(right.mean()), "low": low, "high": high, "loss": float(losses.mean())
    }  # fmt: skip


def calibration_bins(confidences: np.ndarray, right: np.ndarray) -> list[CalibrationBin]:
    """Return the bins of ``metrics.calibration_error`` without the empty ones."""
    numbers = bin_of(confidences)
    return [
        CalibrationBin(
            low=number / BINS,
            high=(number + 1) / BINS,
            count=int((numbers == number).sum()),
            confidence=float(confidences[numbers == number].mean()),
            accuracy=float(right[numbers == number].mean()),
        )
        for number in np.unique(numbers).tolist()
    ]
