"""Held-out text with tokens hidden: what a masked language model guesses, how often rightly, and how sure it is.

Counted by how common the token is, by where it stands in its row, by the row's length, and by the guess's confidence.
N tokens of text, K of them hidden; ids and places are int64.
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

SHARE = 0.15
"""Of the tokens, special ones left out."""
SEED = 15_000_001
"""Draws which are hidden; no seed of pretraining or of its held-out evaluation."""
MOST_TOKENS = 1 << 17
"""Tokens that are read of a text, from its beginning: some 20,000 hidden ones, in a minute on a CPU if small."""
LONGEST_ROW = 2048
"""Rows are never longer, whatever a model allows: attention's cost grows with their square."""
STRETCHES = (1, 2, 4)
"""Times the trained length, as far as positions have no table."""
RANKS = ((1, 10), (11, 100), (101, 1000), (1001, 10_000), (10_001, None))
FIRST_POSITIONS = 16
"""Width of the first range of positions; each later one reaches to twice the end of the one before."""
CONFIDENCE = 0.95
"""Of the intervals."""

Range = tuple[int, int | None]
"""First and last, both included; None for no end."""


@dataclass(frozen=True)
class HeldOutText:
    """Text as a stream of ids, each document closed by the separator, as prepared data hold it."""

    name: str
    ids: np.ndarray
    """int64[N]."""
    training_counts: np.ndarray | None
    """Occurrences of each id in the text that the model was trained on; None where that is not known."""


@dataclass(frozen=True)
class Guesses:
    """What became of each hidden token; arrays over K."""

    right: np.ndarray
    """bool."""
    losses: np.ndarray
    """float64, nats."""
    confidences: np.ndarray
    """float64, the chance of the best guess."""
    positions: np.ndarray
    """In the row; the token that opens it has position 0."""


def token_stream(tokenizer: Any, texts: Iterable[str]) -> np.ndarray:
    """Encode documents until there are MOST_TOKENS ids, int64."""
    found: list[int] = []
    for text in texts:
        # verbose=False: a document may be longer than a row. A special token that the text spells out is text.
        made = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        found += [*made["input_ids"], tokenizer.sep_token_id]
        if len(found) >= MOST_TOKENS:
            break
    return np.array(found[:MOST_TOKENS], dtype=np.int64)


def hidden_places(ids: np.ndarray, special: Sequence[int]) -> np.ndarray:
    """Where SHARE of the tokens that are not special stand, drawn with SEED, each at most once, in rising order.

    Raises:
        UserError: there are too few to hide one.
    """
    words = np.flatnonzero(~np.isin(ids, list(special)))
    count = round(SHARE * len(words))
    if count == 0:
        raise UserError(f"The text has {len(words)} tokens, too few to hide some.", "Give more text with --text.")
    return np.sort(np.random.default_rng(SEED).permutation(words)[:count])


def probe_masked_words(frozen: FrozenModel, text: HeldOutText, show: Show) -> MaskedWords:
    """Hide SHARE of the tokens of ``text``, each by the mask token and at most once, and evaluate the guesses.

    A row is the tokenizer's [CLS] and the next tokens of the stream, over the borders of documents, as in Daybreak's
    own pretraining. Longer rows than trained are tried where the model's positions have no table.

    Args:
        frozen: from ``load_masked_model``.

    Raises:
        UserError: the text has too few tokens, or ids that the model does not know.
    """
    special = frozen.tokenizer.all_special_ids
    places = hidden_places(text.ids, special)
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
        lengths=[_row_length(length, frozen.length, guesses) for length, guesses in runs],
        frequency=bucket_scores(answers, RANKS, first),
        calibration=calibration_bins(first.confidences, first.right),
        calibration_error=calibration_error(first.confidences, first.right),
    )


def row_lengths(trained: int, table: int | None, tokens: int) -> list[int]:
    """How long the rows are made, in rising order: the trained length first, and what text, table and cost allow."""
    first = min(trained, LONGEST_ROW)
    most = LONGEST_ROW if table is None else min(LONGEST_ROW, table)
    wanted = [times * trained for times in STRETCHES[1:]]
    return [first, *(length for length in wanted if length <= most and length - 1 <= tokens)]


def guess(frozen: FrozenModel, ids: np.ndarray, places: np.ndarray, length: int, show: Show) -> Guesses:
    """Cut the stream into rows of ``length`` tokens, the last one perhaps shorter, and guess what is hidden."""
    width = length - 1
    hidden = np.zeros(len(ids), bool)
    hidden[places] = True
    shown = np.where(hidden, frozen.tokenizer.mask_token_id, ids)
    rows = max(1, BATCH_TOKENS // length)
    whole = len(ids) // width * width
    starts = [*range(0, whole, rows * width), *([whole] if whole < len(ids) else [])]
    parts = []
    for start, stop in zip(starts, [*starts[1:], len(ids)]):
        across = min(width, stop - start)
        batch = _opened(shown[start:stop].reshape(-1, across), frozen.tokenizer.cls_token_id)
        asked = _opened(hidden[start:stop].reshape(-1, across), False)
        parts.append(_judged(frozen, batch, asked, ids[start:stop][hidden[start:stop]]))
        show(stop / len(ids))
    right, losses, confidences = (np.concatenate(found) for found in zip(*parts))
    return Guesses(right, losses, confidences, positions=places % width + 1)


def _opened(rows: np.ndarray, first: int | bool) -> np.ndarray:
    return np.pad(rows, ((0, 0), (1, 0)), constant_values=first)


@torch.inference_mode()
def _judged(
    frozen: FrozenModel, rows: np.ndarray, asked: np.ndarray, answers: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, losses and confidences of the positions that ``asked`` marks, row by row."""
    where = torch.from_numpy(asked).to(frozen.device)

    def keep_asked(module: Any, inputs: Any, outputs: Any) -> Any:
        outputs.last_hidden_state = outputs.last_hidden_state[where][None]
        return outputs

    # The head sees the asked positions only: of a small model it is most of the work, and 85 % of it would be in vain.
    hook = frozen.model.base_model.register_forward_hook(keep_asked)
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
    """int64[V]: 1 for the most frequent id and so on; the lower id first among ties; special ids last."""
    counts = counts.astype(np.int64)
    counts[[id for id in special if id < len(counts)]] = -1
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(1, len(counts) + 1)
    return ranks


def position_ranges(length: int) -> list[Range]:
    """0-15, 16-31, 32-63, 64-127 and so on, up to the last position of a row of ``length`` tokens."""
    found: list[Range] = []
    first, after = 0, FIRST_POSITIONS
    while first < length:
        found.append((first, min(after, length) - 1))
        first, after = after, 2 * after
    return found


def interval(right: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (Wilson 1927): right answers out of ``count``, at least 1."""
    found = binomtest(right, count).proportion_ci(CONFIDENCE, method="wilson")
    return float(found.low), float(found.high)


def bucket_scores(values: np.ndarray, ranges: Sequence[Range], guesses: Guesses) -> list[BucketScore]:
    """Score the guesses whose value lies in each range; ranges without any are left out."""
    scores = []
    for first, last in ranges:
        inside = (values >= first) & (values <= (np.inf if last is None else last))
        if count := int(inside.sum()):
            right = int(guesses.right[inside].sum())
            low, high = interval(right, count)
            loss = float(guesses.losses[inside].mean())
            scores.append(
                BucketScore(first=first, last=last, count=count, accuracy=right / count, low=low, high=high, loss=loss)
            )
    return scores


def calibration_bins(confidences: np.ndarray, right: np.ndarray) -> list[CalibrationBin]:
    """The bins behind ``metrics.calibration_error``: BINS of equal width, upper ends included; empty ones left out."""
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


def _row_length(length: int, trained: int, guesses: Guesses) -> RowLength:
    low, high = interval(int(guesses.right.sum()), len(guesses.right))
    return RowLength(
        length=length,
        times_trained=max(1, length // trained),
        count=len(guesses.right),
        accuracy=float(guesses.right.mean()),
        low=low,
        high=high,
        loss=float(guesses.losses.mean()),
        positions=bucket_scores(guesses.positions, position_ranges(length), guesses),
    )
