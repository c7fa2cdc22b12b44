"""How much of its context an encoder uses: masked tokens next to a copy of their text, and with few visible tokens.

A model that attends across segments finds a masked token in a copy of its sentence. A model that does not cannot
compare two sentences, whatever its held-out loss, and stays at chance level on similarity, paraphrase and entailment.

N spans of text, M masked positions per span.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from daybreak.core.encoder import Encoder
from daybreak.schemas.run import ContextUse, SpecialIds, VisibleContext

SPAN_TOKENS = 30
"""Tokens of a span of held-out text."""
MASKED = 5
"""Masked positions of a span."""
SPANS = 400
SPANS_OF_DOCUMENT = 4
DROPPED = 0.2
"""Fraction of the unmasked tokens that a noisy copy lacks."""
VISIBLE = (2, 4, 8)
"""Numbers of nearest tokens that stay visible around a masked one, half of them on each side."""
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

    The spans and the masked positions are the same for every model on the same data. The model is put into eval mode.

    Args:
        stream: held-out token ids.
        document_ends: for each document, the position in ``stream`` just past its separator.
        longest: longest sequence that the model takes; None for no limit.

    Returns:
        None if no document holds a span of SPAN_TOKENS tokens, or the model has no room for two of them.
    """
    started = time.monotonic()
    spans = _spans(stream, document_ends, special)
    if len(spans) == 0 or (longest is not None and longest < 2 * SPAN_TOKENS + 3):
        return None
    model.eval()
    rng = np.random.default_rng(SEED)
    positions = np.sort(rng.random(spans.shape).argsort(axis=1)[:, :MASKED], axis=1)
    kept = rng.random(spans.shape) >= DROPPED
    np.put_along_axis(kept, positions, True, axis=1)
    masked = spans.copy()
    np.put_along_axis(masked, positions, special.mask, axis=1)
    targets = np.take_along_axis(spans, positions, axis=1)

    def evaluate(contexts: list[list[int]]) -> tuple[float, float]:
        rows = [[special.cls, *context, *span, special.sep] for context, span in zip(contexts, masked, strict=True)]
        starts = np.array([1 + len(context) for context in contexts])
        return _evaluate(model, rows, starts[:, None] + positions, targets, special)

    alone, alone_accuracy = evaluate([[] for _ in spans])
    copy, copy_accuracy = evaluate([[*span, special.sep] for span in spans])
    noisy, noisy_accuracy = evaluate([[*span[keep], special.sep] for span, keep in zip(spans, kept, strict=True)])
    return ContextUse(
        alone=alone,
        copy=copy,
        noisy_copy=noisy,
        alone_accuracy=alone_accuracy,
        copy_accuracy=copy_accuracy,
        noisy_copy_accuracy=noisy_accuracy,
        visible=[
            VisibleContext(tokens=tokens, loss=_loss_with(model, spans, tokens, special))
            for tokens in (*VISIBLE, SPAN_TOKENS - 1)
        ],
        positions=targets.size,
        seconds=time.monotonic() - started,
    )


def document_bounds(stream: np.ndarray, document_ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the int64 starts and ends of the documents that lie within ``stream``.

    Args:
        document_ends: for each document, the position just past its separator.
    """
    ends = document_ends[document_ends <= len(stream)].astype(np.int64)
    return np.concatenate([[0], ends])[: len(ends)].astype(np.int64), ends


def padded_batch(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids int64[N, L], padded on the right, and the mask bool[N, L] of the real tokens."""
    sizes = np.array([len(row) for row in rows])
    ids = np.full((len(rows), int(sizes.max())), pad, np.int64)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = row
    return torch.from_numpy(ids).to(device), torch.from_numpy(np.arange(ids.shape[1]) < sizes[:, None]).to(device)


def _spans(stream: np.ndarray, document_ends: np.ndarray, special: SpecialIds) -> np.ndarray:
    """Return int64[N, SPAN_TOKENS]: up to SPANS_OF_DOCUMENT spans of each of at most SPANS documents, evenly spread."""
    starts, ends = document_bounds(stream, document_ends)
    room = (ends - 1 - starts) // SPAN_TOKENS  # without the separator
    usable = np.flatnonzero(room > 0)
    count = min(len(usable), SPANS)
    documents = usable[np.linspace(0, len(usable) - 1, count).astype(np.int64)] if count else usable
    found: list[np.ndarray] = []
    for document in documents:
        spans = np.linspace(0, room[document] - 1, min(SPANS_OF_DOCUMENT, int(room[document]))).astype(np.int64)
        found += [stream[starts[document] + SPAN_TOKENS * span :][:SPAN_TOKENS].astype(np.int64) for span in spans]
    clean = [span for span in found if not np.isin(span, (special.pad, special.unk, special.mask)).any()]
    spread = np.linspace(0, len(clean) - 1, min(SPANS, len(clean))).astype(np.int64)
    return np.stack([clean[i] for i in spread]) if clean else np.zeros((0, SPAN_TOKENS), np.int64)


def _loss_with(model: Encoder, spans: np.ndarray, tokens: int, special: SpecialIds) -> float:
    """Return the mean loss on the middle token of each span if its ``tokens`` nearest neighbors are visible."""
    middle = SPAN_TOKENS // 2
    first = max(0, middle - (tokens + 1) // 2)
    visible = spans[:, first : first + tokens + 1].copy()
    position = middle - first
    targets = visible[:, [position]].copy()
    visible[:, position] = special.mask
    rows = [[special.cls, *row, special.sep] for row in visible]
    return _evaluate(model, rows, np.full((len(rows), 1), position + 1), targets, special)[0]


def _evaluate(
    model: Encoder, rows: list[list[int]], positions: np.ndarray, targets: np.ndarray, special: SpecialIds
) -> tuple[float, float]:
    """Return the mean loss in nats and the accuracy at ``positions`` [N, M] of ``rows``, in float32."""
    device = model.decoder.weight.device
    total, correct = 0.0, 0
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        for start in range(0, len(rows), BATCH):
            ids, attention_mask = padded_batch(rows[start : start + BATCH], special.pad, device)
            wanted = torch.from_numpy(targets[start : start + BATCH]).to(device)
            masked = torch.from_numpy(positions[start : start + BATCH]).to(device)
            # Without padding no mask is given, which is faster.
            logits = model.logits(ids, masked, attention_mask=None if attention_mask.all() else attention_mask).float()
            total += float(F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum"))
            correct += int((logits.argmax(dim=2) == wanted).sum())
    return total / targets.size, correct / targets.size
