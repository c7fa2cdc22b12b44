"""Fill-mask examples: held-out sentences with one masked word and the model's predictions."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import torch
from tokenizers import Tokenizer

from daybreak.core.encoder import Encoder
from daybreak.schemas.run import FillMask, SpecialIds

WORDS = (8, 26)
"""Shortest and longest sentence, in words."""
CHARACTERS = (8, 60)
"""Shortest and longest sentence of scripts without spaces between words, in wide characters."""
GUESSES = 5
PASSAGE = 160
"""Tokens read from the stream for each sentence."""


def fill_mask(
    model: Encoder,
    tokenizer: Tokenizer,
    stream: np.ndarray,
    *,
    count: int = 12,
    special: SpecialIds = SpecialIds(),
    longest: int | None = None,
) -> list[FillMask]:
    """Mask one whole word in each of up to ``count`` sentences spread over ``stream``, and predict it.

    The model is put into eval mode.

    Args:
        stream: held-out token ids (at most a few million).
        longest: longest sequence that the model takes; longer sentences are skipped. None for no limit.
    """
    model.eval()
    examples = []
    shown: set[tuple[int, ...]] = set()
    for start in np.linspace(0, max(0, len(stream) - PASSAGE), count * 4).astype(int):
        found = _sentence(tokenizer, stream[start : start + PASSAGE], special, longest or PASSAGE)
        if found is not None and tuple(found[0]) not in shown:
            shown.add(tuple(found[0]))
            examples.append(_guess(model, tokenizer, *found, special))
        if len(examples) == count:
            break
    return examples


def _sentence(tokenizer: Tokenizer, ids: np.ndarray, special: SpecialIds, longest: int) -> tuple[list[int], int] | None:
    """Return the ids of the first full sentence of the passage and the position of the word to mask, or None."""
    text = tokenizer.decode([int(i) for i in ids if i not in (special.cls, special.sep)])
    for sentence in re.split(r"(?<=[.!?\u0964\u061f\u06d4]) |(?<=[\u3002\uff01\uff1f])", text)[1:-1]:
        sentence = sentence.strip()
        if not _is_shown(sentence):
            continue
        encoding = tokenizer.encode(sentence, add_special_tokens=False)
        if len(encoding) > longest - 2:  # [CLS] and [SEP] come around it
            continue
        places = [place for place, (start, stop) in enumerate(encoding.offsets) if _is_word(sentence, start, stop)]
        if places:
            return encoding.ids, places[len(places) * 2 // 3]
    return None


def _is_shown(sentence: str) -> bool:
    """Return whether a sentence begins with a word and has a suitable length."""
    words, wide = sentence.split(), sum(map(_is_wide, sentence))
    if 2 * wide > len(sentence.replace(" ", "")):
        return CHARACTERS[0] <= wide <= CHARACTERS[1]
    return WORDS[0] <= len(words) <= WORDS[1] and all(map(_is_letter, words[0]))


def _is_letter(character: str) -> bool:
    """Return whether a character is a letter or a mark on one, such as the vowel signs of Hindi."""
    return character.isalpha() or unicodedata.category(character).startswith("M")


def _is_wide(character: str) -> bool:
    """Return whether a character is a Chinese, Japanese or Korean letter (East Asian width W)."""
    return character.isalpha() and unicodedata.east_asian_width(character) == "W"


def _is_word(sentence: str, start: int, stop: int) -> bool:
    """Return whether a token is a whole word of at least four letters, or wide letters only.

    Uses the text, because tokenizers mark word starts in different ways; some include the preceding space.
    """
    word = sentence[start:stop].strip()
    if word and all(map(_is_wide, word)):
        return True
    beside = sentence[: stop - len(word)][-1:] + sentence[stop : stop + 1]
    return (
        len(word) >= 4
        and all(map(_is_letter, word))
        and not any(_is_letter(character) or character.isalnum() for character in beside)
    )


def _guess(model: Encoder, tokenizer: Tokenizer, ids: list[int], place: int, special: SpecialIds) -> FillMask:
    answer = tokenizer.decode([ids[place]]).strip()
    masked = [*ids[:place], special.mask, *ids[place + 1 :]]
    device = next(model.parameters()).device
    row = torch.tensor([[special.cls, *masked, special.sep]], device=device)
    with torch.inference_mode():
        probabilities = model.logits(row, torch.tensor([[place + 1]], device=device))[0, 0].float().softmax(dim=-1)
    best = probabilities.topk(GUESSES)
    return FillMask(
        text=f"{tokenizer.decode(ids[:place])} [MASK] {tokenizer.decode(ids[place + 1 :]).strip()}".strip(),
        answer=answer,
        guesses=[tokenizer.decode([int(i)]).strip() for i in best.indices],
        probabilities=[round(float(p), 4) for p in best.values],
    )
