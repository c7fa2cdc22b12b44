"""Held-out sentences with one word hidden, and what the model guesses: the demonstration that a user can read."""

from __future__ import annotations

import re

import numpy as np
import torch
from tokenizers import Tokenizer

from daybreak.base.encoder import Encoder
from daybreak.base.records import FillMask
from daybreak.data.tokenizer import CLS, MASK, SEP, SPECIAL_TOKENS

WORDS = (8, 26)
"""Shortest and longest sentence shown."""
GUESSES = 5
PASSAGE = 160
"""Tokens read from the stream for each sentence."""


def fill_mask(model: Encoder, tokenizer: Tokenizer, stream: np.ndarray, *, count: int = 12) -> list[FillMask]:
    """Hide one whole word in each of up to ``count`` sentences spread over ``stream`` and let the model guess it.

    Args:
        stream: held-out token ids, as the shards hold them (at most a few million).
    """
    examples = []
    for start in np.linspace(0, max(0, len(stream) - PASSAGE), count * 4).astype(int):
        found = _sentence(tokenizer, stream[start : start + PASSAGE])
        if found is not None:
            examples.append(_guess(model, tokenizer, *found))
        if len(examples) == count:
            break
    return examples


def _sentence(tokenizer: Tokenizer, ids: np.ndarray) -> tuple[list[int], int] | None:
    """Return the ids of the first full sentence of the passage and the place of the word to hide, or None."""
    text = tokenizer.decode([int(i) for i in ids if i not in (CLS, SEP)])
    for sentence in re.split(r"(?<=[.!?]) ", text)[1:-1]:
        words = sentence.split()
        if not WORDS[0] <= len(words) <= WORDS[1] or not words[0].isalpha():
            continue
        encoding = tokenizer.encode(sentence, add_special_tokens=False)
        places = [place for place in range(len(encoding.ids)) if _is_word(encoding.tokens, place)]
        if places:
            return encoding.ids, places[len(places) * 2 // 3]
    return None


def _is_word(pieces: list[str], place: int) -> bool:
    """Whether the piece is a whole word of at least four letters."""
    whole = place + 1 == len(pieces) or not pieces[place + 1].startswith("##")
    return whole and pieces[place].isalpha() and len(pieces[place]) >= 4 and pieces[place] not in SPECIAL_TOKENS


def _guess(model: Encoder, tokenizer: Tokenizer, ids: list[int], place: int) -> FillMask:
    answer = tokenizer.decode([ids[place]])
    hidden = [*ids[:place], MASK, *ids[place + 1 :]]
    device = next(model.parameters()).device
    row = torch.tensor([[CLS, *hidden, SEP]], device=device)
    with torch.inference_mode():
        chances = model.logits(row, torch.tensor([[place + 1]], device=device))[0, 0].float().softmax(dim=-1)
    best = chances.topk(GUESSES)
    return FillMask(
        text=f"{tokenizer.decode(ids[:place])} [MASK] {tokenizer.decode(ids[place + 1 :])}".strip(),
        answer=answer,
        guesses=[tokenizer.decode([int(i)]) for i in best.indices],
        probabilities=[round(float(p), 4) for p in best.values],
    )
