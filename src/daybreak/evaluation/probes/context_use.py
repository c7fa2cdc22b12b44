"""How much of its context an encoder uses: masked tokens beside a copy of their text, and with few visible tokens.

A model that attends across segments finds a masked token in a copy of its sentence. One that does not cannot compare
two sentences, whatever its held-out loss, and stays at chance on similarity, paraphrase and entailment.

N pieces of text, M masked positions a piece.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F

from daybreak.core.encoder import Encoder
from daybreak.schemas.run import ContextUse, SpecialIds, VisibleContext

PIECE = 30
"""Tokens of a piece of held-out text."""
MASKED = 5
"""Masked positions of a piece."""
PIECES = 400
PIECES_OF_DOCUMENT = 4
DROPPED = 0.2
"""Fraction of the other tokens that a noisy copy lacks."""
VISIBLE = (2, 4, 8)
"""Nearest tokens that stay visible around a masked one, half of them on each side."""
BATCH = 100
SEED = 30_000_001


def measure_context_use(
    model: Encoder,
    stream: np.ndarray,
    document_ends: np.ndarray,
    *,
    special: SpecialIds = SpecialIds(),
    longest: int | None = None,
) -> ContextUse | None:
    """Measure the loss on masked tokens alone, beside a copy and beside a noisy copy, and by visible context.

    The pieces and the masked positions are the same for every model on the same data. The model is put into eval mode.

    Args:
        stream: held-out token ids.
        document_ends: for each document, the position in ``stream`` just past its separator.
        special: the special ids of the tokenizer.
        longest: most positions of a sequence; None for no limit.

    Returns:
        None where no document holds a piece of PIECE tokens, or the model has no room for two of them.
    """
    begun = time.monotonic()
    pieces = _pieces(stream, document_ends, special)
    if len(pieces) == 0 or (longest is not None and longest < 2 * PIECE + 3):
        return None
    model.eval()
    rng = np.random.default_rng(SEED)
    places = np.sort(rng.random(pieces.shape).argsort(axis=1)[:, :MASKED], axis=1)
    kept = rng.random(pieces.shape) >= DROPPED
    np.put_along_axis(kept, places, True, axis=1)
    masked = pieces.copy()
    np.put_along_axis(masked, places, special.mask, axis=1)

    alone: list[list[int]] = []
    copy: list[list[int]] = []
    noisy: list[list[int]] = []
    for piece, hidden, keep in zip(pieces, masked, kept, strict=True):
        for rows, before in ((alone, []), (copy, [*piece, special.sep]), (noisy, [*piece[keep], special.sep])):
            rows.append([special.cls, *before, *hidden, special.sep])
    answers = np.take_along_axis(pieces, places, axis=1)

    def judged(rows: list[list[int]]) -> tuple[float, float]:
        # The masked piece ends each sequence, one [SEP] behind it.
        starts = np.array([len(row) - 1 - PIECE for row in rows])
        return _judge(model, rows, starts[:, None] + places, answers, special)

    (alone_loss, alone_accuracy), (copy_loss, copy_accuracy), (noisy_loss, noisy_accuracy) = map(
        judged, (alone, copy, noisy)
    )
    return ContextUse(
        alone=alone_loss,
        copy=copy_loss,
        noisy_copy=noisy_loss,
        alone_accuracy=alone_accuracy,
        copy_accuracy=copy_accuracy,
        noisy_copy_accuracy=noisy_accuracy,
        visible=[
            VisibleContext(tokens=tokens, loss=_loss_with(model, pieces, tokens, special))
            for tokens in (*VISIBLE, PIECE - 1)
        ],
        positions=answers.size,
        seconds=time.monotonic() - begun,
    )


def _pieces(stream: np.ndarray, document_ends: np.ndarray, special: SpecialIds) -> np.ndarray:
    """Int64 [N, PIECE]: up to PIECES_OF_DOCUMENT of each document, from documents spread over the split."""
    ends = document_ends[document_ends <= len(stream)].astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    room = (ends - 1 - starts) // PIECE  # without the separator
    usable = np.flatnonzero(room > 0)
    take = min(len(usable), PIECES)
    documents = usable[np.linspace(0, len(usable) - 1, take).astype(np.int64)] if take else usable
    found: list[np.ndarray] = []
    for document in documents:
        pieces = np.linspace(0, room[document] - 1, min(PIECES_OF_DOCUMENT, int(room[document]))).astype(np.int64)
        found += [stream[starts[document] + PIECE * piece :][:PIECE].astype(np.int64) for piece in pieces]
    clean = [piece for piece in found if not np.isin(piece, (special.pad, special.unk, special.mask)).any()]
    spread = np.linspace(0, len(clean) - 1, min(PIECES, len(clean))).astype(np.int64)
    return np.stack([clean[i] for i in spread]) if clean else np.zeros((0, PIECE), np.int64)


def _loss_with(model: Encoder, pieces: np.ndarray, tokens: int, special: SpecialIds) -> float:
    """Mean loss on the middle token of each piece where its ``tokens`` nearest neighbours are visible."""
    middle = PIECE // 2
    first = max(0, middle - (tokens + 1) // 2)
    part = pieces[:, first : first + tokens + 1].copy()
    place = middle - first
    answers = part[:, [place]].copy()
    part[:, place] = special.mask
    rows = [[special.cls, *row, special.sep] for row in part]
    return _judge(model, rows, np.full((len(rows), 1), place + 1), answers, special)[0]


def _judge(
    model: Encoder, rows: list[list[int]], places: np.ndarray, answers: np.ndarray, special: SpecialIds
) -> tuple[float, float]:
    """Mean loss in nats and accuracy at ``places`` [N, M] of ``rows``, in float32."""
    device = model.decoder.weight.device
    total, hits = 0.0, 0
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            length = max(map(len, part))
            ids = np.full((len(part), length), special.pad, np.int64)
            for row, tokens in zip(ids, part, strict=True):
                row[: len(tokens)] = tokens
            sizes = np.array([len(row) for row in part])
            attend = None
            if sizes.min() < length:
                attend = torch.from_numpy(np.arange(length) < sizes[:, None]).to(device)
            wanted = torch.from_numpy(answers[start : start + BATCH]).to(device)
            slots = torch.from_numpy(places[start : start + BATCH]).to(device)
            logits = model.logits(torch.from_numpy(ids).to(device), slots, attend=attend).float()
            total += float(F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum"))
            hits += int((logits.argmax(dim=2) == wanted).sum())
    return total / answers.size, hits / answers.size
